from __future__ import annotations

import pytest

from fedpm_lightning.sweep import SweepError
from fedpm_lightning.sweep.sweep_file import load_sweep

ONE = {"rounds": {"value": 2}}


@pytest.mark.parametrize(
    ("parameters", "keys", "told"),
    [
        ({"rounds": {"valeus": [1]}}, {}, ["parameters.rounds", "values: [..]"]),
        ({"rounds": {"min": 1, "max": "x"}}, {}, ["parameters.rounds", '"x"']),
        (ONE, {"methd": "grid"}, ["methd"]),
        (ONE, {"method": "gird"}, ["gird"]),
        (ONE, {"early_terminate": {"type": "hyperband"}}, ["early_terminate"]),
        (ONE, {"command": ["python", "x.py"]}, ["command", "fedpm"]),
        (ONE, {"command": ["${env}", "fedpm", "fit"]}, ["${args}"]),
        (ONE, {"command": ["${env}", "fedpm", "fit", "${args_no_hyphens}"]}, ["not with ${args_no_hyphens}"]),
        ({"config": {"values": ["a.yaml"]}}, {}, ["config.NAME"]),
        ({"model": {"parameters": {"lr": {"value": 1}}}}, {}, ["dotted keys"]),
        ({"rounds": {"values": [1, 1]}}, {}, ["names a value twice"]),
        ({"x": {"min": 3.0, "max": 1.0}}, {}, ["min 3.0 is not less than max 1.0"]),
        ({"x": {"values": [1, 2], "probabilities": [0.5, 0.2]}}, {}, ["sum to 1"]),
        (ONE, {"method": "bayes", "metric": {"name": "val/acc", "goal": "up"}}, ["up"]),
    ],
)
def test_what_is_wrong_is_told_with_its_place(sweep_file, parameters, keys, told):
    file = sweep_file(parameters, **keys)
    with pytest.raises(SweepError) as error:
        load_sweep(file)
    assert all(part in str(error.value) for part in [str(file), *told]), error.value


@pytest.mark.parametrize("text", ["", "- a\n", "a: [", "\xff"])
def test_a_file_that_is_no_sweep(tmp_path, text):
    file = tmp_path / "s.yaml"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(SweepError, match=r"s\.yaml"):
        load_sweep(file)
    with pytest.raises(SweepError, match="cannot be read"):
        load_sweep(tmp_path / "nothere.yaml")


def test_bayes_without_a_metric(sweep_file, tmp_path):
    file = sweep_file(ONE, method="bayes")
    file.write_text(file.read_text().replace("metric:", "description: x\n#").replace("  name: val/acc", ""))
    file.write_text("\n".join(line for line in file.read_text().splitlines() if "goal" not in line))
    with pytest.raises(SweepError, match="bayes needs one"):
        load_sweep(file)


def test_a_valid_file_is_read(sweep_file):
    read = load_sweep(sweep_file(ONE, name="grid.yaml", run_cap=3))
    assert (read.name, read.method, read.cap) == ("grid", "grid", 3)
    assert read.metric is not None and read.metric.goal == "maximize"
