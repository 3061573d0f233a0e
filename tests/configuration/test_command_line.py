from __future__ import annotations

import pytest

from fedpm_lightning.configuration import ConfigurationError
from fedpm_lightning.configuration.command_line import options, ordered_options, python_to_yaml


def test_files_come_first_then_named_files_then_classes():
    words = [
        "--rounds=3", "--model.method.lr", "0.1", "--config.method=m.yaml", "--model.server_optimizer=SGD",
        "--model.method=FedPM", "--config", "base.yaml", "--config.epochs", "e.yaml", "--config=z.yaml",
    ]  # fmt: skip
    assert ordered_options(words) == [
        ("config", "base.yaml"), ("config", "z.yaml"), ("config", "e.yaml"), ("config", "m.yaml"),
        ("model.method", "FedPM"), ("model.server_optimizer", "SGD"), ("rounds", "3"), ("model.method.lr", "0.1"),
    ]  # fmt: skip


def test_a_command_line_in_order_stays_as_it_is():
    words = ["-c", "a.yaml", "--x", "-1", "--y=-1e-3", "--trainer.callbacks+", "X", "--trainer.callbacks+", "Y"]
    pairs = [
        ("config", "a.yaml"),
        ("x", "-1"),
        ("y", "-1e-3"),
        ("trainer.callbacks+", "X"),
        ("trainer.callbacks+", "Y"),
    ]
    assert ordered_options(words) == pairs and ordered_options([]) == []


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["rounds=3"], "'rounds=3' is no option"),
        (["--rounds"], "--rounds needs a value"),
        (["--label", "two", "words"], "'words' after --label"),
        (["--label=a", "b"], "'b' after --label"),
    ],
)
def test_words_that_are_no_options_are_refused(words, told):
    with pytest.raises(ConfigurationError, match=told):
        ordered_options(words)


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
    assert python_to_yaml(python) == yaml
    assert ordered_options([f"--x={python}"]) == [("x", yaml)]


def test_options_have_names_and_values():
    found = list(options(["--a=1", "--b", "-2", "--c"]))
    assert [(o.name, o.value) for o in found] == [("a", "1"), ("b", "-2"), ("config", None)]
