"""The product against a reference that was written from docs/methods.md alone: theta after every round, to 1e-12.

NumPy, float64, its own forward and backward passes; unequal clients of which a part takes part, a cosine schedule,
both executors. Samples, batches, cohorts and theta_0 are the product's.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from reference import aligned, fedavg_variants, first_order, gradient_mixing, parameter_mixing
from reference.network import Array, Network
from reference.product import CONFIGS, ROUNDS, Data, Settings, Task, flat, trained, vector
from reference.rounds import Problem
from reference.tokens import TokenNetwork

SHAPES = {
    "mlp": [(12, 64, True), (8, 12, True), (10, 8, True)],
    "conv": [(1, 54, True)],
    "wide conv": [(5, 50, True)],
    "logistic": [(1, 6, False)],
    "two logits": [(2, 6, True)],
    "small mlp": [(3, 6, True), (2, 3, True)],
}
KERNELS = {"conv": (9, 6, 1, 1), "wide conv": (5, 10, 3, 1)}
NETWORKS = sorted(path.stem for path in CONFIGS.glob("*.yaml"))
CONVEX = sorted(f"convex/{path.stem}" for path in (CONFIGS / "convex").glob("*.yaml"))
GRID = {"lr": 0.3, "momentum": 0.5, "weight_decay": 0.01}
HESSIAN = {"batch_size": 7, "network": "two logits", "local_steps": 3, "damping": 0.3, "damping_mode": "relative"}

PARTS = (first_order, fedavg_variants, aligned, gradient_mixing, parameter_mixing)
EXECUTORS = ("sequential", "vectorized")
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("psgd", {"batch": "one"}),
    ("fedavg", GRID),
    ("fedprox", {**GRID, "mu": 0.7}),
    ("scaffold", {**GRID, "lr": 0.05}),
    ("scaffold", {"server_optimizer": {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.7}}}),
    ("feddyn", {**GRID, "a": 0.5}),
    ("fednova", GRID),
    ("fedexp", {**GRID, "eps": 0.0, "lr": 0.01}),
    ("fedsam", {**GRID, "rho": 0.2}),
    ("fedmuon", {"lr_plain": 0.02, "a": 0.2, "weight_decay": 0.1}),
    ("fedpac", {"optimizer": "muon", "beta": 0.2, "average": False}),
    ("fedpac_sophia", {"every": 2, "weight_decay": 0.1, "average": False}),
    ("moon", {**GRID, "lr": 0.05, "mu": 3.0}),
    ("fedavgm", {"nesterov": True}),
    ("fedadam", {"v0": 0.5}),
    ("ltda", {"weight_decay": 0.02, "max_rows": 2}),
    ("fedsophia", {"tau": 2, "weight_decay": 0.1}),
    ("local_newton", {**GRID, "damping": 1.0}),
    ("local_newton", {"cov_every": 2, "inv_every": 3, "ema": 0.5}),
    ("local_newton", {"cov_every": 1, "inv_every": 4, "local_epochs": 4}),
    ("fedpm_unaligned", {**GRID, "mix_factor": "ema", "inv_every": 3, "cov_every": 1}),
    ("fedpm_unaligned", {"mix_factor": "full_pass", "damping": 1.0, "mix_damping": 0.1}),
    ("fedpm_unaligned", {"mix_factor": "full_pass", "mix_damping": None}),
    ("fedpm_unaligned", {"max_rows": 16, "local_epochs": 3}),
    ("fedpm_unaligned", {"max_rows": 3, "batch_size": 5}),
    ("fedpm_unaligned", {"max_rows": None, "ema": 0.0, "inv_every": 2, "local_epochs": 3}),
    ("fedpm_unaligned", {"max_rows": None, "ema": 1.0, "local_epochs": 5, "cov_every": 3, "inv_every": 3}),
    ("fedpm_unaligned", {"correction": "gradient", "damping": 1.0}),
    ("fedpm_unaligned", {"mix_off_diagonal": 0.5, "mix_damping": None}),
    ("fedpm_unaligned", {"local_step": "sgd", "lr": 0.1, "mix_damping": 0.1}),
    ("fedpm", {"mix_factor": "own", "align": 2.0, "inv_every": 2, "cov_every": 1}),
    ("fedpm", {"align": float("inf"), "damping": 1.0}),
    ("local_newton", {"align": 3.0, "max_rows": None, "cov_every": 2}),
    ("local_newton", {"align": 3.0, "max_rows": 3, "batch_size": 5, "cov_every": 2}),
    ("fedpm", {"max_rows": 3, "batch_size": 5, "cov_every": 2, "inv_every": 2, "mix_off_diagonal": 0.8}),
    ("fedpm", {"max_rows": 3, "batch_size": 5, "align": float("inf")}),
    ("fedpm_kfac", {"mix_tolerance": 1e-15, "cov_every": 1, "ema": 0.5, "mix_damping": 0.1, "momentum": 0.5}),
    ("fedpm_kfac", {"mix_tolerance": 1e-15, "damping_mode": "relative", "damping": 1.0}),
    ("fedpm_unaligned", {"network": "conv", "l2": 0.01}),
    ("fedpm_unaligned", {"network": "conv", "spatial": "sum", "cov_images": 3, "cov_every": 1, "inv_every": 1}),
    ("fedpm_unaligned", {"network": "wide conv", "cov_every": 1}),
    ("fedpm_paper", {"network": "wide conv", "spatial": "sum", "mix_factor": "full_pass"}),
    ("fedpm_paper", {"mix_damping": 0.1}),
    ("fedpm_unaligned", {"network": "tokens", **GRID, "cov_every": 2, "inv_every": 4, "mix_damping": 0.1}),
    ("fedpm_unaligned", {"network": "tokens", "norms": "diagonal", "mix_factor": "full_pass", "l2": 0.01}),
    ("fedpm", {"network": "tokens", "norms": "diagonal", "cov_every": 2, "inv_every": 2, "max_rows": 16}),
    ("local_newton", {"network": "tokens", "norms": "diagonal", "ema": 0.0, "cov_every": 3, "inv_every": 3}),
    ("convex/local_newton", {**HESSIAN, "line_search": True, "lr": 3.0}),
    ("convex/local_newton", {**HESSIAN, "momentum": 0.5, "weight_decay": 0.1, "inv_every": 2}),
    ("convex/local_newton", {**HESSIAN, "network": "small mlp", "l2": 1.0, "damping": 0.1, "lr": 0.1}),
    ("convex/fedpm", {**HESSIAN, "mix_damping": 0.1}),
    ("convex/fedpm", {**HESSIAN, "mix_factor": "full_pass"}),
    ("convex/fedpm", {**HESSIAN, "preconditioner": "Diagonal", "mix_damping": 1.0}),
    ("convex/fedpm", {"preconditioner": "Diagonal", "weighting": "size", "damping": 0.1}),
    ("convex/fedpm_corrected", {"weighting": "size"}),
    ("convex/fednl", {"fresh": False, "weighting": "size"}),
    ("convex/fednl", {"compressor": "top_k", "compressor_level": 5, "option": 2, "norm": "spectral", "fresh": False}),
    ("convex/fednl", {"compressor": "top_k", "compressor_level": 5, "alpha": "bound"}),
    ("convex/fednl", {"compressor": "rand_k", "compressor_level": 5, "alpha": "bound", "mu": 0.05}),
    ("convex/fednl", {"compressor": "powersgd", "compressor_level": 2, "alpha": "kept", "network": "two logits"}),
    ("convex/fednew", {"hessian_every": 0, "weighting": "size"}),
    ("convex/fednew", {"hessian_every": 2, "bits": 4}),
    ("convex/fedns", {"network": "two logits", "weighting": "size"}),
    ("convex/fedns", {"sketch": "srht", "sketch_rows": 9}),
    ("convex/fedns", {"sketch": "rows", "sketch_rows": 12}),
    ("convex/fedns", {"sketch": "count", "sketch_rows": 12}),
]


@pytest.fixture(scope="module")
def binary(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A noisy binary problem of 140 samples as LIBSVM text, whose first feature is mostly 0."""
    rng, path = np.random.default_rng(0), tmp_path_factory.mktemp("reference") / "binary"
    x = rng.normal(size=(140, 6))
    x[rng.random(140) < 0.9, 0] = 0.0
    y = np.sign(x @ rng.normal(size=6) + rng.normal(size=140)).astype(int)
    lines = [f"{label} " + " ".join(f"{j + 1}:{value!r}" for j, value in enumerate(row.tolist()))
             for label, row in zip(y, x, strict=True)]  # fmt: skip
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def settings_of(file: str, changes: dict[str, Any], binary: str) -> Settings:
    """Return one run: the file on its kind of task, and what is changed of either."""
    convex, network = file.startswith("convex/"), changes.get("network", "mlp")
    task: dict[str, Any] = {"data": "digits", "network": network, "batch_size": 7}
    if convex:
        task = {"data": binary, "network": "logistic", "batch_size": None, "l2": 0.01}
    elif network == "small mlp":
        task["data"] = binary
    own = {key: value for key, value in changes.items() if key in ("network", "batch_size", "l2")}
    return Settings(Task(**{**task, **own}), file, {k: v for k, v in changes.items() if k not in own})


def reference(settings: Settings) -> list[Array]:
    """Return theta after every round."""
    method, server = flat(settings.config["method"]), settings.config["server_optimizer"]
    name, l2 = settings.task.network, settings.task.l2
    net = TokenNetwork(l2) if name == "tokens" else Network(SHAPES[name], l2, KERNELS.get(name))
    problem = Problem(net, Data(settings.task.datamodule(), settings.work), settings.config["weighting"] == "size")
    name = method.pop("name")
    kind = next(getattr(part, name) for part in PARTS if hasattr(part, name))
    run, arguments = kind(problem, SimpleNamespace(**method)), flat(server)
    optimizer = first_order.Server(
        arguments.pop("name"), SimpleNamespace(**{"momentum": 0.0, "nesterov": False, **arguments})
    )
    theta, thetas = vector(settings.task.net()), []
    for round in range(ROUNDS):
        theta = optimizer.step(theta, run.target(round, theta))
        thetas.append(theta)
    return thetas


def distance(a: Array, b: Array) -> float:
    """Return the largest difference, relative to the largest entry."""
    return float(np.abs(a - b).max() / np.abs(b).max())


# SOAP's eigenvectors amplify rounding where eigenvalues are close, as those of many constant pixels are; conjugate
# gradients end at the tolerance that they are given.
ALONE = {"fedpac": {"network": "small mlp"}, "fedpm_kfac": {"mix_tolerance": 1e-15}}
ALL = [*((f, ALONE.get(f, {})) for f in NETWORKS + CONVEX), *VARIANTS]


@pytest.mark.parametrize(
    ("file", "changes"), ALL, ids=[f"{f} {','.join(f'{k}={v}' for k, v in c.items())}" for f, c in ALL]
)
def test_a_run_is_reproduced_from_the_page(file: str, changes: dict[str, Any], binary: str) -> None:
    """Under both executors, where the method can be stacked."""
    settings = settings_of(file, changes, binary)
    expected = reference(settings)
    for executor in EXECUTORS:
        found = trained(settings, executor)
        assert found.executor == executor
        for round, (theta, other) in enumerate(zip(found.thetas, expected, strict=True)):
            assert distance(theta, other) < 1e-12, f"{executor}, round {round + 1}"
        if found.stackable == "no":
            return


def test_the_task_is_uneven_and_cohorts_change(binary: str) -> None:
    """Otherwise weights, clients that skip a round, and clients of different step counts would go untested."""
    for task in (Task(binary, "logistic", None), Task("digits", "mlp", 7)):
        data = Data(task.datamodule(), Settings(task, "fedavg", {}).work)
        sizes = {data.size(k) for k in range(data.module.num_clients)}
        cohorts = {tuple(data.cohort(round)) for round in range(ROUNDS)}
        assert len(sizes) > 4 and len(cohorts) == ROUNDS and len(next(iter(cohorts))) == 4


def test_folder_of_configs_is_covered() -> None:
    """Every method file is reproduced."""
    assert len(NETWORKS) >= 13 and len(CONVEX) >= 18
    assert {Path(file).stem for file, _ in ALL} >= {path.stem for path in CONFIGS.rglob("*.yaml")}
