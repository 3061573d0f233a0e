"""The contract: the same checks for every registered method, and what a method must have beside its class."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from inspect import isabstract
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
from fedpm_lightning.methods.registry import MIXED, ORDERS
from fedpm_lightning.preconditioners import Diagonal, Foof, Hessian
from fedpm_lightning.testing import METHOD_CHECKS, MethodCase, advance, largest_difference
from fedpm_lightning.testing.contract import follows_the_schedule
from reference.test_reference import PARTS

REPO = Path(__file__).resolve().parents[2]
CONFIGS = REPO / "configs" / "method"


@dataclass(frozen=True)
class Row(MethodCase):
    """One method of the package.

    Attributes:
        without: The same without what is its own (its correction, its mixing, its memory); None: nothing to remove.
        upload: As in a case; d numbers unless the row says otherwise.
        stackable: Which clients it trains at once; None: as it declares.
    """

    without: Callable[[], Method] | None = None
    upload: Callable[[int, int], float] = lambda d, _: d
    stackable: str | None = "no"


def triangle(d: int) -> int:
    return d * (d + 1) // 2


def sgd(lr: float) -> Callable[[Tensor, Tensor], Tensor]:
    """One step of SGD."""
    return lambda theta, gradient: theta - lr * gradient


SETTINGS = {
    "PSGD": Row(partial(PSGD, lr=0.3)),
    "FedAvg": Row(partial(FedAvg, lr=0.1), step=sgd(0.1), stackable="any"),
    "FedProx": Row(
        partial(FedProx, lr=0.1, mu=0.5),
        without=partial(FedProx, lr=0.1, mu=0.0),
        step=sgd(0.1),
        stackable="any",
    ),
    "SCAFFOLD": Row(
        partial(SCAFFOLD, lr=0.1),
        without=partial(FedAvg, lr=0.1),
        step=sgd(0.1),
        upload=lambda d, _: 2 * d,
        stackable="any",
    ),
    "FedDyn": Row(
        partial(FedDyn, lr=0.1, a=0.5),
        without=partial(FedProx, lr=0.1, mu=0.5),
        step=sgd(0.1),
        stackable="any",
    ),
    "FedNova": Row(  # equal steps here: nothing to remove
        partial(FedNova, lr=0.1), step=sgd(0.1), stackable="any"
    ),
    "FedExP": Row(
        partial(FedExP, lr=0.5, eps=1e-6),
        without=partial(FedAvg, lr=0.5),
        step=sgd(0.5),
        stackable="any",
    ),
    "FedSAM": Row(
        partial(FedSAM, lr=0.1, rho=0.5),
        without=partial(FedSAM, lr=0.1, rho=0.0),
    ),
    "MOON": Row(
        partial(MOON, lr=0.1, mu=5.0),
        without=partial(FedAvg, lr=0.1),
        problem="hidden",
    ),
    "FedNL": Row(
        partial(FedNL, option=1, compressor="identity", mu=0.01),
        without=partial(FedNL, option=1, compressor="identity", mu=0.01, alpha=1e-9),
        upload=lambda d, _: d + 2 * triangle(d),
        problem="logistic",
    ),
    "FedNew": Row(
        partial(FedNew, alpha=0.1, rho=0.1),
        without=partial(FedNew, alpha=0.1, rho=1e-12),
        problem="logistic",
    ),
    "FedNS": Row(
        partial(FedNS, sketch="rows", sketch_rows=12),
        without=partial(FedNS, sketch="identity", sketch_rows=12),
        upload=lambda d, _: d + 12 * d + 1,
        problem="logistic",
    ),
    "LocalNewton": Row(
        partial(LocalNewton, lr=0.3),
        without=partial(LocalNewton, lr=0.3, preconditioner=Foof(damping=1e6)),
        stackable="any",
    ),
    "LTDA": Row(partial(LTDA, lr=0.03)),
    "FedSophia": Row(
        partial(FedSophia, lr=0.05, tau=1),
        without=partial(FedSophia, lr=0.05, tau=1, eps=1e6),
    ),
    "FedMuon": Row(partial(FedMuon, lr=0.05), without=partial(FedMuon, lr=0.05, a=0.0), upload=lambda d, _: 2 * d),
    "FedPAC": Row(  # v, and the triangles of the weight's L (3) and R (6)
        partial(FedPAC, lr=0.05),
        without=partial(FedPAC, lr=0.05, beta=0.0, average=False),
        upload=lambda d, _: 2 * d + triangle(3) + triangle(6),
    ),
    "FedPM": Row(
        partial(FedPM, lr=0.3, preconditioner=Foof(damping=1.0)),
        without=partial(LocalNewton, lr=0.3, preconditioner=Foof(damping=1.0)),
        upload=lambda d, width: d + triangle(width) + 1,
        stackable="any",
    ),
}


def row_of(label: str) -> Row:
    """Return a method's row; one without settings above runs with its defaults, and removes what its parent lacks."""
    kind = getattr(methods, label)
    parent = None if kind.__base__ is Method else kind.__base__
    return SETTINGS.get(label) or Row(kind, without=parent, stackable=None)


CLASSES = [entry.label for entry in methods.METHODS if entry.module]
ROWS = {label: row_of(label) for label in CLASSES}


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
    assert ROWS[name].stackable in (None, ROWS[name].make().stackable)


def test_the_registration_is_what_the_classes_declare():
    """It is read from the sources: a line that it cannot read would be lost."""
    package = REPO / "src" / "fedpm_lightning" / "methods"
    modules = [import_module(f"{methods.__name__}.{file.stem}") for file in package.glob("*.py")]
    found = {cls for module in modules for cls in vars(module).values() if isinstance(cls, type)}
    public = {cls.__name__: cls for cls in found if issubclass(cls, Method) and not isabstract(cls)}
    missing = sorted(public.keys() - set(CLASSES))
    assert not missing, f'{missing}: write `taxonomy = "first order", "parameters"` (or the like) into the class'
    for entry in methods.METHODS:
        assert entry.taxonomy[0] in ORDERS and entry.taxonomy[1] in MIXED, entry
        if entry.module:
            cls = public[entry.label]
            assert cls.taxonomy == entry.taxonomy and cls.look in (None, (entry.colour, entry.marker))
            heir = type("Heir", (cls,), {})
            assert heir.taxonomy == cls.taxonomy and heir.look is None, "another method has another look"
            assert cls.__module__ == f"{methods.__name__}.{entry.module}"


def test_no_method_lacks_its_yaml_its_docs_or_its_reference():
    files = {str(p.relative_to(CONFIGS)): yaml.safe_load(p.read_text()) for p in CONFIGS.rglob("*.yaml")}
    run = {str(_class_path(config)).rpartition(".")[2]: name for name, config in files.items()}
    labels = {config.get("label") for config in files.values()}
    text = (REPO / "docs" / "methods.md").read_text()
    table = {name for row in re.findall(r"^\| ([\w, ]+) \|", text, re.MULTILINE) for name in row.split(", ")}
    sections = {
        name for title in re.findall(r"^## ([\w, ]+)", text, re.MULTILINE) for name in title.strip().split(", ")
    }
    missing: list[str] = []
    for label, module in ((entry.label, entry.module) for entry in methods.METHODS):
        if label not in (run if module else labels):
            missing.append(f"a file of configs/method that runs {label}, with label: {label}")
        if label not in table:
            missing.append(f"docs/methods.md: a row of its table that begins with | {label} |")
        if label not in sections:
            missing.append(f"docs/methods.md: a section ## {label}")
        if module and not any(hasattr(part, label) for part in PARTS):
            missing.append(f"tests/reference: a class {label}, written from its section in docs/methods.md")
    assert not missing, "\n".join(missing)


def _class_path(config):
    method = config["model"]["method"]  # a file that departs from no default holds the class alone
    return method if isinstance(method, str) else method["class_path"]
