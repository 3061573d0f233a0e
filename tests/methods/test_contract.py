"""The contract: one row a method, the same checks for all. A method without a row, a YAML or a docs row is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import torch
import yaml
from torch import nn

from fedpm_lightning import methods
from fedpm_lightning.client.executor import Sequential, Vectorized
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
from fedpm_lightning.schedules import Schedule
from fedpm_lightning.types import LocalWork, wire_bytes
from harness import InMemoryClient, Rounds
from stacks import Side, clients_of, same_update

REPO = Path(__file__).resolve().parents[2]
D, N, SAMPLES = 6, 4, 30


@dataclass(frozen=True)
class Row:
    """One method on small clients.

    Attributes:
        make: The method.
        without: The same without what is its own (its correction, its mixing, its memory); None: nothing to remove.
        yaml: A file in configs/method/ that runs it.
        upload: Numbers a client sends, as a function of the parameters d and (network methods) the layer widths.
        glm: Whether it needs a full Hessian, so that it runs on logistic regression with one output.
        hidden: Whether it needs a hidden layer.
        stackable: Which clients it trains at once.
    """

    make: Callable[[], Method]
    without: Callable[[], Method] | None
    yaml: str
    upload: Callable[[int, int], float]
    glm: bool = False
    hidden: bool = False
    stackable: str = "no"


def triangle(d: int) -> int:
    return d * (d + 1) // 2


ROWS = {
    "PSGD": Row(partial(PSGD, lr=0.3), None, "psgd", lambda d, _: d),
    "FedAvg": Row(partial(FedAvg, lr=0.1), None, "fedavg", lambda d, _: d, stackable="any"),
    "FedProx": Row(
        partial(FedProx, lr=0.1, mu=0.5),
        partial(FedProx, lr=0.1, mu=0.0),
        "fedprox",
        lambda d, _: d,
        stackable="any",
    ),
    "SCAFFOLD": Row(
        partial(SCAFFOLD, lr=0.1), partial(FedAvg, lr=0.1), "scaffold", lambda d, _: 2 * d, stackable="any"
    ),
    "FedDyn": Row(
        partial(FedDyn, lr=0.1, a=0.5), partial(FedProx, lr=0.1, mu=0.5), "feddyn", lambda d, _: d, stackable="any"
    ),
    "FedNova": Row(partial(FedNova, lr=0.1), None, "fednova", lambda d, _: d, stackable="any"),  # equal steps here
    "FedExP": Row(
        partial(FedExP, lr=0.5, eps=1e-6), partial(FedAvg, lr=0.5), "fedexp", lambda d, _: d, stackable="any"
    ),
    "FedSAM": Row(partial(FedSAM, lr=0.1, rho=0.5), partial(FedSAM, lr=0.1, rho=0.0), "fedsam", lambda d, _: d),
    "MOON": Row(partial(MOON, lr=0.1, mu=5.0), partial(FedAvg, lr=0.1), "moon", lambda d, _: d, hidden=True),
    "FedNL": Row(
        partial(FedNL, option=1, compressor="identity", mu=0.01),
        partial(FedNL, option=1, compressor="identity", mu=0.01, alpha=1e-9),
        "convex/fednl",
        lambda d, _: d + 2 * triangle(d),
        glm=True,
    ),
    "FedNew": Row(
        partial(FedNew, alpha=0.1, rho=0.1),
        partial(FedNew, alpha=0.1, rho=1e-12),
        "convex/fednew",
        lambda d, _: d,
        glm=True,
    ),
    "FedNS": Row(
        partial(FedNS, sketch="rows", sketch_rows=12),
        partial(FedNS, sketch="identity", sketch_rows=12),
        "convex/fedns",
        lambda d, _: d + 12 * d + 1,
        glm=True,
    ),
    "LocalNewton": Row(
        partial(LocalNewton, lr=0.3),
        partial(LocalNewton, lr=0.3, preconditioner=Foof(damping=1e6)),
        "local_newton",
        lambda d, _: d,
        stackable="any",
    ),
    "LTDA": Row(partial(LTDA, lr=0.03), None, "ltda", lambda d, _: d),
    "FedSophia": Row(
        partial(FedSophia, lr=0.05, tau=1), partial(FedSophia, lr=0.05, tau=1, eps=1e6), "fedsophia", lambda d, _: d
    ),
    "FedMuon": Row(partial(FedMuon, lr=0.05), partial(FedMuon, lr=0.05, a=0.0), "fedmuon", lambda d, _: 2 * d),
    "FedPAC": Row(  # v, and the triangles of the weight's L (3) and R (6)
        partial(FedPAC, lr=0.05),
        partial(FedPAC, lr=0.05, beta=0.0, average=False),
        "fedpac",
        lambda d, _: 2 * d + triangle(3) + triangle(D),
    ),
    "FedPM": Row(
        partial(FedPM, lr=0.3, preconditioner=Foof(damping=1.0)),
        partial(LocalNewton, lr=0.3, preconditioner=Foof(damping=1.0)),
        "fedpm",
        lambda d, width: d + triangle(width) + 1,
        stackable="any",
    ),
}


def classification_clients(dtype: torch.dtype, glm: bool) -> list[InMemoryClient]:
    """Three classes (two for logistic regression), of which each client sees a different mix."""
    g = torch.Generator().manual_seed(3)
    clients = []
    for k in range(N):
        y = torch.randint(0, 2 if glm else 3, (SAMPLES,), generator=g)
        y[: SAMPLES // 2] = k % (2 if glm else 3)
        centres = torch.randn(3, D, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
        x = centres[y] + torch.randn(SAMPLES, D, generator=g, dtype=torch.float64)
        clients.append(InMemoryClient(k, x.to(dtype), y, None if glm else 10))
    return clients


def start(row: Row, make: Callable[[], Method] | None = None, dtype: torch.dtype = torch.float64) -> Rounds:
    """Put the method on softmax regression with a bias, on logistic regression without one, or on a small MLP."""
    torch.manual_seed(0)
    net = nn.Linear(D, 1, bias=False) if row.glm else nn.Linear(D, 3)
    net = nn.Sequential(nn.Linear(D, 5), nn.Tanh(), nn.Linear(5, 3)) if row.hidden else nn.Sequential(net)
    net = net.to(dtype)
    work = LocalWork(steps=1) if row.glm else LocalWork(epochs=1)
    return Rounds((make or row.make)(), net, classification_clients(dtype, row.glm), work, l2=0.01)


def advance(run: Rounds, rounds: int, cohorts: list[list[int]] | None = None) -> Rounds:
    for r in range(rounds):
        run.step(None if cohorts is None else cohorts[r])
    return run


def pooled_loss(run: Rounds) -> float:
    run.model.load(run.theta, {})
    losses = [run.model.objective(run.model.net(c.x), c.y, run.model.params) for c in run.clients]
    return float(torch.stack(losses).mean().detach())


def same(a: dict, b: dict, tolerance: float = 0.0) -> bool:
    return all(torch.allclose(a[k], b[k], rtol=0, atol=tolerance) for k in a)


every_method = pytest.mark.parametrize("name", ROWS)


@every_method
def test_it_improves_the_pooled_loss(name):
    run = start(ROWS[name])
    before = pooled_loss(run)
    assert pooled_loss(advance(run, 5)) < 0.9 * before


@dataclass
class Half(Schedule):
    def factor(self, round, rounds):
        return 0.5


CURVED = {
    "LocalNewton, hessian": (
        partial(LocalNewton, 0.3, preconditioner=Hessian(damping=10.0, damping_mode="relative")),
        True,
    ),
    "LocalNewton, plain parameters": (partial(LocalNewton, 0.3, preconditioner=Foof(lr_plain=0.1)), False),
    "FedPM, diagonal": (partial(FedPM, 0.3, preconditioner=Diagonal(damping=10.0, damping_mode="relative")), True),
}


@pytest.mark.parametrize("name", [*ROWS, *CURVED])
def test_the_schedule_multiplies_the_learning_rate(name):
    make, glm = CURVED.get(name) or (ROWS[name].make, ROWS[name].glm)
    torch.manual_seed(0)
    net = nn.Linear(D, 1, bias=False) if glm else nn.Sequential(nn.Linear(D, 4), nn.LayerNorm(4), nn.Linear(4, 3))
    net, work, clients = net.double(), LocalWork(steps=1 if glm else 3), classification_clients(torch.float64, glm)
    scheduled, halved = (Rounds(make(), net, clients, work, l2=0.01) for _ in range(2))
    scheduled.federation.lr_schedule = Half()
    halved.method.lr *= 0.5
    if getattr(getattr(halved.method, "preconditioner", None), "lr_plain", None):
        halved.method.preconditioner = Foof(lr_plain=0.05)
    plain = Rounds(make(), net, clients, work, l2=0.01)
    for run in (scheduled, halved, plain):
        advance(run, 2)
    assert same(scheduled.theta, halved.theta, 1e-13) and not same(scheduled.theta, plain.theta, 1e-4)


@every_method
def test_it_is_deterministic(name):
    first, second = advance(start(ROWS[name]), 3), advance(start(ROWS[name]), 3)
    assert same(first.theta, second.theta)


@every_method
def test_the_order_of_clients_changes_nothing(name):
    forward = advance(start(ROWS[name]), 2, [[0, 1, 2, 3]] * 2)
    backward = advance(start(ROWS[name]), 2, [[3, 1, 2, 0]] * 2)
    assert same(forward.theta, backward.theta, 1e-12)


@every_method
def test_what_is_its_own_changes_the_result(name):
    row = ROWS[name]
    if row.without is None:
        assert name in {"PSGD", "FedAvg", "FedNova", "LTDA"}, "say what the method adds"
        return
    ours, plain = advance(start(row), 3), advance(start(row, row.without), 3)
    assert not same(ours.theta, plain.theta, 1e-6)


@every_method
def test_its_state_holds_tensors_and_numbers_only(name, tmp_path):
    """What the frame checkpoints must load with weights_only, and `stateful` must tell the truth."""
    run = advance(start(ROWS[name]), 2)
    kept = any(state for state in run.states.values())
    assert kept == run.method.stateful
    torch.save({"server": run.server, "clients": run.states}, tmp_path / "state.pt")
    loaded = torch.load(tmp_path / "state.pt", weights_only=True)
    assert loaded["clients"].keys() == run.states.keys()


@every_method
def test_uploaded_bytes_are_those_of_the_form_sent(name):
    row = ROWS[name]
    run = advance(start(row), 1)
    d = sum(t.numel() for t in run.theta.values())
    for update in run.updates:
        assert update.wire_bytes == 8 * row.upload(d, D + 1)
        assert update.wire_bytes == sum(wire_bytes(p) for p in (update.params, update.message, update.buffers))


@every_method
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dtype_and_device_are_kept(name, dtype):
    run = advance(start(ROWS[name], dtype=dtype), 2)
    assert {t.dtype for t in run.theta.values()} == {dtype}
    if not ROWS[name].glm:  # the Hessian methods compute and send float64 whatever theta is
        assert all(t.dtype == dtype for u in run.updates for t in u.params.values())
    assert all(not t.requires_grad for t in run.theta.values())


@every_method
def test_stacked_clients_send_what_they_send_alone(name):
    row = ROWS[name]
    assert row.make().stackable == row.stackable
    if row.stackable == "no":
        return
    torch.manual_seed(0)
    net, clients = nn.Linear(D, 3), clients_of(shape=(D,))
    alone, together = (Side(row.make(), net, e, clients).step() for e in (Sequential(), Vectorized(4, row.stackable)))
    assert all(same_update(update, together[client]) for client, update in alone.items())


@every_method
def test_nothing_is_left_behind(name):
    """No hook, no gradient, and no alias between the server's tensors, the clients' network and what is sent."""
    run = advance(start(ROWS[name]), 2)
    nets = (run.net, run.model.net)
    assert all(p.grad is None for net in nets for p in net.parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks for net in nets for m in net.modules())
    server, scratch = ({p.data_ptr() for p in net.parameters()} for net in nets)
    sent = {tensor.data_ptr() for update in run.updates for tensor in update.params.values()}
    assert not (server & scratch or sent & server or sent & scratch)


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
