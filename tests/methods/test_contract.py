"""The contract: one row a method, the same checks for all. A method without a row, a YAML or a docs row is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import yaml
from torch import Tensor

from fedpm_lightning import methods
from fedpm_lightning.methods import (
    LTDA,
    MOON,
    PSGD,
    SCAFFOLD,
    FedAvg,
    FedDyn,
    FedExP,
    FedMuon,
    FedNew,
    FedNL,
    FedNova,
    FedNS,
    FedPAC,
    FedPM,
    FedProx,
    FedSAM,
    FedSophia,
    LocalNewton,
    Method,
)
from fedpm_lightning.preconditioners import Diagonal, Foof, Hessian
from fedpm_lightning.testing import METHOD_CHECKS, MethodCase, advance, largest_difference
from fedpm_lightning.testing.contract import follows_the_schedule

REPO = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Row(MethodCase):
    """One method of the package.

    Attributes:
        without: The same without what is its own (its correction, its mixing, its memory); None: nothing to remove.
        yaml: A file in configs/method/ that runs it.
        stackable: Which clients it trains at once.
    """

    without: Callable[[], Method] | None = None
    yaml: str = ""
    stackable: str = "no"


def triangle(d: int) -> int:
    return d * (d + 1) // 2


def sgd(lr: float) -> Callable[[Tensor, Tensor], Tensor]:
    """One step of SGD."""
    return lambda theta, gradient: theta - lr * gradient


ROWS = {
    "PSGD": Row(partial(PSGD, lr=0.3), yaml="psgd", upload=lambda d, _: d),
    "FedAvg": Row(partial(FedAvg, lr=0.1), step=sgd(0.1), yaml="fedavg", upload=lambda d, _: d, stackable="any"),
    "FedProx": Row(
        partial(FedProx, lr=0.1, mu=0.5),
        without=partial(FedProx, lr=0.1, mu=0.0),
        step=sgd(0.1),
        yaml="fedprox",
        upload=lambda d, _: d,
        stackable="any",
    ),
    "SCAFFOLD": Row(
        partial(SCAFFOLD, lr=0.1),
        without=partial(FedAvg, lr=0.1),
        step=sgd(0.1),
        yaml="scaffold",
        upload=lambda d, _: 2 * d,
        stackable="any",
    ),
    "FedDyn": Row(
        partial(FedDyn, lr=0.1, a=0.5),
        without=partial(FedProx, lr=0.1, mu=0.5),
        step=sgd(0.1),
        yaml="feddyn",
        upload=lambda d, _: d,
        stackable="any",
    ),
    "FedNova": Row(  # equal steps here: nothing to remove
        partial(FedNova, lr=0.1), step=sgd(0.1), yaml="fednova", upload=lambda d, _: d, stackable="any"
    ),
    "FedExP": Row(
        partial(FedExP, lr=0.5, eps=1e-6),
        without=partial(FedAvg, lr=0.5),
        step=sgd(0.5),
        yaml="fedexp",
        upload=lambda d, _: d,
        stackable="any",
    ),
    "FedSAM": Row(
        partial(FedSAM, lr=0.1, rho=0.5),
        without=partial(FedSAM, lr=0.1, rho=0.0),
        yaml="fedsam",
        upload=lambda d, _: d,
    ),
    "MOON": Row(
        partial(MOON, lr=0.1, mu=5.0),
        without=partial(FedAvg, lr=0.1),
        yaml="moon",
        upload=lambda d, _: d,
        problem="hidden",
    ),
    "FedNL": Row(
        partial(FedNL, option=1, compressor="identity", mu=0.01),
        without=partial(FedNL, option=1, compressor="identity", mu=0.01, alpha=1e-9),
        yaml="convex/fednl",
        upload=lambda d, _: d + 2 * triangle(d),
        problem="logistic",
    ),
    "FedNew": Row(
        partial(FedNew, alpha=0.1, rho=0.1),
        without=partial(FedNew, alpha=0.1, rho=1e-12),
        yaml="convex/fednew",
        upload=lambda d, _: d,
        problem="logistic",
    ),
    "FedNS": Row(
        partial(FedNS, sketch="rows", sketch_rows=12),
        without=partial(FedNS, sketch="identity", sketch_rows=12),
        yaml="convex/fedns",
        upload=lambda d, _: d + 12 * d + 1,
        problem="logistic",
    ),
    "LocalNewton": Row(
        partial(LocalNewton, lr=0.3),
        without=partial(LocalNewton, lr=0.3, preconditioner=Foof(damping=1e6)),
        yaml="local_newton",
        upload=lambda d, _: d,
        stackable="any",
    ),
    "LTDA": Row(partial(LTDA, lr=0.03), yaml="ltda", upload=lambda d, _: d),
    "FedSophia": Row(
        partial(FedSophia, lr=0.05, tau=1),
        without=partial(FedSophia, lr=0.05, tau=1, eps=1e6),
        yaml="fedsophia",
        upload=lambda d, _: d,
    ),
    "FedMuon": Row(
        partial(FedMuon, lr=0.05), without=partial(FedMuon, lr=0.05, a=0.0), yaml="fedmuon", upload=lambda d, _: 2 * d
    ),
    "FedPAC": Row(  # v, and the triangles of the weight's L (3) and R (6)
        partial(FedPAC, lr=0.05),
        without=partial(FedPAC, lr=0.05, beta=0.0, average=False),
        yaml="fedpac",
        upload=lambda d, _: 2 * d + triangle(3) + triangle(6),
    ),
    "FedPM": Row(
        partial(FedPM, lr=0.3, preconditioner=Foof(damping=1.0)),
        without=partial(LocalNewton, lr=0.3, preconditioner=Foof(damping=1.0)),
        yaml="fedpm",
        upload=lambda d, width: d + triangle(width) + 1,
        stackable="any",
    ),
}


def halve_both(method: Method) -> None:
    """Halve `lr`, and the rate of parameters without a factor."""
    method.lr *= 0.5
    method.preconditioner = Foof(lr_plain=0.05)


OTHER_CASES = {
    "LocalNewton, hessian": MethodCase(
        partial(LocalNewton, 0.3, preconditioner=Hessian(damping=10.0, damping_mode="relative")), "logistic"
    ),
    "LocalNewton, plain parameters": MethodCase(
        partial(LocalNewton, 0.3, preconditioner=Foof(lr_plain=0.1)), "norm", halve=halve_both
    ),
    **{f"{name}, norm": MethodCase(ROWS[name].make, "norm") for name in ("FedMuon", "FedPAC", "FedPM", "LocalNewton")},
    "FedPM, diagonal": MethodCase(
        partial(FedPM, 0.3, preconditioner=Diagonal(damping=10.0, damping_mode="relative")), "logistic"
    ),
}


@pytest.mark.parametrize("check", METHOD_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", ROWS)
def test_every_method_keeps_the_contract(name, check):
    check(ROWS[name])


@pytest.mark.parametrize("name", OTHER_CASES)
def test_the_schedule_reaches_every_rate(name):
    follows_the_schedule(OTHER_CASES[name])


@pytest.mark.parametrize("name", ROWS)
def test_what_is_its_own_changes_the_result(name):
    row = ROWS[name]
    if row.without is None:
        assert name in {"PSGD", "FedAvg", "FedNova", "LTDA"}, "say what the method adds"
        return
    ours, plain = (advance(row.start(make()), 3).theta for make in (row.make, row.without))
    assert largest_difference(ours, plain) > 1e-6


@pytest.mark.parametrize("name", ROWS)
def test_it_declares_which_clients_are_stacked(name):
    assert ROWS[name].make().stackable == ROWS[name].stackable


def test_no_method_lacks_a_row_a_yaml_or_a_docs_row():
    files = {p.stem for p in (REPO / "src/fedpm_lightning/methods").glob("*.py")} - {"__init__", "base"}
    entries = {entry.label: entry.home for entry in methods.METHODS}
    classes = {label for label, home in entries.items() if home}
    assert {home for home in entries.values() if home} == files
    assert all(issubclass(getattr(methods, label), Method) for label in classes)
    assert classes == ROWS.keys(), "a method is one row of methods.METHODS and one row here"
    labels = {yaml.safe_load(file.read_text()).get("label") for file in (REPO / "configs" / "method").glob("*.yaml")}
    assert set(entries) - classes <= labels, "a row without a module is a file of configs/method"
    docs = (REPO / "docs" / "methods.md").read_text()
    for name, row in ROWS.items():
        config = yaml.safe_load((REPO / "configs" / "method" / f"{row.yaml}.yaml").read_text())
        method = config["model"]["method"]  # a file that departs from no default holds the class alone
        assert (method if isinstance(method, str) else method["class_path"]).endswith(f".{name}")
        assert f"\n## {name}" in docs or f"\n### {name}" in docs, f"docs/methods.md has no section on {name}"
