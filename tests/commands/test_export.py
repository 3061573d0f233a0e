"""`fedpm export`: the file gives the outputs of the checkpoint's network, bit for bit or (ONNX) to rounding."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
import torch
from torch import nn

from fedpm_lightning import FederatedData
from fedpm_lightning.cli import main
from fedpm_lightning.data import IID
from fedpm_lightning.methods.fedexp import PREVIOUS


class Small(nn.Sequential):
    """A convolution with running statistics: buffers belong to the network."""

    def __init__(self) -> None:
        norm = nn.BatchNorm2d(4)
        super().__init__(nn.Conv2d(1, 4, 3), norm, nn.ReLU(), nn.Flatten(), nn.Linear(144, 10))


@pytest.fixture
def trained(quickstart):
    words = ("--model.net", f"{__name__}.Small", "--model.local_epochs", "1", "--rounds", "2")
    return quickstart("--config", "configs/method/fedavg.yaml", *words)


def inputs(n=5):
    """Test images as the network sees them."""
    data = FederatedData(num_clients=2, partition=IID())
    return next(iter(data.test_dataloader()[0]))[0][:n]


def network(folder, which="best"):
    """The checkpoint's network, put together by hand."""
    state = torch.load(folder / "checkpoints" / f"{which}.ckpt", weights_only=True)["state_dict"]
    net = Small().eval()
    net.load_state_dict({name.removeprefix("net."): t for name, t in state.items() if name.startswith("net.")})
    return net


def test_tensors_are_those_of_the_checkpoint(trained, capsys):
    pytest.importorskip("safetensors")
    from safetensors import safe_open
    from safetensors.torch import load_file

    assert main(["export", str(trained.folder)]) == 0
    said = capsys.readouterr().out
    assert "model.safetensors: Small after round" in said
    assert "inputs [1, 8, 8] of float32, normalised by mean and deviation 0.305 and 0.3757" in said
    last = ["--format", "state_dict", "--checkpoint", "last", "--output", "a/b.pt"]
    assert main(["export", str(trained.folder), *last]) == 0
    loaded = {"best": load_file(trained.folder / "model.safetensors"), "last": torch.load("a/b.pt", weights_only=True)}
    for which, state in loaded.items():
        net, reference = Small().eval(), network(trained.folder, which)
        net.load_state_dict(state)
        assert torch.equal(net(inputs()), reference(inputs())), which
    with safe_open(trained.folder / "model.safetensors", "pt") as file:
        facts = file.metadata()
    mean = json.loads(facts["input_mean"])
    assert facts["label"] == "FedAvg" and len(mean) == 1 and 0 < mean[0] < 1
    assert trained.summary["inputs"]["shape"] == [1, 8, 8] and trained.summary["inputs"]["dtype"] == "float32"


def test_onnx_gives_the_same_logits_for_any_number_of_samples(trained):
    runtime = pytest.importorskip("onnxruntime")
    assert main(["export", str(trained.folder), "--format", "onnx"]) == 0
    session = runtime.InferenceSession(str(trained.folder / "model.onnx"), providers=["CPUExecutionProvider"])
    for n in (1, 5):
        (logits,) = session.run(None, {"inputs": inputs(n).numpy()})
        assert np.allclose(logits, network(trained.folder)(inputs(n)).detach().numpy(), atol=1e-5)
    assert session.get_modelmeta().custom_metadata_map["input_shape"] == "[1, 8, 8]"


def test_a_method_that_evaluates_elsewhere_exports_what_it_evaluates(quickstart):
    """FedExP: the mean of the last two theta, in the precision of the run."""
    words = ("--config", "configs/method/fedexp.yaml", "--model.local_epochs", "1", "--trainer.precision", "64-true")
    run = quickstart(*words, "--rounds", "2")
    assert main(["export", str(run.folder), "--format", "state_dict", "--checkpoint", "last"]) == 0
    saved = torch.load(run.folder / "checkpoints" / "last.ckpt", weights_only=True)
    exported = torch.load(run.folder / "model.pt", weights_only=True)
    theta = {name.removeprefix("net."): tensor for name, tensor in saved["state_dict"].items()}
    moved = [not torch.equal(exported[name], theta[name]) for name in exported]
    before = saved["federated"]["server"][PREVIOUS]
    assert {tensor.dtype for tensor in exported.values()} == {torch.float64}
    assert all(moved) and all(torch.allclose(exported[k], (theta[k] + before[k]) / 2) for k in exported)


def test_what_is_missing_is_said_in_a_line(trained, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    run = str(trained.folder)
    for words, code, said in (
        (
            [run],
            1,
            "--format safetensors needs safetensors; install it with: pip install 'fedpm-lightning[safetensors]'",
        ),
        ([run, "--format", "onnx"], 1, "pip install 'fedpm-lightning[onnx]'"),
        ([str(tmp_path / "none")], 2, "has no config.yaml; give the folder of a run"),
        ([run, "--checkpoint", "other.ckpt"], 1, "there is no checkpoint other.ckpt"),
    ):
        assert main(["export", *words]) == code
        error = capsys.readouterr().err
        assert said in error and "Traceback" not in error
    monkeypatch.undo()
