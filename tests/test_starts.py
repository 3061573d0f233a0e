"""How a run or an evaluation starts: what is refused leaves everything as it was, and no code comes out of a file."""

from __future__ import annotations

import pickle
from argparse import Namespace
from pathlib import Path

import pytest
import torch
import yaml

from fedpm_lightning.checkpoints.run_folder import RunFolder
from fedpm_lightning.cli import main
from fedpm_lightning.commands.run_dir import choose_folder
from fedpm_lightning.commands.wandb_logger import prepare_loggers

SMALL = (
    "--model.local_epochs=1",
    "--model.net.hidden=[8]",
    "--data.limit_train=200",
    "--config=configs/method/fedavg.yaml",
)


def listing(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name != ".lock"}


def test_an_evaluation_of_a_changed_checkpoint_is_refused(quickstart, fedpm, capsys):
    run = quickstart(*SMALL, "--rounds=1")
    file = (run.folder / "checkpoints" / "best.ckpt").resolve()
    whole = torch.load(file, weights_only=True)["state_dict"]["net.1.bias"].numpy().tobytes()
    content = file.read_bytes()
    assert content.count(whole) == 1
    file.write_bytes(content.replace(whole, whole[::-1]))  # torch would read it without a word
    for verb in ("test", "validate"):
        assert fedpm(verb).code == 1
        assert "has not the checksum it was written with" in capsys.readouterr().err
    file.write_bytes(content)
    file.with_suffix(".json").write_text("{}")
    assert fedpm("test").code == 1 and "round-000001.json is damaged" in capsys.readouterr().err
    file.with_suffix(".json").unlink()
    assert fedpm("test").code == 0, "from another place, without its manifest"


class Evil:
    def __reduce__(self):
        return (Path.touch, (Path("executed"),))


def test_an_evaluation_says_what_it_reads_and_reads_nothing_else(quickstart, fedpm, tmp_path, capsys):
    run = quickstart(*SMALL, "--rounds=2")
    before = listing(run.folder)
    best = run.summary["round_of_best"]
    capsys.readouterr()
    assert fedpm("test").code == 0
    assert f"test of run/checkpoints/best.ckpt, saved after round {best}" in capsys.readouterr().out
    torch.save({"x": Evil()}, tmp_path / "evil.ckpt")
    torch.save({"x": 1}, tmp_path / "other.ckpt")
    (tmp_path / "text.ckpt").write_text("no checkpoint")
    for words, told in (
        (("--model.net.hidden=[9]",), "is of another network: net.1.weight is (8, 64) in the checkpoint and (9, 64)"),
        (("--ckpt_path=evil.ckpt",), "evil.ckpt is no checkpoint of tensors and numbers"),
        (("--ckpt_path=text.ckpt",), "text.ckpt is no checkpoint of tensors and numbers"),
        (("--ckpt_path=other.ckpt",), "it lacks state_dict, federated or global_step"),
        (("--ckpt_path=nothere.ckpt",), "there is no checkpoint nothere.ckpt"),
    ):
        for verb in ("test", "validate", "fit"):
            assert fedpm(verb, *words, *(() if verb != "fit" or "--ckpt" in words[0] else ("--resume=must",))).code == 1
            error = capsys.readouterr().err
            assert (told in error or "another experiment" in error) and len(error.splitlines()) <= 6, error
    for verb in ("test", "validate", "fit"):
        assert fedpm(verb, "--ckpt_path=evil.ckpt", "--weights_only=false").code == 2
        assert "never executes code" in capsys.readouterr().err
    assert not (tmp_path / "executed").exists() and listing(run.folder) == before
    with pytest.raises(FileNotFoundError):  # the file does execute code where it is let
        (tmp_path / "executed").unlink()
    pickle.loads(pickle.dumps(Evil()))
    assert Path("executed").exists()


@pytest.mark.parametrize(
    "words",
    [
        ("--seed_everything=1",), ("--data.participation=1.5",), ("--model.net.in_features=9",),
        ("--model.lr_schedule=Cosine", "--trainer.precision=64-true"),
    ],
)  # fmt: skip
def test_a_refused_start_leaves_the_run_as_it_was_and_no_folder_of_its_own(quickstart, fedpm, tmp_path, words):
    run = quickstart(*SMALL, "--rounds=1")
    before = listing(run.folder)
    assert quickstart(*SMALL, *words, "--rounds=2").code == 1
    assert listing(run.folder) == before
    assert fedpm("fit", "--rounds=2").code == 0, "the documented way to go on still works"
    if words[0] != "--seed_everything=1":
        bad = words if "Cosine" not in words[0] else ("--data.participation=2",)
        assert quickstart(*SMALL, *bad, "--rounds=1", folder="new").code == 1 and not (tmp_path / "new").exists()


def test_a_folder_that_another_process_holds_is_refused(quickstart, tmp_path, capsys):
    held = RunFolder(tmp_path / "run")
    held.acquire()
    assert quickstart(*SMALL, "--rounds=1").code == 1
    error = capsys.readouterr().err
    assert (
        "run is in use by process" in error and "--run_dir" in error and not (tmp_path / "run" / "metrics.csv").exists()
    )
    held.release()
    assert quickstart(*SMALL, "--rounds=1").code == 0


def test_ranks_that_are_started_one_by_one_need_a_name_to_agree_on(tmp_path, monkeypatch):
    for name, value in {"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0", "TORCHELASTIC_RUN_ID": "none"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("FEDPM_RUN_DIR", "")  # or what is chosen here would stay behind
    monkeypatch.delenv("FEDPM_RUN_DIR")
    monkeypatch.chdir(tmp_path)
    settings = Namespace(run_dir=None, experiment="x", label="FedAvg", seed_everything=0)
    with pytest.raises(ValueError, match="give --run_dir runs/NAME"):
        choose_folder(settings)
    assert not list(tmp_path.iterdir())
    monkeypatch.setenv("SLURM_NTASKS", "2")  # its ranks agree on the job
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    assert choose_folder(settings).path == Path("runs/x-fedavg-s0-4711")


def test_a_module_in_the_current_folder_is_importable(quickstart, tmp_path):
    text = "from fedpm_lightning.methods import FedAvg\nclass Mine(FedAvg):\n    stackable = 'any'\n"
    (tmp_path / "a_method_of_mine.py").write_text(text)
    (tmp_path / "mine.yaml").write_text("model: {method: a_method_of_mine.Mine}")
    run = quickstart(*SMALL, "--config=mine.yaml", "--rounds=1", "--model.method.lr=0.2")
    assert run.code == 0 and run.summary["method_label"] == "Mine"
    assert yaml.safe_load((run.folder / "config.yaml").read_text())["model"]["method"]["init_args"]["lr"] == 0.2


def test_print_config_shows_everything_and_runs_nothing(fedpm, tmp_path, capsys):
    words = ("fit", "--config=configs/quickstart.yaml", "--model.method=FedAvg", "--print_config")
    assert fedpm(*words).code == 0
    shown = yaml.safe_load(capsys.readouterr().out)
    assert shown["model"]["method"]["init_args"]["weight_decay"] == 0.0
    assert shown["trainer"]["max_epochs"] == 20 and not (tmp_path / "run").exists()


def logger(**arguments):
    class Arguments(Namespace):
        def get(self, name):
            return getattr(self, name, None)

    return Namespace(class_path="lightning.pytorch.loggers.WandbLogger", init_args=Arguments(save_dir=".", **arguments))


def test_a_wandb_logger_that_could_not_log_is_refused_before_the_run(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_SWEEP_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    with pytest.raises(ValueError, match="wandb login"):
        prepare_loggers([logger()], tmp_path, {})
    with pytest.raises(ValueError, match="log_model has no effect"):
        prepare_loggers([logger(offline=True, log_model="all")], tmp_path, {})
    prepare_loggers([logger(offline=True, log_model=False)], tmp_path, {})
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    prepare_loggers([logger()], tmp_path, {})


def test_evaluation_makes_no_folder(fedpm, tmp_path):
    assert main(["test", "--config=configs/quickstart.yaml", "--ckpt_path=x.ckpt"]) == 1
    assert not (tmp_path / "runs").exists()
