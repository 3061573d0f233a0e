"""Layers of one size in one call: the same numbers, each layer's own damping, and messages that name the layer."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from fedpm_lightning.client.local_loop import local_loop
from fedpm_lightning.client.local_model import LocalModel
from fedpm_lightning.client.objective import Objective
from fedpm_lightning.curvature.matrices import batched_layers
from fedpm_lightning.curvature.matrices.batched_layers import BatchedSolves, groups
from fedpm_lightning.curvature.matrices.damping import CurvatureError
from fedpm_lightning.curvature.matrices.preconditioner import DensePreconditioner
from fedpm_lightning.curvature.matrices.woodbury import LowRankPreconditioner
from fedpm_lightning.preconditioners import Foof
from fedpm_lightning.preconditioners.foof_optimizer import FOOF


def dense(name: str, d: int, rows: int = 40, delta: float = 0.1, lead: tuple[int, ...] = ()) -> DensePreconditioner:
    X = torch.randn(*lead, rows, d, dtype=torch.float64)
    return DensePreconditioner(name, X.mT @ X / rows, torch.full(lead, delta, dtype=torch.float64))


def gradients(**sizes: tuple[int, ...]) -> dict[str, Tensor]:
    return {name: torch.randn(size, dtype=torch.float64) for name, size in sizes.items()}


@pytest.mark.parametrize("lead", [(), (3,)])
def test_together_is_one_by_one(lead: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    P = {"a": dense("a", 5, lead=lead), "b": dense("b", 7, lead=lead), "c": dense("c", 5, delta=2.0, lead=lead)}
    G = gradients(a=(*lead, 4, 5), b=(*lead, 4, 7), c=(*lead, 4, 5))
    expected = {name: torch.linalg.solve(P[name].dense(), G[name].mT).mT for name in P}
    torch.testing.assert_close(BatchedSolves().solve(P, G), expected)
    torch.testing.assert_close({name: P[name].solve(G[name]) for name in P}, expected)  # and alone, with the same L


def test_only_layers_of_one_size_are_put_together() -> None:
    P = {name: dense(name, 5) for name in "abce"} | {"d": dense("d", 6), "wide": dense("wide", 130, 2)}
    P |= {"as wide": dense("as wide", 130, 2)}
    P |= {"rows": LowRankPreconditioner("rows", torch.randn(2, 5, dtype=torch.float64), torch.tensor(1.0))}
    G = {name: torch.randn(4 if name != "c" else 3, p.d, dtype=torch.float64) for name, p in P.items() if name != "e"}
    assert groups(P, G) == [("a", "b"), ("c",), ("d",), ("wide",), ("as wide",), ("rows",)]
    assert BatchedSolves().solve(P, G).keys() == G.keys()


def test_a_stack_is_made_once_for_the_same_preconditioners(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    original = DensePreconditioner.batched
    monkeypatch.setattr(DensePreconditioner, "batched", lambda parts: made.append(len(parts)) or original(parts))
    P, G, solver = {name: dense(name, 5) for name in "ab"}, gradients(a=(2, 5), b=(2, 5)), BatchedSolves()
    for _ in range(3):
        solver.solve(P, G)
    P["b"] = dense("b", 5)
    torch.testing.assert_close(solver.solve(P, G)["b"], P["b"].solve(G["b"]))
    assert made == [2, 2]
    solver.solve(P | {"c": dense("c", 5)}, G | gradients(c=(2, 5)))
    assert list(solver._stacks) == [("a", "b", "c")], "the stack of two would never be used again"


def test_each_layer_keeps_its_own_damping() -> None:
    P = {"a": dense("a", 5), "flat": dense("flat", 5, rows=2, delta=0.0)}
    BatchedSolves().solve(P, gradients(a=(2, 5), flat=(2, 5)))
    assert float(P["a"].delta) == 0.1
    assert float(P["flat"].delta) > 0


def test_a_failure_names_its_layer() -> None:
    P = {"fine": dense("fine", 3), "broken": dense("broken", 3)}
    P["broken"].factor[0, 0] = math.nan
    with pytest.raises(CurvatureError, match=r"layer 'broken'"):
        BatchedSolves().solve(P, gradients(fine=(2, 3), broken=(2, 3)))


@pytest.mark.parametrize("every", [1, 3])
def test_training_is_the_same_alone_and_together(every: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def trained() -> dict[str, Tensor]:
        torch.manual_seed(0)
        net = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(6, 6), nn.Tanh()))).double()
        model = LocalModel(net, Objective())
        foof = FOOF(
            model.params, model.layers, Foof(cov_every=every, inv_every=every, damping=1.0, max_rows=None), lr=0.3
        )
        batches = [(torch.randn(20, 6, dtype=torch.float64), torch.arange(20) % 6) for _ in range(7)]
        local_loop(model, batches, foof)
        return model.snapshot()

    ours = trained()
    monkeypatch.setattr(batched_layers, "WIDEST", {"cpu": 0})
    torch.testing.assert_close(ours, trained())
