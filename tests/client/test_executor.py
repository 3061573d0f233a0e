"""Stacked clients give what clients one after another give: the same updates, states and bytes, on unequal clients."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from fedpm_lightning.client.choose_executor import CHUNK_BYTES, LARGEST_CHUNK, chunk_size
from fedpm_lightning.client.executor import Sequential, Vectorized
from fedpm_lightning.client.faults import is_finite
from fedpm_lightning.client.stack_check import why_not_stacked
from fedpm_lightning.client.stacked_client import StackedUpdate
from fedpm_lightning.curvature.factors.unequal_batches import Part, UnequalPreconditioner
from fedpm_lightning.curvature.matrices.preconditioner import DensePreconditioner
from fedpm_lightning.data import FeatureShift
from fedpm_lightning.errors import BadClientError, DivergedClientError
from fedpm_lightning.methods import SCAFFOLD, FedAvg, FedPM, FedProx, FedSophia, LocalNewton
from fedpm_lightning.preconditioners import Diagonal, Foof, Hessian
from fedpm_lightning.testing.stacks import UNEQUAL, ExecutorRounds, clients_of, close, same_update
from fedpm_lightning.types import ClientUpdate, LocalWork


def relative(damping=10.0, **settings):
    """The full Hessian with a damping of ten times its mean curvature."""
    return Hessian(damping, "relative", **settings)


METHODS = {
    "FedAvg": partial(FedAvg, 0.1),
    "FedAvg, momentum and decay": partial(FedAvg, 0.05, momentum=0.9, weight_decay=0.01),
    "FedProx": partial(FedProx, 0.1, momentum=0.5, mu=0.3),
    "SCAFFOLD": partial(SCAFFOLD, 0.05, momentum=0.5, weight_decay=0.01),
    "LocalNewton": partial(LocalNewton, 0.1, momentum=0.5, weight_decay=0.01, preconditioner=Foof(damping=1.0)),
    "LocalNewton, cov_every": partial(LocalNewton, 0.1, preconditioner=Foof(damping=1.0, cov_every=2)),
    "FedPM": partial(FedPM, 0.1, preconditioner=Foof(damping=1.0)),
    "FedPM, last batch": partial(FedPM, 0.1, mix_damping=None, preconditioner=Foof(damping=1.0, ema=0.0)),
    "FedPM, inv_every": partial(FedPM, 0.1, momentum=0.5, preconditioner=Foof(damping=1.0, inv_every=3)),
    "FedPM, inv_every, ema": partial(FedPM, 0.1, mix_factor="ema", preconditioner=Foof(damping=1.0, inv_every=3)),
    "FedPM, dense": partial(FedPM, 0.1, preconditioner=Foof(damping=1.0, cov_every=2, inv_every=4, max_rows=None)),
    "FedPM, every step, every eighth": partial(
        FedPM, 0.1, preconditioner=Foof(damping=1.0, cov_every=1, inv_every=8, max_rows=None)
    ),
    "FedPM, every second, every eighth": partial(
        FedPM, 0.1, preconditioner=Foof(damping=1.0, cov_every=2, inv_every=8, max_rows=None)
    ),
    "FedPM, every fourth, every eighth": partial(
        FedPM, 0.1, preconditioner=Foof(damping=1.0, cov_every=4, inv_every=8, max_rows=None)
    ),
    "FedPM, few rows": partial(FedPM, 0.1, preconditioner=Foof(damping=1.0, cov_every=3, inv_every=3, max_rows=9)),
    "FedPM, few images": partial(FedPM, 0.1, preconditioner=Foof(damping=1.0, cov_every=1, inv_every=1, cov_images=4)),
    "FedPM, both": partial(FedPM, 0.1, preconditioner=Foof(damping=1.0, cov_every=2, inv_every=3, spatial="sum")),
}


def logistic(seed=0):
    torch.manual_seed(seed)
    return nn.Linear(6, 3)


def mlp(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 40), nn.Tanh(), nn.Linear(40, 3))


def cnn(seed=0):
    torch.manual_seed(seed)
    norm, convolution = nn.GroupNorm(2, 4), nn.Conv2d(4, 4, 3, groups=2)
    return nn.Sequential(nn.Conv2d(1, 4, 3), norm, nn.ReLU(), convolution, nn.Flatten(), nn.Linear(64, 3))


def logit(seed=0):
    torch.manual_seed(seed)
    return nn.Linear(6, 1)


def wide_logit(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(6, 1, bias=False))


NETS = {
    "logit": (logit, (6,)),
    "wide logit": (wide_logit, (2, 3)),
    "logistic": (logistic, (6,)),
    "mlp": (mlp, (6,)),
    "cnn": (cnn, (1, 8, 8)),
}


@pytest.fixture(autouse=True)
def float64():
    """Images become floats of the default type."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def both(method, net="mlp", chunk=100, sizes=UNEQUAL, rounds=2, batch_size=7, partition=None, classes=3, **settings):
    """Run rounds under both executors and compare all that leaves the clients; return the stacked side."""
    make, shape = NETS[net]
    clients = clients_of(sizes, shape, batch_size, classes, partition)
    one = ExecutorRounds(method(), make(), Sequential(), clients, **settings)
    stacked = Vectorized(chunk, method().stackable)
    many = ExecutorRounds(method(), make(), stacked, clients, **settings)
    for _ in range(rounds):
        alone, together = one.step(), many.step()
        assert alone.keys() == together.keys() == set(range(len(sizes)))
        for client, update in alone.items():
            assert same_update(update, together[client]), (client, sizes[client])
        assert close(one.store.state_dict(), many.store.state_dict())
        assert close(one.theta, many.theta)
    assert not many.said, "a chunk was trained one after another"
    return many


@pytest.mark.parametrize("net", ["logistic", "mlp"])
@pytest.mark.parametrize("method", METHODS)
def test_updates_states_and_bytes_are_the_same(method, net):
    both(METHODS[method], net)


@pytest.mark.parametrize("method", ["FedAvg, momentum and decay", "SCAFFOLD", "FedPM", "FedPM, both"])
def test_also_with_convolutions_group_norm_and_augmented_images(method):
    both(METHODS[method], "cnn", sizes=(16, 3, 9, 15), rounds=1)


@pytest.mark.parametrize("chunk", [1, 3])
@pytest.mark.parametrize("method", ["FedAvg, momentum and decay", "SCAFFOLD", "FedPM"])
def test_the_size_of_a_chunk_changes_nothing(method, chunk):
    both(METHODS[method], chunk=chunk)


@pytest.mark.parametrize("work", [LocalWork(epochs=3), LocalWork(steps=1), LocalWork(steps=7)])
@pytest.mark.parametrize("method", ["FedAvg", "FedPM"])
def test_any_amount_of_work(method, work):
    both(METHODS[method], work=work, l2=0.1)


def test_equal_clients_are_not_masked():
    both(METHODS["FedPM"], sizes=(14,) * 4)


NEWTON = {
    "LocalNewton": partial(
        LocalNewton,
        momentum=0.5,
        weight_decay=0.01,
        preconditioner=relative(inv_every=2),
    ),
    "FedPM": partial(FedPM, 1.0, mix_damping=None, preconditioner=Hessian()),
    "FedPM, damping": partial(FedPM, 0.5, preconditioner=relative(damping=0.1)),
    "FedPM, diagonal": partial(FedPM, 0.1, preconditioner=Diagonal(1.0, "relative")),
}


@pytest.mark.parametrize("work", [LocalWork(steps=1), LocalWork(steps=3), LocalWork(epochs=2)])
@pytest.mark.parametrize("method", NEWTON)
def test_one_product_gives_the_hessians_of_all_clients(method, work):
    for net, batch_size in (("logit", None), ("wide logit", 7)):
        # 15 samples a client are batches of 7 and 8; a client of another size goes with its like, or alone.
        sizes = (15,) * 5 + (8, 21, 8)
        side = both(NEWTON[method], net, sizes=sizes, batch_size=batch_size, work=work, classes=2, l2=0.1, chunk=4)
        assert why_not_stacked(side.local(), side.method.stackable, side.clients[0]) is None


def test_a_hessian_that_is_not_definite_raises_the_damping_of_its_client_alone(caplog):
    # Without l2 the three samples of a client span three of seven dimensions; a client of zeros has no Hessian at all.
    clients = clients_of((3, 3, 9, 9), classes=2, batch_size=None)
    sides = [ExecutorRounds(NEWTON["FedPM"](), logit(), ex, clients) for ex in (Sequential(), Vectorized(4, "alike"))]
    P = [{k: u.message["P"]["theta"] for k, u in side.step().items()} for side in sides]
    deltas = [[float(P_k.delta) for _, P_k in sorted(own.items())] for own in P]
    assert deltas[0] == pytest.approx(deltas[1], rel=1e-9)
    assert deltas[0][0] > 0 and deltas[0][2] == 0.0 and not sides[1].said


def test_chunks_of_hessians_fit_into_their_bytes():
    side = ExecutorRounds(NEWTON["FedPM"](), logit(), Sequential(), clients_of(classes=2))
    local, d = side.local(), 7
    assert chunk_size(local) == LARGEST_CHUNK
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(CHUNK_BYTES, "cpu", 8 * (3 * d**2 + 4 * d) * 5)
        assert chunk_size(local) == 5


def test_every_size_of_a_client_beside_every_other():
    both(METHODS["FedAvg"], sizes=tuple(range(1, 31)), rounds=1)
    both(METHODS["FedPM"], sizes=tuple(range(1, 31)), rounds=1)


def test_full_batches_and_batches_that_cannot_be_gathered_at_once():
    both(METHODS["FedAvg"], batch_size=None)
    both(METHODS["FedPM"], "cnn", sizes=(9, 5, 12), partition=FeatureShift())


def test_hooks_fire_for_every_client():
    side = both(METHODS["FedAvg"], rounds=1, chunk=4)
    for hook in ("on_client_start", "on_client_end"):
        assert sorted(client for name, client in side.hooks if name == hook) == list(range(len(UNEQUAL)))


def test_states_do_not_keep_the_stack_alive():
    side = both(METHODS["SCAFFOLD"], rounds=1)
    for state in side.store.state_dict().values():
        assert all(t.untyped_storage().nbytes() == t.numel() * t.element_size() for t in state["c"].values())


@pytest.mark.parametrize("method", ["FedAvg", "SCAFFOLD", "FedPM"])
def test_a_bad_client_of_a_chunk_is_named_and_goes_alone(method):
    clients = clients_of()
    clients[4].pool.x[clients[4].rows] = float("nan")
    sides = [
        ExecutorRounds(METHODS[method](), mlp(), ex, clients, on_bad_client="drop")
        for ex in (Sequential(), Vectorized(9))
    ]
    alone, together = (side.step() for side in sides)
    assert 4 not in together and alone.keys() == together.keys()
    assert all(same_update(update, together[client]) for client, update in alone.items())
    assert sides[0].said == sides[1].said and "client 4: " in sides[1].said[0]
    with pytest.raises((DivergedClientError, BadClientError), match="round 1, client 4: "):
        ExecutorRounds(METHODS[method](), mlp(), Vectorized(9), clients).step()


def test_a_factor_that_is_not_finite_is_found_in_every_group_of_a_stack():
    def of(clients, value):
        P = DensePreconditioner("layer", torch.full((len(clients), 2, 2), value), torch.ones(len(clients)))
        return Part(clients, P)

    for value, finite in ((1.0, True), (float("nan"), False)):
        P = UnequalPreconditioner("layer", [of([0, 2], 1.0), of([1], value)])
        assert is_finite(StackedUpdate(-1, 0, 1, {}, {"P": {"layer": P}}, {}, {"loss": 0.0})) == finite


class CountsSamples(FedAvg):
    """Promises too much: it reads what only one client has."""

    stackable = "any"

    def client_update(self, client) -> ClientUpdate:
        return client.upload(client.train(self.optimizer(client)), {"n": torch.tensor(client.data.num_samples)})


class MixesStates(FedAvg):
    """Keeps a mean over its parameters: over those of all clients, where they are stacked."""

    stackable, stateful = "any", True

    def init_client(self, client):
        return {"mean": torch.zeros(3)}

    def client_update(self, client) -> ClientUpdate:
        update = client.upload(client.train(self.optimizer(client)))
        bias = list(client.model.params.values())[-1].detach()
        client.state["mean"] = bias * 0 + bias.square().mean()
        return update


class MixesMessages(FedAvg):
    stackable = "any"

    def client_update(self, client) -> ClientUpdate:
        update = client.upload(client.train(self.optimizer(client)))
        bias = list(client.model.params.values())[-1].detach()
        update.message["direction"] = bias / bias.norm()
        return update


class NeedsItsState(FedAvg):
    """Right in the first round, where all states are 0."""

    stackable, stateful = "any", True

    def init_client(self, client):
        return {"sum": torch.zeros(3)}

    def client_update(self, client) -> ClientUpdate:
        update = client.upload(client.train(self.optimizer(client)))
        bias = list(client.model.params.values())[-1].detach()
        client.state["sum"] = bias + (client.state["sum"] * 0 + client.state["sum"].square().sum())
        return update


class Remembers(FedAvg):
    """Changes itself, and what it was sent."""

    stackable = "any"

    def broadcast_extra(self, server):
        return {"c": torch.ones(2)}

    def client_update(self, client) -> ClientUpdate:
        self.lr, self.called = self.lr / 2, True
        client.broadcast.extra["c"].zero_()
        return client.upload(client.train(self.optimizer(client)))


class NewUpdate(FedAvg):
    """Says nothing about stacks."""

    def client_update(self, client) -> ClientUpdate:
        return super().client_update(client)


class NoPerSample(nn.Module):
    def forward(self, outputs, targets):
        return nn.functional.cross_entropy(outputs, targets)


class Squared(nn.Module):
    def forward(self, outputs, targets):
        return self.per_sample(outputs, targets).mean()

    def per_sample(self, outputs, targets):
        return (outputs.squeeze(-1) - targets).square()


class MixesSamples(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 3)

    def forward(self, x):
        return self.linear(x - x.mean(0))


class Assigns(MixesSamples):
    """Keeps the mean of its inputs in a buffer that is another tensor after each pass."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(6))
        self.calls = 0

    def forward(self, x):
        self.mean, self.calls = x.mean(0).detach(), self.calls + 1
        return self.linear(x)


class Noisy(MixesSamples):
    def forward(self, x):
        return self.linear(nn.functional.dropout(x))


@pytest.mark.parametrize(
    ("method", "net", "loss", "reason"),
    [
        (FedAvg, mlp, None, None),
        (FedPM, mlp, None, None),
        (SCAFFOLD, mlp, None, None),
        (FedSophia, mlp, None, "FedSophia, with these settings, looks at one client at a time"),
        (partial(FedPM, correction="gradient"), mlp, None, "FedPM, with these settings"),
        (
            partial(LocalNewton, preconditioner=relative()),
            logistic,
            None,
            "LocalNewton, with these settings",
        ),
        (partial(LocalNewton, preconditioner=relative()), logit, None, None),
        (
            partial(LocalNewton, preconditioner=relative(line_search=True)),
            logit,
            None,
            "LocalNewton, with these",
        ),
        (
            partial(FedPM, correction="gradient", preconditioner=relative()),
            logit,
            None,
            "FedPM, with these settings",
        ),
        (
            partial(FedPM, mix_factor="full_pass", preconditioner=relative()),
            logit,
            None,
            "FedPM, with these settings",
        ),
        (
            partial(FedPM, preconditioner=relative()),
            mlp,
            None,
            "FedPM, with these settings",
        ),
        (
            partial(FedPM, preconditioner=relative()),
            logit,
            Squared(),
            "closed form: logistic regression",
        ),
        (NewUpdate, mlp, None, "NewUpdate, with these settings"),
        (CountsSamples, mlp, None, "must not declare that clients can be stacked"),
        (FedAvg, mlp, NoPerSample(), "NoPerSample has no per_sample"),
        (FedAvg, lambda: nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4)), None, "BatchNorm1d (1) normalises"),
        (FedAvg, lambda: nn.Sequential(nn.Linear(6, 4), nn.Dropout(0.1)), None, "Dropout (1) draws"),
        (FedAvg, MixesSamples, None, "differs when stacked"),
        (FedAvg, Noisy, None, "random"),
        (FedAvg, Assigns, None, "buffer mean is reassigned in a forward pass"),
        (MixesStates, mlp, None, "state mean differs when stacked"),
        (NeedsItsState, mlp, None, "state sum differs when stacked"),
        (MixesMessages, mlp, None, "message direction differs when stacked"),
    ],
)
def test_what_cannot_be_stacked_is_told_beforehand(method, net, loss, reason):
    side = ExecutorRounds(method(), net(), Sequential(), clients_of(), loss=loss)
    found = why_not_stacked(side.local(), side.method.stackable, side.clients[0])
    assert found is None if reason is None else reason in found
    assert not side.store.state_dict() and not side.hooks


def test_the_trial_leaves_nothing_behind():
    """Neither in the network, nor in the method, nor in what the server sent."""
    side = ExecutorRounds(Remembers(0.1), Assigns(), Sequential(), clients_of())
    before, local = side.model.net.mean, side.local()
    state = torch.get_rng_state()
    assert why_not_stacked(local, "any", side.clients[0]) is not None
    assert side.model.net.mean is before and side.model.net.calls == 0
    assert side.method.lr == 0.1 and not hasattr(side.method, "called")
    assert local.broadcast.extra["c"].tolist() == [1, 1] and torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(p, side.theta[name]) for name, p in side.model.params.items())


def test_a_chunk_that_fails_trains_one_after_another_and_says_so():
    clients = clients_of()
    one, many = (ExecutorRounds(CountsSamples(0.1), mlp(), ex, clients) for ex in (Sequential(), Vectorized(4)))
    alone, together = one.step(), many.step()
    assert all(same_update(update, together[client]) for client, update in alone.items())
    assert len(many.said) == 2 and "train one after another: NotImplementedError" in many.said[0]
