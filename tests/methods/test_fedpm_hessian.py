"""FedPM and LocalNewton with the full Hessian: exact identities, and the measured paths on a9a and w8a."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from convex import (
    NAME,
    PURE,
    central_gradient_and_hessian,
    distances,
    fedpm,
    logistic_clients,
    minimiser,
    path,
    rounds,
)
from fedpm_lightning.methods import FedNL, FedNS, FedPM, LocalNewton
from fedpm_lightning.models import CNN
from fedpm_lightning.nested import wire_bytes
from fedpm_lightning.preconditioners import Diagonal, Foof, Hessian
from fedpm_lightning.testing.problems import InMemoryClient


def test_one_step_is_the_global_newton_step():
    """FedPM K=1 = FedNL fresh identity = FedNS identity = Newton's method, over several rounds."""
    clients = logistic_clients()
    newton, w = [], torch.zeros(6, dtype=torch.float64)
    for _ in range(4):
        g, H = central_gradient_and_hessian(clients, w)
        w = w - torch.linalg.solve(H, g)
        newton.append(w)
    for method in (fedpm(), FedNL(compressor="identity", fresh=True), FedNS(sketch="identity")):
        for ours, theirs in zip(path(rounds(method, clients), 4), newton, strict=True):
            assert torch.allclose(ours, theirs, rtol=0, atol=1e-12), type(method).__name__


def test_weights_by_size_give_the_pooled_newton_step():
    clients = logistic_clients()
    pooled = [InMemoryClient(0, torch.cat([c.x for c in clients]), torch.cat([c.y for c in clients]))]
    by_size = path(rounds(fedpm(), clients, weighting="size"), 3)
    for ours, theirs in zip(by_size, path(rounds(fedpm(), pooled), 3), strict=True):
        assert torch.allclose(ours, theirs, rtol=0, atol=1e-11)


def test_several_steps_are_biased_and_the_correction_removes_the_bias():
    clients = logistic_clients()
    optimum = minimiser(clients, l2=0.1)
    plain = distances(rounds(fedpm(), clients, steps=3, l2=0.1), optimum, 8)
    corrected = distances(rounds(fedpm(correction="gradient"), clients, steps=3, l2=0.1), optimum, 8)
    assert plain[-1] > 1e-3 and plain[-1] == pytest.approx(plain[-2], rel=1e-3)
    assert corrected[-1] < 1e-12


def test_the_correction_changes_nothing_with_one_step():
    clients = logistic_clients()
    plain, corrected = (path(rounds(m, clients), 3) for m in (fedpm(), fedpm(correction="gradient")))
    assert all(torch.allclose(a, b, rtol=0, atol=1e-12) for a, b in zip(plain, corrected, strict=True))


def test_the_correction_works_with_foof_and_leaves_its_one_step_alone():
    clients = logistic_clients()
    options = {"lr": 0.5, "preconditioner": Foof(damping=1.0, ema=0.0), "mix_damping": None}
    plain, corrected = (path(rounds(FedPM(**options, correction=c), clients), 2) for c in ("none", "gradient"))
    assert torch.allclose(plain[-1], corrected[-1], rtol=0, atol=1e-12)


def test_no_anchor_outlives_its_round():
    run = rounds(fedpm(correction="gradient"), logistic_clients(), steps=2)
    alive = []
    original = run.method.prepare

    def prepare(client):
        message = original(client)
        alive.extend(weakref.ref(t) for t in message.values())
        return message

    run.method.prepare = prepare
    run.step()
    run.recorder.updates = []
    gc.collect()
    assert len(alive) == 4 and not any(ref() is not None for ref in alive)
    assert not any(run.states.values())


def test_the_preparation_message_is_one_vector():
    run = rounds(fedpm(correction="gradient"), logistic_clients())
    assert fedpm().needs_preparation is False
    run.step()
    client = run.client(run.clients[0], _broadcast(run))
    assert wire_bytes(run.method.prepare(client)) == 6 * 8


def _broadcast(run):
    from fedpm_lightning.types import Broadcast, clone_params

    return Broadcast(0, clone_params(run.theta), {})


def test_the_upload_is_theta_the_triangle_and_delta():
    run = rounds(fedpm(), logistic_clients())
    run.step()
    assert {u.wire_bytes for u in run.updates} == {8 * (6 + 6 * 7 // 2 + 1)}


def test_diagonal_is_a_coordinatewise_newton_step():
    clients = logistic_clients()
    g, H = central_gradient_and_hessian(clients, torch.zeros(6, dtype=torch.float64))
    run = rounds(fedpm(preconditioner=Diagonal()), clients)
    assert torch.allclose(run.step()[NAME][0], -g / H.diagonal(), rtol=0, atol=1e-12)
    assert {u.wire_bytes for u in run.updates} == {8 * (6 + 6)}


@pytest.mark.parametrize("kind", [Hessian, Diagonal])
def test_mix_damping_is_the_mixings_alone(kind):
    """Local steps keep their delta; the server's P_i have the other one over the same H_i."""
    clients, zero = logistic_clients(2), torch.zeros(6, dtype=torch.float64)
    run = rounds(fedpm(preconditioner=kind(damping=0.1), mix_damping=2.0), clients)
    theta, eye = run.step()[NAME][0], torch.eye(6, dtype=torch.float64)
    numerator, denominator = zero.clone(), 0 * eye
    for client, update in zip(clients, run.updates, strict=True):
        g, H = central_gradient_and_hessian([client], zero)
        H = H if kind is Hessian else H.diagonal().diag()
        own = -torch.linalg.solve(H + 0.1 * eye, g)
        assert torch.allclose(update.params[NAME][0], own, rtol=0, atol=1e-12)
        numerator, denominator = numerator + (H + 2 * eye) @ own, denominator + H + 2 * eye
    assert torch.allclose(theta, torch.linalg.solve(denominator, numerator), rtol=0, atol=1e-11)


def test_the_first_pass_is_weighted_as_the_mixing_is():
    """Corrected steps follow sum w_i g_i with w_i = n_i / n: the gradient of all samples together."""
    clients = logistic_clients(2, n=6)
    clients[1] = InMemoryClient(1, *(torch.cat([getattr(clients[1], k)] * 5) for k in "xy"))
    run = rounds(fedpm(correction="gradient"), clients, weighting="size")
    run.step()
    zero, n = torch.zeros(6, dtype=torch.float64), sum(len(c.y) for c in clients)
    g = sum(len(c.y) * central_gradient_and_hessian([c], zero)[0] for c in clients) / n
    for client, update in zip(clients, run.updates, strict=True):
        H = central_gradient_and_hessian([client], zero)[1]
        assert torch.allclose(update.params[NAME][0], -torch.linalg.solve(H, g), rtol=0, atol=1e-12)


def test_full_pass_mixes_with_the_hessian_where_the_client_ended():
    clients = logistic_clients(2)
    run = rounds(fedpm(mix_factor="full_pass", mix_damping=0.5), clients)
    theta = run.step()[NAME][0]
    numerator, denominator = torch.zeros(6, dtype=torch.float64), torch.zeros(6, 6, dtype=torch.float64)
    for client, update in zip(clients, run.updates, strict=True):
        w = update.params[NAME][0]
        P = central_gradient_and_hessian([client], w)[1] + 0.5 * torch.eye(6, dtype=torch.float64)
        numerator, denominator = numerator + P @ w, denominator + P
    assert torch.allclose(theta, torch.linalg.solve(denominator, numerator), rtol=0, atol=1e-11)


def test_a_network_too_large_is_refused_with_its_size():
    with pytest.raises(ValueError, match=r"878,538 parameters squared in float64 are 6,174\.6 GB"):
        fedpm().setup(CNN())
    with pytest.raises(ValueError, match="878,538"):
        LocalNewton(preconditioner=Hessian()).setup(CNN())


@pytest.mark.parametrize(
    "wrong", [lambda: fedpm(mix_factor="ema"), lambda: fedpm(mix_factor="own"), lambda: Hessian(inv_every=0)]
)
def test_combinations_without_meaning_are_refused(wrong):
    with pytest.raises(ValueError):
        rounds(wrong(), logistic_clients()).step()


def close(measured, golden):
    """Golden figures are rounded to two digits; below 1e-12 only the size is meaningful."""
    for ours, theirs in zip(measured, golden, strict=True):
        assert ours == pytest.approx(theirs, rel=0.05) or (theirs < 1e-12 and ours < 10 * theirs), (measured, golden)


def test_a9a_newton_path(a9a):
    clients, optimum = a9a
    assert float(optimum.norm()) == pytest.approx(3.9880848508, abs=1e-9)
    measured = distances(rounds(fedpm(), clients), optimum, 7)
    close(measured, [2.2, 1.3, 5.3e-1, 1.1e-1, 5.1e-3, 1.13e-5, 5.5e-11])
    others = [
        path(rounds(m, clients), 4) for m in (fedpm(), FedNL(compressor="identity", fresh=True), FedNS(1.0, "identity"))
    ]
    for theta, nl, ns in zip(*others, strict=True):
        assert (theta - nl).norm() < 1e-10 and (theta - ns).norm() < 1e-10


def test_a9a_local_newton_sticks(a9a):
    clients, optimum = a9a
    close(distances(rounds(LocalNewton(**PURE), clients), optimum, 6), [2.2, 1.3, 6.4e-1, 3.4e-1, 3.1e-1, 3.1e-1])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("steps", "correction", "golden"),
    [
        (3, "none", [7.0e-1, 5.1e-1, 5.1e-1]),
        (2, "gradient", [1.5, 1.6e-1, 3.1e-4, 1.3e-9]),
        (3, "gradient", [1.1, 2.1e-2, 6.8e-6, 7.5e-13]),
    ],
)
def test_a9a_several_steps(a9a, steps, correction, golden):
    clients, optimum = a9a
    close(distances(rounds(fedpm(correction=correction), clients, steps), optimum, len(golden)), golden)


@pytest.mark.slow
def test_w8a(w8a):
    clients, optimum = w8a
    assert float(optimum.norm()) == pytest.approx(6.9081252499, abs=1e-9)
    newton = [5.0, 3.9, 2.6, 1.2, 3.0e-1, 1.9e-2, 8.7e-5, 1.8e-9]
    close(distances(rounds(fedpm(), clients), optimum, 8), newton)
    close(distances(rounds(LocalNewton(**PURE), clients), optimum, 4), [6.3, 6.1, 6.0, 6.0])
    corrected = [4.6, 2.4, 8.6e-1, 1.3e-1, 3.2e-3, 2.1e-6, 8.6e-13]
    close(distances(rounds(fedpm(correction="gradient"), clients, 2), optimum, 7), corrected)
