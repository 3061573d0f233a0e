"""The command line as a user types it: layered files, run folders, and what happens when a key is wrong."""

from __future__ import annotations

import gc
import subprocess
import sys
import time

import pytest
import yaml
from torch import nn

from fedpm_lightning import cli
from fedpm_lightning.cli import main
from fedpm_lightning.methods import FedAvg

PLAIN = {"lr": 0.1, "momentum": 0.0, "weight_decay": 0.0, "local_optimizer": None}
ONE = ("--rounds", "1", "--model.local_epochs", "1")


class Misspelt(nn.Linear):
    def __init__(self):
        super().__init__(64, 10)

    def forward(self, x):
        return self.lin(x)


class Forgetful(FedAvg):
    def client_update(self, client):
        super().client_update(client)


def settings(run):
    return yaml.safe_load((run.folder / "config.yaml").read_text())


def test_help_answers_without_torch():
    """A fresh interpreter: torch, lightning and wandb stay unloaded, and the answer comes in under 3 s."""
    code = (
        "import sys; from fedpm_lightning.cli import main; main(['--help']);"
        "sys.exit(any(m in sys.modules for m in ('torch', 'lightning', 'wandb')))"
    )
    start = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "fedpm fit --config" in done.stdout
    assert time.monotonic() - start < 3


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["bogus"], "choose one of fit, validate, test, compare"),
        (["fit", "--config", "configs/nothere.yaml"], "nothere.yaml"),
        (["fit", "--rounds", "1"], "--model.net is needed, or a --config"),
        (["fit", "--run_dir", "runs/none"], "(run_dir runs/none has no config.yaml to go on with)"),
    ],
)
def test_a_wrong_command_line_says_what_would_be_right(fedpm, capsys, words, expected):
    assert fedpm(*words).code == 2 or main(words) == 2
    assert expected in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        (["--model.method.preconditioner.dampning", "3"], 2, ["dampning", "damping, damping_mode", "mean damping?"]),
        (["--model.method.damping", "3"], 2, ["model.method.preconditioner.damping"]),
        (["--config", "configs/method/fedavg.yaml", "--model.method.damping", "3"], 2, ["damping", "lr, momentum"]),
        (["--model.method", "FedProxx"], 2, ["model.method", "FedProxx", "FedAvg", "FedPM"]),
        (["--data.partition", "dirichlet_client"], 2, ["data.partition", "DirichletClients"]),
        (["--data.partition.alpha", "abc"], 1, ["alpha must be a finite number above 0, got abc"]),
        (["--rounds", "abc"], 2, ["error: rounds must be a whole number, got abc"]),
        (["--seed_everything", "x"], 2, ["seed_everything must be true or false or a whole number, got x"]),
        (["--model.method.preconditioner.damping", "x"], 2, ["model.method.preconditioner.damping must be a number"]),
        (["--model.weighting", "sizes"], 2, ["model.weighting must be size or uniform, got sizes; did you mean size?"]),
        (["--model.net", "torchvision.models.resnet81"], 2, ["model.net torchvision", "did you mean resnet18?"]),
        (["--trainer.callbacks", "fedpm_lightning.callbacks.ClientDrif"], 2, ["did you mean ClientDrift?"]),
        (
            ["--trainer.logger", "TensorBoardLogger", "--trainer.logger.savedir", "x"],
            2,
            ["trainer.logger.savedir is not accepted by TensorBoardLogger; did you mean save_dir?"],
        ),
        (["--data.partition.alpha", "-1"], 1, ["alpha must be a finite number above 0, got -1"]),
        (["--model.method.lr", "-1"], 1, ["lr must be a finite number above 0, got -1"]),
        (["--trainer.max_epoch", "3"], 2, ["--trainer.max_epoch"]),
        (["--confg", "x"], 2, ["did you mean --config?"]),
        (["--config", "method/fednl"], 2, ["did you mean method/convex/fednl?"]),
        (["--run_dir", "configs/quickstart.yaml"], 1, ["configs/quickstart.yaml is a file; name a folder"]),
        (["--model.net", f"{__name__}.Misspelt"], 1, ["model.net Misspelt", "AttributeError: ", "no attribute 'lin'"]),
        (["--model.method", f"{__name__}.Forgetful"], 1, ["client 0: TypeError: Forgetful.client_update returned"]),
        (["--rouds", "3"], 2, ["--rouds", "did you mean --rounds?"]),
        (["--model.locl_epochs=3"], 2, ["did you mean --model.local_epochs?"]),
        (["--trainer.max_epochs", "3"], 2, ["--rounds"]),
        (["--rounds", "0"], 1, ["rounds must be at least 1, got 0"]),
        (["--trainer.num_sanity_val_steps", "1"], 1, ["must be -1 (evaluate theta_0 on all samples) or 0, got 1"]),
        (["--data.participation", "0.5", "--data.clients_per_round", "3"], 1, ["participation", "clients_per_round"]),
        (["--data.participation", "1.5"], 1, ["participation", "1.5"]),
        (["--model.local_steps", "3"], 1, ["local_epochs", "local_steps", "null"]),
        (["--model.net.num_classes", "3"], 1, ["3 outputs", "digits has 10 classes", "--model.net.num_classes 10"]),
        (["--model.net.in_features", "9"], 1, ["cannot take inputs of shape (1, 8, 8)", "digits"]),
    ],
)
def test_errors_are_few_lines_that_name_the_key_and_the_choices(quickstart, capsys, words, code, expected):
    run = quickstart("--rounds", "1", *words)
    err = capsys.readouterr().err
    assert run.code == code
    assert all(part in err for part in expected), err
    assert len(err.splitlines()) <= 6 and "Traceback" not in err


@pytest.fixture
def below(tmp_path):
    """Words that lay FedPM with lr 0.3, which is no class's default, over the quickstart."""
    method = {"class_path": "fedpm_lightning.methods.FedPM", "init_args": {"lr": 0.3}}
    (tmp_path / "below.yaml").write_text(yaml.safe_dump({"model": {"method": method}}))
    return "--config", "below.yaml"


def test_a_module_that_is_no_python_ends_in_its_file_and_line(quickstart, tmp_path, capsys, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "no_python.py").write_text("def load(:\n")
    assert quickstart("--data.name", "no_python.load").code == 1
    assert "error: invalid syntax (no_python.py, line 1)" in capsys.readouterr().err


def test_no_hyper_parameter_leaks_from_one_method_into_another(quickstart, below):
    """FedAvg chosen by file or by name must not inherit the lr below it."""
    by_file = quickstart(*ONE, *below, "--config", "configs/method/fedavg.yaml", folder="file")
    by_name = quickstart(*ONE, *below, "--model.method", "FedAvg", folder="name")
    assert settings(by_file)["model"]["method"]["init_args"] == PLAIN
    assert settings(by_name)["model"]["method"]["init_args"] == PLAIN


def test_options_lie_over_files_and_classes_are_found_in_any_spelling(quickstart):
    run = quickstart(
        *ONE,
        "--model.method",
        "fedavg",
        "--model.method.lr",
        "0.05",
        "--model.lr_schedule",
        "cosine",
        "--data.partition",
        "dirichlet_clients",
        "--data.partition.alpha",
        "0.7",
    )
    config = settings(run)
    assert run.code == 0
    assert config["model"]["method"]["class_path"].endswith("FedAvg")
    assert config["model"]["method"]["init_args"]["lr"] == 0.05
    assert config["model"]["lr_schedule"]["class_path"].endswith("Cosine")
    assert config["data"]["partition"]["init_args"]["alpha"] == 0.7


def test_the_default_folder_names_experiment_method_and_seed(fedpm, tmp_path):
    words = ("fit", "--config", "configs/quickstart.yaml", *ONE, "--seed_everything", "3", "--run_dir", "null")
    assert fedpm(*words).code == 0
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.startswith("quickstart-fedpm-s3-")


def test_a_run_can_be_evaluated_by_its_folder_alone(quickstart, fedpm, capsys):
    run = quickstart(*ONE)
    capsys.readouterr()
    assert fedpm("test").code == 0
    assert f"test/acc {run.summary['best']['test/acc']:.4f}" in capsys.readouterr().out
    assert fedpm("validate").code == 0
    assert f"val/acc {run.summary['best']['val/acc']:.4f}" in capsys.readouterr().out
    assert fedpm("test", folder="nowhere").code == 2
    assert "has no config.yaml" in capsys.readouterr().err


def test_the_same_command_gives_the_same_run(quickstart):
    first, second = quickstart(*ONE, folder="a"), quickstart(*ONE, folder="b")
    keys = ["train/loss", "val/loss", "val/acc", "test/loss", "test/acc", "comm/up_bytes"]
    assert [first.rows[0][k] for k in keys] == [second.rows[0][k] for k in keys]
    assert first.summary["partition_hash"] == second.summary["partition_hash"]


def test_partition_and_cohorts_do_not_depend_on_the_method(quickstart):
    words = (*ONE, "--data.participation", "0.5")
    pm = quickstart(*words, folder="pm")
    avg = quickstart(*words, "--config", "configs/method/fedavg.yaml", folder="avg")
    assert pm.summary["partition_hash"] == avg.summary["partition_hash"] is not None
    assert pm.summary["initial"] == avg.summary["initial"]


def test_the_learning_rate_follows_the_round(quickstart):
    """A factor of zero from round 2 on: the model stands still."""
    run = quickstart(
        "--rounds",
        "3",
        "--model.local_epochs",
        "1",
        "--model.lr_schedule",
        "Step",
        "--model.lr_schedule.every",
        "1",
        "--model.lr_schedule.gamma",
        "1e-20",
    )
    losses = [row["test/loss"] for row in run.rows]
    assert losses[1] == losses[2] == losses[0]
    assert float(losses[0]) != run.summary["initial"]["test/loss"]


def test_public_names_are_there():
    import fedpm_lightning

    for name in fedpm_lightning.__all__:
        assert getattr(fedpm_lightning, name).__name__ == name
    with pytest.raises(AttributeError, match="FederatedModule"):
        _ = fedpm_lightning.Fedavg


class MyMethod(FedAvg):
    """A user's method that has an lr as well."""

    def __init__(self, lr: float = 0.07) -> None:
        super().__init__(lr)


@pytest.mark.parametrize("layer", ["yaml", "yaml string", "option"])
def test_a_class_of_ones_own_keeps_its_own_defaults_and_name(quickstart, below, tmp_path, layer):
    """Not those of the FedPM below it, whose label is FedPM."""
    path = f"{__name__}.MyMethod"
    method = {"class_path": path} if layer == "yaml" else path
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({"model": {"method": method}}))
    words = ("--model.method", path) if layer == "option" else ("--config", "mine.yaml")
    run = quickstart(*ONE, *below, *words)
    assert run.code == 0
    assert settings(run)["model"]["method"]["init_args"] == {"lr": 0.07}
    assert run.summary["method_label"] == settings(run)["label"] == "MyMethod"


def test_a_label_or_an_argument_given_after_the_class_counts(quickstart):
    run = quickstart(*ONE, "--model.method", "FedAvg", "--label", "mine", "--model.method.lr=0.02")
    assert settings(run)["model"]["method"]["init_args"]["lr"] == 0.02
    assert run.summary["method_label"] == "mine"


def test_evaluation_without_a_run_says_how(fedpm, capsys):
    assert main(["test"]) == 2
    assert "--run_dir runs/NAME" in capsys.readouterr().err


def test_what_lightning_refuses_is_no_traceback(quickstart, capsys):
    assert quickstart(*ONE, "--trainer.limit_val_batches=-1").code == 1
    assert "limit_val_batches" in capsys.readouterr().err


def test_a_class_with_many_arguments_is_chosen_by_name(quickstart):
    """Spelled out with all its defaults it is longer than a file name may be."""
    run = quickstart(*ONE, "--config", "configs/method/fedavg.yaml", "--model.method", "FedPM", "--model.method.lr=0.2")
    assert run.code == 0 and run.summary["method_label"] == "FedPM"
    assert settings(run)["model"]["method"]["init_args"]["lr"] == 0.2


def test_options_win_over_files_wherever_they_stand(fedpm):
    words = ("fit", "--rounds", "1", "--model.method.lr=0.05", "--data.partition.alpha=0.7")
    run = fedpm(*words, "--model.local_epochs=1", "--config", "configs/quickstart.yaml")
    assert run.code == 0 and len(run.rows) == 1
    assert settings(run)["model"]["method"]["init_args"]["lr"] == 0.05 and run.summary["alpha"] == 0.7


@pytest.mark.parametrize("bars", ["true", "false"])
def test_a_start_that_trains_nothing_says_why(quickstart, capsys, bars):
    options = (*ONE, "--trainer.enable_progress_bar", bars)
    assert quickstart(*options, "--trainer.max_time", "00:00:00:00", folder="late").code == 0
    assert "stopped after round 0 of 1: trainer.max_time 00:00:00:00 is over" in capsys.readouterr().out
    assert quickstart(*options).code == 0
    assert "nothing to train" not in capsys.readouterr().out
    assert quickstart(*options).code == 0
    assert "nothing to train: all 1 rounds are done; --rounds N with a greater N goes on" in capsys.readouterr().out


def test_the_configuration_is_written_out_once_a_start(quickstart, monkeypatch):
    """Writing it takes as long as some rounds do."""
    from jsonargparse import ArgumentParser

    dump, texts = ArgumentParser.dump, []
    monkeypatch.setattr(ArgumentParser, "dump", lambda *args, **how: texts.append(text := dump(*args, **how)) or text)
    run = quickstart(*ONE)
    whole = [text for text in texts if "checkpoint_every" in text]
    assert len(whole) == 1 and (run.folder / "config.yaml").read_text() == whole[0]


def test_a_network_of_null_is_told_with_its_file(fedpm, tmp_path, capsys):
    (tmp_path / "null.yaml").write_text("model: {net: null}")
    assert fedpm("fit", "--config", "quickstart", "--config", "null.yaml").code == 2
    assert capsys.readouterr().err.startswith("error: null.yaml: model.net is empty (null)")


def test_a_commands_module_is_loaded_without_looking_for_garbage(tmp_path, monkeypatch):
    (tmp_path / "slow_to_load.py").write_text("import gc\ncollects = gc.isenabled()\n")
    monkeypatch.syspath_prepend(tmp_path)
    frozen = gc.get_freeze_count()
    module = cli.load("slow_to_load")
    assert not module.collects and gc.isenabled() and gc.get_freeze_count() > frozen
    assert cli.load("slow_to_load") is module


@pytest.mark.parametrize(("rank", "line"), [("0", "quickstart: FedPM on digits (loading torch)\n"), ("1", "")])
def test_the_first_line_says_what_will_run_before_torch_is_there(rank, line, capsys, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", rank)
    asked = cli.check(["fit", "--config", "configs/quickstart.yaml"])
    assert asked is not None
    cli.announce(asked)
    assert capsys.readouterr().out == line
