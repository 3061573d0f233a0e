"""Help that fits a screen and answers without torch; what it says of a key is what the parser and the classes say."""

from __future__ import annotations

import inspect
import sys
from importlib import import_module

import pytest

from fedpm_lightning.cli import main
from fedpm_lightning.commands.lightning_cli import parser_of
from fedpm_lightning.configuration.class_docs import keys, summary
from fedpm_lightning.configuration.class_sources import choices
from fedpm_lightning.configuration.every_key import GROUPS, every_key
from fedpm_lightning.configuration.experiment_keys import LIGHTNING_KEYS
from fedpm_lightning.configuration.help import help_text, requested_topics
from fedpm_lightning.configuration.keys import BRANCHES, CLASSES, FOLLOWS, REFUSED


def real(path: str) -> type:
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)


@pytest.mark.parametrize(("command", "lines"), [("fit", 90), ("validate", 55), ("test", 55), ("partition", 45)])
def test_help_is_a_screen_or_two_within_the_terminals_width(command, lines, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    assert main([command, "--help"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert 20 < len(shown) <= lines and max(map(len, shown)) <= 110
    assert shown[0].startswith(f"usage: fedpm {command}")


def test_help_on_fit_has_every_key_of_the_experiment_and_all_has_lightnings_too():
    short, everything = help_text("fit", []), help_text("fit", ["all"])
    ours = [key for key in every_key() if not key.startswith("trainer.") and key not in LIGHTNING_KEYS]
    assert [key for key in ours if f"\n  --{key} " not in short] == []
    assert [key for key in every_key() if f"\n  --{key} " not in everything] == []
    assert set(GROUPS["Lightning's Trainer: the usual ones"]) <= set(every_key())


def test_every_key_and_its_default_are_the_parsers():
    """The parser of `fedpm fit` takes the keys that help lists, with those defaults."""
    parser = parser_of("fit")._subparsers._group_actions[0].choices["fit"]  # as argparse holds it
    taken = {action.dest for action in parser._actions if "." in action.dest or action.dest in every_key()}
    taken = {key for key in taken if not key.endswith((".help",)) and key.count(".") < 2} - set(BRANCHES)
    listed = set(every_key()) - {"verbose", "output"}
    assert listed == taken - {*FOLLOWS, *(set(REFUSED) - set(LIGHTNING_KEYS))}
    for name in listed - {"data.partition", "seed_everything"}:
        given = parser.get_default(name)
        default = every_key()[name].default
        assert (default or "null") == ("null" if given is None else str(given).lower()), name


@pytest.mark.parametrize("key", [key for key, spec in CLASSES.items() if spec.base and key != "trainer.logger"])
def test_the_keys_of_a_class_are_its_arguments_with_their_defaults_and_have_a_meaning(key):
    for path in choices(CLASSES[key].modules, CLASSES[key].base).values():
        arguments = {name: one for name, one in inspect.signature(real(path)).parameters.items()
                     if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD) and name != "params"}  # fmt: skip
        if not keys(path) or set(arguments) <= {"args", "kwargs"}:
            continue
        assert [one.name for one in keys(path)] == list(arguments), path
        for one in keys(path):
            default = arguments[one.name].default
            assert (one.default is None) == (default is inspect.Parameter.empty), (path, one)
            if isinstance(default, int | float | None) and default is not inspect.Parameter.empty:
                assert one.default.lower() == {None: "null"}.get(default, str(default).lower()), (path, one)
        if path.startswith("fedpm_lightning."):
            assert summary(path) and [one.name for one in keys(path) if not one.help] == [], path


@pytest.mark.parametrize(
    ("topics", "told"),
    [
        (["method"], ["--model.method (needed)", "  FedPM ", "  FedAvg ", "class of your own"]),
        (["model.net"], ["  ResNet18 "]),
        (["FedPM"], ["--model.method FedPM", "--model.method.mix_damping 0.3", "[float or null]"]),
        (["method", "fedpm"], ["--model.method.preconditioner null"]),
        (["preconditioner", "Foof"], ["--model.method.preconditioner.damping 3.0"]),
        (["data.partition.alpha", "x"], None),
        (["Dropouts"], ["--trainer.callbacks+ Dropouts", "--trainer.callbacks.rate (needed)"]),
        (["local_epochs"], ["--model.local_epochs 5", "[int or null]"]),
        (["message"], ["--model.message null", "--model.message.parameters full", "--model.message.levels 7"]),
        (["fedpm_lightning.methods.FedAvg"], ["--model.method.lr 0.1"]),
    ],
)
def test_a_key_or_a_class_is_told_in_full(topics, told, capsys):
    code = main(["fit", "--help", *topics])
    shown = capsys.readouterr()
    assert code == (0 if told else 2)
    assert all(part in shown.out for part in told or [])


@pytest.mark.parametrize(("topic", "meant"), [("FedPMM", "FedPM"), ("methd", "method"), ("Dropuots", "Dropouts")])
def test_a_mistyped_topic_says_what_may_be_meant(topic, meant, capsys):
    assert main(["fit", "--help", topic]) == 2
    told = capsys.readouterr().err
    assert f"did you mean {meant}?" in told and len(told.splitlines()) == 2


def test_a_class_of_ones_own_is_told_too(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "my_help_part.py").write_text(
        "from fedpm_lightning.methods.base import Method\n\n\n"
        'class Mine(Method):\n    """Mine.\n\n    Args:\n        pull: How hard.\n    """\n\n'
        "    def __init__(self, pull: float = 0.5): ...\n"
    )
    assert main(["fit", "--help", "my_help_part.Mine"]) == 0
    assert "  --model.method.pull 0.5\n        How hard. [float]" in capsys.readouterr().out


def test_what_is_asked():
    assert requested_topics(["--rounds", "3"]) is None
    assert requested_topics(["--rounds", "3", "-h"]) == []
    assert requested_topics(["--help", "method", "FedPM", "--rounds", "3"]) == ["method", "FedPM"]
    assert requested_topics(["--model.method.help=FedPM"]) == ["model.method", "FedPM"]
    assert requested_topics(["--model.method.help", "FedPM"]) == ["model.method", "FedPM"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ["--trainer.callbacks+=Dropuots"],
            "trainer.callbacks: there is no class 'Dropuots'; did you mean Dropouts?",
        ),
        (
            ["--trainer.logger=WandbLoger"],
            "trainer.logger: there is no class 'WandbLoger'; did you mean WandbLogger?",
        ),
        (["--trainer.logger", "wandb"], "did you mean WandbLogger?"),
        (["--model.method", "FedPMM"], "did you mean FedPM?"),
    ],
)
def test_a_mistyped_class_is_told_in_a_line(words, told, capsys):
    assert main(["fit", "--config", "quickstart", *words]) == 2
    shown = capsys.readouterr().err
    assert told in shown and len(shown) < 400 and len(shown.splitlines()) == 2
