"""What mixing must keep for ANY clients: Hypothesis draws their number, shapes, weights and preconditioners."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpm_lightning.curvature.matrices.preconditioner import DensePreconditioner
from fedpm_lightning.server.mixing import preconditioned_mix, weighted_mean

problems = st.builds(
    lambda seed, n, out, d, rows, delta, weights: draw(seed, n, out, d, rows, delta, weights[:n]),
    st.integers(0, 2**31),
    st.integers(1, 6),
    st.integers(1, 4),
    st.integers(1, 7),
    st.integers(1, 12),
    st.sampled_from([1e-4, 1e-2, 1.0, 100.0]),
    st.lists(st.floats(0.01, 100), min_size=6, max_size=6),
)
bounded = settings(max_examples=60, deadline=None)


def draw(seed, n, out, d, rows, delta, weights):
    g = torch.Generator().manual_seed(seed)
    normal = lambda *shape: torch.randn(*shape, generator=g, dtype=torch.float64)  # noqa: E731
    X = [normal(rows, d) for _ in range(n)]
    P = [DensePreconditioner("W", x.T @ x / rows, torch.tensor(delta, dtype=torch.float64)) for x in X]
    return normal(out, d), [normal(out, d) for _ in range(n)], P, weights


def close(a, b, tolerance=1e-7):
    return torch.allclose(a, b, rtol=tolerance, atol=tolerance * (1 + float(b.abs().max())))


@bounded
@given(problems)
def test_the_mix_solves_its_normal_equation(problem):
    """sum w_i P_i (W_mix - W_i) = 0."""
    W, clients, P, w = problem
    mixed = preconditioned_mix(W, clients, P, w)
    residual = sum(w_i * (mixed - W_i) @ P_i.dense() for W_i, P_i, w_i in zip(clients, P, w, strict=True))
    scale = sum(w_i * float((W_i @ P_i.dense()).abs().max()) for W_i, P_i, w_i in zip(clients, P, w, strict=True))
    assert float(residual.abs().max()) <= 1e-8 * (1 + scale)


@bounded
@given(problems, st.floats(0.001, 1000), st.randoms(use_true_random=False))
def test_scale_and_order_change_nothing(problem, c, random):
    W, clients, P, w = problem
    order = list(range(len(clients)))
    random.shuffle(order)
    mixed = preconditioned_mix(W, clients, P, w)
    shuffled = preconditioned_mix(W, [clients[i] for i in order], [P[i] for i in order], [c * w[i] for i in order])
    assert close(mixed, shuffled)


@bounded
@given(problems)
def test_agreement_is_a_fixed_point_and_equal_preconditioners_give_the_mean(problem):
    W, clients, P, w = problem
    assert close(preconditioned_mix(W, [clients[0]] * len(P), P, w), clients[0])
    mean = weighted_mean([{"W": W_i} for W_i in clients], w)["W"]
    assert close(preconditioned_mix(W, clients, [P[0]] * len(P), w), mean)


@bounded
@given(problems, st.floats(0.01, 0.99))
def test_a_client_split_in_two_changes_nothing(problem, share):
    W, clients, P, w = problem
    split = [*w[:-1], share * w[-1], (1 - share) * w[-1]]
    once = preconditioned_mix(W, clients, P, w)
    assert close(once, preconditioned_mix(W, [*clients, clients[-1]], [*P, P[-1]], split))
