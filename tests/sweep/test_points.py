from __future__ import annotations

import math
import statistics
from itertools import product

import pytest

from fedpm_lightning.sweep import SweepError
from fedpm_lightning.sweep.check import covering
from fedpm_lightning.sweep.devices import default_jobs, gpus, slot_environment
from fedpm_lightning.sweep.draws import DRAWS, draw
from fedpm_lightning.sweep.points import Point, identity, make_points
from fedpm_lightning.sweep.sweep_file import load_sweep


def test_a_grid_is_the_product_in_wandbs_order(sweep_file, grid):
    points = make_points(load_sweep(sweep_file(grid)))
    keys = sorted(grid)
    values = [grid[key].get("values") or [grid[key]["value"]] for key in keys]
    assert [point.params for point in points] == [dict(zip(keys, v, strict=True)) for v in product(*values)]
    assert [point.index for point in points] == list(range(8)) and len({point.name for point in points}) == 8
    assert points[0].name.startswith("fedavg-alpha0.1-s0-")


def test_the_name_is_the_hash_of_what_is_run(tmp_path):
    file = tmp_path / "m.yaml"
    file.write_text("a: 1\n")

    def name(*words: str) -> str:
        return identity(["fit", "--config", str(file), *words])

    same = name("--seed_everything=1", "--rounds", "3")
    assert same == name("--rounds=3", "--seed_everything", "1"), "neither order nor spelling"
    assert same == name("--rounds=3", "--seed_everything=1", "--trainer.logger=WandbLogger", "--data.root", "X")
    assert name("--data.source=/a/a9a") == name("--data.source", "/b/a9a") != name("--data.source=/a/w8a")
    assert same not in {name("--rounds=4", "--seed_everything=1"), name("--rounds=3", "--seed_everything=2")}
    file.write_text("# a comment\na: 1\n")
    assert same == name("--rounds=3", "--seed_everything=1")
    file.write_text("a: 2\n")
    assert same != name("--rounds=3", "--seed_everything=1"), "a changed file is another run"


def test_points_that_differ_beyond_the_end_of_their_name_stay_apart(sweep_file):
    space = {f"model.method.{'x' * 40}{k}": {"values": [0.1, 0.2]} for k in range(2)}
    space["model.reduce"] = {"values": ["sum", "ordered"]}  # decides last bits only, and stands last
    assert len({point.name for point in make_points(load_sweep(sweep_file(space)))}) == 8


def test_random_points_are_a_function_of_seed_and_index(sweep_file):
    space = {"model.method.lr": {"distribution": "log_uniform_values", "min": 0.01, "max": 1.0}}
    read = load_sweep(sweep_file(space, method="random"))
    few, many = make_points(read, number=3), make_points(read, number=5)
    assert [p.params for p in few] == [p.params for p in many[:3]]
    assert [p.params for p in make_points(read, number=3, seed=1)] != [p.params for p in few]
    assert all(0.01 <= p.params["model.method.lr"] <= 1.0 for p in many)
    with pytest.raises(SweepError, match="--points N"):
        make_points(read)


@pytest.mark.parametrize(
    ("entry", "inside"),
    [
        ({"value": 3}, lambda x: x == 3),
        ({"values": [1, 2]}, lambda x: x in (1, 2)),
        ({"values": [1, 2], "probabilities": [0.0, 1.0]}, lambda x: x == 2),
        ({"min": 1, "max": 3}, lambda x: x in (1, 2, 3)),
        ({"min": 1.0, "max": 3}, lambda x: 1 <= x <= 3 and isinstance(x, float)),
        ({"distribution": "q_uniform", "min": 0, "max": 9, "q": 3}, lambda x: x in (0, 3, 6, 9)),
        ({"distribution": "q_log_uniform_values", "min": 1, "max": 9, "q": 0.5}, lambda x: (2 * x).is_integer()),
        ({"distribution": "normal", "mu": 0.0, "sigma": 1.0}, math.isfinite),
    ],
)
def test_distributions(entry, inside):
    assert all(inside(draw("x", entry, 0, index)) for index in range(50))


def test_log_uniform_is_uniform_in_the_logarithm():
    """n = 4,000, three standard errors of the share below the geometric mean; uniform draws would have 0.09."""
    entry = {"distribution": "log_uniform_values", "min": 0.01, "max": 1.0}
    below = sum(draw("x", entry, 0, index) < 0.1 for index in range(4000)) / 4000
    assert abs(below - 0.5) < 3 * 0.5 / math.sqrt(4000)


def test_parameters_of_one_point_are_drawn_apart():
    """n = 2,000, three standard errors of a correlation of zero."""
    entry = {"min": 0.0, "max": 1.0}
    one, two = ([draw(name, entry, 0, index) for index in range(2000)] for name in ("a", "b"))
    assert abs(statistics.correlation(one, two)) < 3 / math.sqrt(2000)


def test_an_option_that_the_sweep_varies_makes_points_of_their_own(sweep_file):
    """It changes no figure, but the sweep asks for both."""
    read = load_sweep(sweep_file({"model.executor": {"values": ["sequential", "vectorized"]}}))
    assert len(make_points(read)) == 2


def test_a_distribution_that_cannot_be_drawn_names_those_that_can():
    with pytest.raises(SweepError, match="log_uniform_values"):
        draw("x", {"distribution": "beta"}, 0, 0)
    assert "beta" not in DRAWS


def test_a_grid_over_a_range_says_what_to_do(sweep_file):
    with pytest.raises(SweepError, match="--method random"):
        make_points(load_sweep(sweep_file({"x": {"min": 0.0, "max": 1.0}})))


def test_an_option_for_every_run_must_not_overwrite_a_parameter(sweep_file):
    with pytest.raises(SweepError, match="--rounds is a parameter"):
        make_points(load_sweep(sweep_file({"rounds": {"values": [1, 2]}})), ["--rounds=5"])


def test_a_few_points_show_every_value(sweep_file, grid):
    grid["model.method.lr"] = {"values": [0.1, 0.2, 0.3]}
    grid["seed_everything"] = {"values": list(range(20))}
    points = make_points(load_sweep(sweep_file(grid)))
    chosen = list(covering(points))
    assert len(points) == 240 and len(chosen) < 40
    for key in grid:
        assert {str(p.params[key]) for p in chosen} == {str(p.params[key]) for p in points}
    pairs = {(p.params["config.method"], p.params["model.method.lr"]) for p in chosen}
    assert len(pairs) == 6, "an argument of a class with every class"


def test_jobs_share_gpus_and_cores(monkeypatch):
    assert gpus({"CUDA_VISIBLE_DEVICES": "2,5"}) == ["2", "5"] and gpus({"CUDA_VISIBLE_DEVICES": ""}) == []
    assert default_jobs(["2", "5"]) == 2
    monkeypatch.setattr("fedpm_lightning.sweep.devices.cores", lambda: 8)
    assert slot_environment(2, 4, ["2", "5"], {}) == {"FEDPM_JOBS": "4", "CUDA_VISIBLE_DEVICES": "2"}
    assert slot_environment(1, 16, [], {}) == {"FEDPM_JOBS": "16"}
    assert slot_environment(1, 2, [], {"OMP_NUM_THREADS": "7"}) == {"FEDPM_JOBS": "2"}


def test_a_point_of_an_older_sweep_is_read():
    point = Point(0, "fedavg", {"rounds": 3}, ["fit", "--rounds=3"])
    assert Point.from_json(point.to_json()) == point
    assert Point.from_json(point.to_json().replace('"arguments"', '"words"')) == point
