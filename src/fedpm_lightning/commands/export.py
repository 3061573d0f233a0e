"""The command `fedpm export`: the network of a run's checkpoint as a file that other programs read."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from jsonargparse import ArgumentParser, Namespace
from torch import Tensor, nn

from fedpm_lightning.checkpoints.atomic_files import from_file
from fedpm_lightning.checkpoints.restart import check_checkpoint, check_intact
from fedpm_lightning.commands.exit_codes import run
from fedpm_lightning.commands.lightning_cli import FedpmCLI
from fedpm_lightning.trainer.module import FederatedModule

DESCRIPTION = """Write the trained network of a run as a file: its best checkpoint, unless told otherwise.

  fedpm export runs/NAME                           runs/NAME/model.safetensors
  fedpm export runs/NAME --format onnx --output digits.onnx
  fedpm export runs/NAME --format state_dict --checkpoint last

Inputs are as in training: images are normalised before they reach the network, by the mean and deviation that the
command prints and that safetensors and ONNX files hold as metadata. Outputs are logits."""

ENDINGS = {"safetensors": ".safetensors", "onnx": ".onnx", "state_dict": ".pt"}


def make_parser() -> argparse.ArgumentParser:
    """Return the parser."""
    parser = argparse.ArgumentParser(
        prog="fedpm export", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="the run's folder")
    parser.add_argument("--format", choices=list(ENDINGS), default="safetensors", help="the kind of file")
    parser.add_argument("--checkpoint", default="best", metavar="WHICH", help="best, last, or a checkpoint file")
    parser.add_argument("--output", type=Path, metavar="FILE", help="where to write; default: RUN/model.*")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Export a network.

    Args:
        argv: The options after `fedpm export`; default: the command line.

    Returns:
        0; 1 where there is no such run or checkpoint, or a library is missing; 2 where the command line is wrong.
    """
    ExportCLI.wanted = args = make_parser().parse_args(list(sys.argv[2:] if argv is None else argv))
    folder = args.run / "checkpoints"
    named = {"best": [], "last": ["--ckpt_path", str(folder / "last.ckpt")]}
    options = named.get(args.checkpoint, ["--ckpt_path", str(args.checkpoint)])
    return run(["test", "--run_dir", str(args.run), *options], ExportCLI)


class ExportCLI(FedpmCLI):
    """Reads a run's configuration as `fedpm test` does, and builds the network and the method alone."""

    wanted: ClassVar[argparse.Namespace]

    def instantiate_classes(self) -> None:
        """Load the checkpoint and write the file."""
        parser = ArgumentParser(exit_on_error=False)
        parser.add_class_arguments(FederatedModule, "model")
        built: Any = parser.instantiate_classes(Namespace(model=self.settings.model))
        checkpoint, run_dir = Path(self.settings.ckpt_path), Path(self.settings.run_dir)
        done = load(built.model, checkpoint)
        facts = {"label": str(self.settings.label), "round": str(done), **input_facts(run_dir)}
        kind = str(self.wanted.format)
        file: Path = self.wanted.output or run_dir / f"model{ENDINGS[kind]}"
        net: nn.Module = built.model.net.eval()
        write(kind, net, file, facts)
        print(f"{file}: {type(net).__name__} after round {done} ({checkpoint.name}); {described(facts)}")

    def _run_subcommand(self, subcommand: str) -> None:
        return


def load(module: FederatedModule, checkpoint: Path) -> int:
    """Put a checkpoint's parameters and buffers into a module's network, in the checkpoint's precision.

    Where a method evaluates its model elsewhere than at theta (a mean of iterates), that is what is exported.

    Returns:
        The round after which the checkpoint was written.
    """
    done = check_checkpoint(checkpoint, module.state_dict())
    check_intact(checkpoint)
    content: dict[str, Any] = from_file(checkpoint)
    state: dict[str, Tensor] = content["state_dict"]
    floating = next((tensor.dtype for tensor in state.values() if tensor.is_floating_point()), torch.float32)
    module.to(floating).load_state_dict(state)
    federation = module.federation
    elsewhere = federation.method.evaluation_params(federation.theta, content["federated"]["server"])
    with torch.no_grad():
        for name, parameter in federation.theta.items():
            parameter.copy_(elsewhere.get(name, parameter))
    return done


def input_facts(run_dir: Path) -> dict[str, str]:
    """Return what the run's summary says of the network's inputs, as text."""
    try:
        facts: Any = json.loads((run_dir / "summary.json").read_text(encoding="utf-8")).get("inputs")
    except (OSError, ValueError):
        facts = None
    return {f"input_{key}": json.dumps(value) for key, value in (facts or {}).items() if value is not None}


def described(facts: dict[str, str]) -> str:
    """Say what the network takes."""
    if "input_shape" not in facts:
        return "the run does not say what its inputs are"
    text = f"inputs {facts['input_shape']} of {json.loads(facts['input_dtype'])}"
    mean, std = (json.loads(facts.get(f"input_{key}", "[]")) for key in ("mean", "std"))
    scale = ", ".join(f"{m:.4g} and {s:.4g}" for m, s in zip(mean, std, strict=True))
    return f"{text}, normalised by mean and deviation {scale}" if scale else text


def write(kind: str, net: nn.Module, file: Path, facts: dict[str, str]) -> None:
    """Write a network.

    Args:
        kind: safetensors, onnx or state_dict.
        net: The network, in evaluation mode.
        file: Where to.
        facts: Metadata.

    Raises:
        ImportError: If the library of this kind is not installed.
        ValueError: If ONNX needs the shape of an input, and the run does not say it.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    # Copies: safetensors refuses tensors that share memory (tied weights) or are not contiguous (channels last).
    state = {name: tensor.detach().clone().contiguous() for name, tensor in net.state_dict().items()}
    if kind == "state_dict":
        torch.save(state, file)
    elif kind == "safetensors":
        try:
            from safetensors.torch import save_file
        except ImportError as error:
            raise ImportError(_missing(kind, "safetensors", "safetensors")) from error
        save_file(state, file, {"format": "pt", **facts})
    else:
        _write_onnx(net, file, facts)


def _missing(kind: str, library: str, extra: str) -> str:
    return f"--format {kind} needs {library}; install it with: pip install 'fedpm-lightning[{extra}]'"


def _write_onnx(net: nn.Module, file: Path, facts: dict[str, str]) -> None:
    """Write the network's graph, for any number of samples at once."""
    try:
        import onnx  # pyright: ignore[reportUnusedImport] # noqa: F401
        import onnxscript  # pyright: ignore[reportUnusedImport, reportMissingTypeStubs] # noqa: F401
    except ImportError as error:
        raise ImportError(_missing("onnx", "onnx and onnxscript", "onnx")) from error
    if "input_shape" not in facts:
        raise ValueError("the run's summary.json does not say the shape of an input, which ONNX needs; run it again")
    shape, dtype = json.loads(facts["input_shape"]), getattr(torch, json.loads(facts["input_dtype"]))
    example = torch.zeros(2, *shape, dtype=dtype)  # 0: a pixel, a feature, or the first token
    program = torch.onnx.export(
        net,
        (example,),
        input_names=["inputs"],
        output_names=["logits"],
        dynamic_shapes=({0: torch.export.Dim("batch")},),
        dynamo=True,
        verbose=False,
    )
    assert program is not None
    program.model.metadata_props.update(facts)
    program.save(str(file))
