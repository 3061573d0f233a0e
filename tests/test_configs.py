"""Every YAML file in configs/ runs, and a method file says what departs from its method's defaults."""

from __future__ import annotations

import inspect
import json
import math
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import yaml

from fedpm_lightning.callbacks.base import Aggregation
from fedpm_lightning.cli import main
from fedpm_lightning.configuration.class_sources import arguments
from fedpm_lightning.configuration.read import read
from resume_parts import torn_and_gone_on

CONFIGS = Path(__file__).resolve().parent.parent / "configs"
ALL = sorted(path.relative_to(CONFIGS).as_posix() for path in CONFIGS.rglob("*.yaml"))
NETWORK_METHODS = sorted(path.stem for path in (CONFIGS / "method").glob("*.yaml"))
METHOD_FILES = sorted(path.relative_to(CONFIGS).as_posix() for path in (CONFIGS / "method").rglob("*.yaml"))
CONVEX = sorted(path.stem for path in (CONFIGS / "method" / "convex").glob("*.yaml"))
IMAGES = ("cifar10_cnn.yaml", "cifar10_vit.yaml", "cifar100_resnet18.yaml")


def leaves(tree, path=""):
    """Return a configuration's values by their dotted keys."""
    if not isinstance(tree, dict):
        return {path: str(tree)}
    return {key: value for name, part in tree.items() for key, value in leaves(part, f"{path}.{name}").items()}


def test_every_file_is_run_by_a_test_below():
    tasks = {"quickstart.yaml", "shakespeare.yaml", *IMAGES, "a9a.yaml", "w8a.yaml"}
    covered = {"diagnostics.yaml", "privacy.yaml", *tasks, *METHOD_FILES}
    others = {name for name in ALL if name.split("/")[0] in {"trial", "paper", "message"}}
    assert set(ALL) <= covered | others


@pytest.mark.parametrize("name", NETWORK_METHODS)
def test_method_files_train_digits_and_go_on_bit_for_bit(quickstart, name):
    words = ("--config", f"configs/method/{name}.yaml", "--model.local_epochs", "1", "--data.participation", "0.7")
    run = torn_and_gone_on(quickstart, *words)
    assert run.summary["final"]["test/loss"] < run.summary["initial"]["test/loss"]


@pytest.mark.parametrize("name", sorted(n for n in ALL if n.startswith("message/")))
def test_message_files_train_aligned_fedpm_on_fewer_bytes_and_go_on_bit_for_bit(quickstart, name):
    run = torn_and_gone_on(
        quickstart, "--config", "configs/method/fedpm.yaml", "--config", f"configs/{name}",
        "--model.local_epochs", "1", "--data.participation", "0.7",
    )  # fmt: skip
    assert run.summary["final"]["test/loss"] < run.summary["initial"]["test/loss"]
    clients, weights = 2 * 7, 4 * 26_122
    bound = 1.5 if "bfloat16" in name else 1.0
    assert float(run.rows[1]["comm/up_bytes"]) < bound * clients * weights


@pytest.mark.parametrize("name", sorted(IMAGES))
def test_image_configs_run(fedpm, tmp_path, tiny_cifar, name):
    source = tiny_cifar[name[:8]]
    narrow = ("--model.net.width", "8") if "resnet" in name else ()
    run = fedpm(
        "fit",
        "--config",
        f"configs/{name}",
        "--data.source",
        str(source),
        "--data.root",
        str(tmp_path),
        "--rounds",
        "1",
        "--model.local_epochs",
        "1",
        "--data.num_clients",
        "2",
        "--data.participation",
        "1.0",
        *narrow,
    )
    assert run.code == 0 and len(run.rows) == 1
    classes = 100 if "100" in name else 10
    assert np.array(json.loads((run.folder / "partition.json").read_text())["histogram"]).shape == (2, classes)
    assert math.isfinite(float(run.rows[0]["train/loss"]))
    assert run.rows[0]["test/loss"] != str(run.summary["initial"]["test/loss"]), "theta has moved"


@pytest.mark.parametrize("name", sorted(n for n in ALL if n.startswith("trial/")))
def test_trial_configs_lie_over_their_base(fedpm, tmp_path, tiny_cifar, name):
    source = tiny_cifar["cifar10_"]
    run = fedpm(
        "fit",
        "--config",
        "configs/cifar10_cnn.yaml",
        "--config",
        f"configs/{name}",
        "--data.source",
        str(source),
        "--data.root",
        str(tmp_path),
        "--rounds",
        "1",
        "--data.limit_train",
        "20",
        "--data.limit_test",
        "20",
        "--data.num_clients",
        "2",
    )
    assert run.code == 0
    written, asked = (yaml.safe_load(file.read_text()) for file in (run.folder / "config.yaml", CONFIGS / name))
    smaller = {".rounds", ".data.limit_train", ".data.limit_test", ".data.num_clients"}
    assert {k: v for k, v in leaves(asked).items() if k not in smaller}.items() <= leaves(written).items()


@pytest.mark.parametrize("name", CONVEX)
def test_convex_method_files_come_closer_and_go_on_bit_for_bit(fedpm, tmp_path, tiny_libsvm, name):
    run = torn_and_gone_on(
        fedpm, "fit", "--config", "configs/a9a.yaml", "--config", f"configs/method/convex/{name}.yaml",
        "--data.name", "libsvm", "--data.source", str(tiny_libsvm), "--data.num_clients", "4",
        "--data.partition.clients_size", "15", "--data.clients_per_round", "3", "--model.net.in_features", "20",
        "--model.l2", "0.1", "--data.root", str(tmp_path),
    )  # fmt: skip
    assert float(run.rows[1]["opt/distance"]) < run.summary["initial"]["opt/distance"]


def departures(node, where):
    """Yield every argument of a class, and of the classes inside of it, with the class's default."""
    module, _, name = node["class_path"].rpartition(".")
    parameters = inspect.signature(getattr(import_module(module), name)).parameters
    for key, value in (node.get("init_args") or {}).items():
        yield f"{where}.{key}", value, parameters[key].default
        if isinstance(value, dict):
            yield from departures(value, f"{where}.{key}")


@pytest.mark.parametrize("name", METHOD_FILES)
def test_a_method_file_states_what_departs_from_the_defaults_and_no_more(name):
    config = yaml.safe_load((CONFIGS / name).read_text())
    assert "label" in config and {"weighting", "server_optimizer"} <= config["model"].keys()
    for branch in ("method", "server_optimizer"):
        node = config["model"][branch]
        stated = departures(node, f"{name}: {branch}") if isinstance(node, dict) else ()
        assert [key for key, value, default in stated if value == default] == []


@pytest.mark.parametrize("name", METHOD_FILES)
def test_a_method_file_means_the_same_over_any_other(name, tmp_path):
    """No value of the file below stays in force, silently: of the same class, of another, or beside it."""
    own = yaml.safe_load((CONFIGS / name).read_text())["model"]["method"]
    path = own if isinstance(own, str) else own["class_path"]
    first = (arguments(path) or ("lr",))[0]
    other = {"class_path": path, "init_args": {first: 123}}
    below = {"label": "below", "model": {"method": other, "server_optimizer": "torch.optim.SGD"}}
    (tmp_path / "below.yaml").write_text(yaml.safe_dump(below))
    file = ("--config", str(CONFIGS / name))
    alone, over = read(["fit", *file]).values, read(["fit", "--config", str(tmp_path / "below.yaml"), *file]).values
    assert alone == over


def test_the_diagnostics_lie_over_a_network(quickstart):
    run = quickstart("--config", "configs/diagnostics.yaml", "--rounds", "1", "--model.local_epochs", "1")
    groups = {key.split("/")[0] for key, value in run.rows[0].items() if value}
    assert run.code == 0 and {"drift", "precond", "damping", "clients_acc", "time", "test"} <= groups
    assert (run.folder / "clients_acc.csv").is_file()


def test_the_diagnostics_lie_over_a_convex_task_beside_its_own_callbacks(fedpm, tmp_path, tiny_libsvm, capsys):
    run = fedpm(
        "fit", "--config", "configs/a9a.yaml", "--config", "configs/diagnostics.yaml", "--data.name", "libsvm",
        "--data.source", str(tiny_libsvm), "--data.num_clients", "4", "--data.partition.clients_size", "15",
        "--model.net.in_features", "20", "--rounds", "2", "--data.root", str(tmp_path),
    )  # fmt: skip
    assert run.code == 0 and float(run.rows[1]["opt/gap"]) < float(run.rows[0]["opt/gap"])
    assert 0 < float(run.rows[1]["precond/drift"]) == pytest.approx(float(run.rows[1]["precond/drift/theta"]))
    assert "no test split is evaluated here (none)" in capsys.readouterr().out


def test_the_frame_aggregates_once_a_round(quickstart, monkeypatch):
    counts: list[int] = []
    original = Aggregation.aggregate

    def counted(self, round):
        counts.append(round.number)
        return original(self, round)

    monkeypatch.setattr(Aggregation, "aggregate", counted)
    assert quickstart("--rounds", "2", "--model.local_epochs", "1").code == 0
    assert counts == [0, 1]


@pytest.mark.parametrize("name", sorted(n for n in ALL if n.startswith("paper/test1_")))
def test_paper_configs_lie_over_their_base(fedpm, tmp_path, tiny_libsvm, name):
    base = next(base for base in ("a9a", "w8a") if base in name)
    run = fedpm(
        "fit", "--config", f"configs/{base}.yaml", "--config", f"configs/{name}", "--data.name", "libsvm",
        "--data.source", str(tiny_libsvm), "--data.num_clients", "4", "--data.partition.clients_size", "15",
        "--model.net.in_features", "20", "--rounds", "2", "--data.root", str(tmp_path),
    )  # fmt: skip
    assert run.code == 0 and float(run.rows[-1]["opt/distance"]) < run.summary["initial"]["opt/distance"]


@pytest.mark.parametrize("name", sorted(n for n in ALL if n.startswith("paper/epochs/")))
def test_the_epoch_files_make_500_epochs(quickstart, name):
    config = yaml.safe_load((CONFIGS / name).read_text())
    assert config["rounds"] * config["model"]["local_epochs"] == 500
    assert Path(name).stem == f"{config['rounds']}x{config['model']['local_epochs']}"
    run = quickstart("--config", f"configs/{name}", "--config", "configs/method/fedavg.yaml", "--rounds", "1")
    assert run.code == 0 and run.summary["local_epochs"] == config["model"]["local_epochs"]


SMALL_TEXT = ("--data.num_clients", "3", "--data.clients_per_round", "2", "--model.local_steps", "2",
              "--model.net.width", "16", "--model.net.mlp_width", "16", "--data.limit_test", "50")  # fmt: skip


@pytest.mark.parametrize("method", ["fedpm"])
def test_the_text_config_trains_and_goes_on_bit_for_bit(fedpm, tiny_play, tmp_path, method):
    """Next characters by role: perplexity is a column, a figure to compare by, and what callbacks may watch."""
    watch = ["--trainer.callbacks", "EarlyStopping", "--trainer.callbacks.monitor", "val/perplexity"]
    run = torn_and_gone_on(
        fedpm, "fit", "--config", "configs/shakespeare.yaml", "--config", f"configs/method/{method}.yaml",
        "--data.source", str(tiny_play), "--data.stride", "20", "--data.val_fraction", "0.2", *SMALL_TEXT, *watch,
    )  # fmt: skip
    for row in (run.summary["initial"], {key: float(value) for key, value in run.rows[-1].items()}):
        assert row["test/perplexity"] == pytest.approx(math.exp(row["test/loss"]), rel=1e-6)
    assert run.summary["final"]["test/perplexity"] < run.summary["initial"]["test/perplexity"]
    assert json.loads((run.folder / "partition.json").read_text())["names"] == ["FIRST WITCH", "Nurse", "ROMEO"]
    found = tmp_path / "table.csv"
    words = ["compare", str(run.folder), "--metric", "test/perplexity", "--at", "best", "--format", "csv"]
    assert main([*words, "--output", str(found)]) == 0
    assert str(run.summary["best"]["test/perplexity"])[:8] in found.read_text()


def test_words_that_a_text_does_not_have_end_in_one_line(fedpm, tiny_play, capsys):
    words = ["fit", "--config", "configs/shakespeare.yaml", "--data.source", str(tiny_play)]
    assert fedpm(*words).code == 1
    assert "the source names 4 clients but num_clients is 20; set data.num_clients to 4" in capsys.readouterr().err
    images = ["fit", "--config", "configs/quickstart.yaml", "--trainer.callbacks", "EarlyStopping"]
    assert fedpm(*images, "--trainer.callbacks.monitor", "val/perplexity").code == 1
    assert "monitors val/perplexity, which no round of this run records" in capsys.readouterr().err
