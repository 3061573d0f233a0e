from __future__ import annotations

import pytest

from fedpm_lightning.words import options, settle, spell


def test_files_come_first_then_named_files_then_classes():
    words = [
        "fit", "--rounds=3", "--model.method.lr", "0.1", "--config.method=m.yaml", "--model.method=FedPM",
        "--config", "base.yaml", "--config.epochs", "e.yaml",
    ]  # fmt: skip
    assert settle(words) == [
        "fit", "--config", "base.yaml", "--config", "e.yaml", "--config", "m.yaml", "--model.method=FedPM",
        "--rounds=3", "--model.method.lr", "0.1",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "words",
    [
        ["fit", "--config", "a.yaml", "--x", "-1", "--y=-1e-3", "--help"],
        [
            "fit",
            "-c",
            "a.yaml",
            "--trainer.callbacks+",
            "X",
            "--trainer.callbacks.at",
            "4",
            "--trainer.callbacks+",
            "Y",
        ],
        ["fit"],
        [],
    ],
)
def test_a_command_line_in_order_stays_as_it_is(words):
    assert settle(words) == words


@pytest.mark.parametrize(
    ("python", "yaml"),
    [
        ("None", "null"),
        ("{'a': None, 'b': True}", '{"a": null, "b": true}'),
        ("[1, None, 'x']", '[1, null, "x"]'),
        ("True", "True"),
        ("[64, 32]", "[64, 32]"),
        ("1e-05", "1e-05"),
        ("NoneOfThese", "NoneOfThese"),
        ("runs/None here", "runs/None here"),
        ("{1, None}", "{1, None}"),
    ],
)
def test_pythons_none_becomes_null(python, yaml):
    assert spell(python) == yaml
    assert settle(["fit", f"--x={python}"]) == ["fit", f"--x={yaml}"]


def test_options_have_names_and_values():
    found = list(options(["--a=1", "--b", "-2", "--c"]))
    assert [(o.name, o.value) for o in found] == [("a", "1"), ("b", "-2"), ("config", None)]
