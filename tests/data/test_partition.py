from __future__ import annotations

import logging
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpm_lightning.data import (
    IID,
    Dirichlet,
    DirichletClients,
    FeatureShift,
    InOrder,
    Natural,
    Partition,
    QuantitySkew,
    Shards,
)
from fedpm_lightning.data.partitions.dirichlet import nearest_table, whole_numbers

CIFAR = np.repeat(np.arange(10), 5000)
ALPHA_KINDS = [Dirichlet, DirichletClients, QuantitySkew]


def histogram(parts: list[np.ndarray], labels: np.ndarray) -> np.ndarray:
    return np.array([np.bincount(labels[part], minlength=labels.max() + 1) for part in parts])


def assert_complete(parts: list[np.ndarray], n: int) -> None:
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(n))
    assert all(part.dtype == np.int64 and np.all(np.diff(part) > 0) for part in parts)


PARTITIONS: list[Partition] = [
    IID(),
    Dirichlet(0.1),
    Dirichlet(1e-8, min_samples=0),
    DirichletClients(0.3),
    DirichletClients(1e-8),
    Shards(4),
    QuantitySkew(0.1),
    FeatureShift("noise", 1.0),
]


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    partition=st.sampled_from(PARTITIONS),
    labels=st.lists(st.integers(0, 4), min_size=40, max_size=120),
    num_clients=st.integers(2, 10),
    seed=st.integers(0, 2**32),
)
def test_every_split_is_disjoint_complete_and_reproducible(partition, labels, num_clients, seed):
    labels = np.array(labels)
    parts = partition.split(labels, num_clients, seed)
    assert len(parts) == num_clients
    assert_complete(parts, len(labels))
    again = partition.split(labels, num_clients, seed)
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))
    if getattr(partition, "min_samples", 1):
        assert min(len(part) for part in parts) >= 1


@pytest.mark.parametrize("partition", PARTITIONS, ids=str)
def test_another_seed_is_another_split(partition):
    first, second = (partition.split(CIFAR[::50], 10, seed) for seed in (0, 1))
    assert any(not np.array_equal(a, b) for a, b in zip(first, second, strict=True))


def test_a_plain_draw_that_rarely_succeeds_is_repaired_and_says_so(caplog):
    start = time.perf_counter()
    with caplog.at_level(logging.INFO):
        parts = Dirichlet(0.05, min_samples=10).split(CIFAR, 100, 0)
    assert time.perf_counter() - start < 10
    assert_complete(parts, 50000)
    assert min(len(part) for part in parts) == 10
    plain = Dirichlet(0.05, min_samples=0).split(CIFAR, 100, 0)
    missing = sum(max(0, 10 - len(part)) for part in plain)
    assert missing > 0 and f"moved {missing} of 50000 samples" in caplog.text
    assert max(len(part) for part in parts) <= max(len(part) for part in plain)


def test_no_log_line_when_nothing_is_moved(caplog):
    with caplog.at_level(logging.INFO):
        Dirichlet(100).split(CIFAR, 10, 0)
    assert caplog.text == ""


def test_a_hundred_classes_and_tiny_alpha_over_many_seeds():
    labels = np.repeat(np.arange(100), 500)
    for seed in range(200):
        parts = Dirichlet(0.01).split(labels, 10, seed)
        sizes = np.array([len(part) for part in parts])
        assert sizes.sum() == 50000 and sizes.min() >= 1
        assert np.bincount(np.concatenate(parts), minlength=50000).max() == 1


def test_the_last_client_is_not_favoured():
    labels = np.repeat(np.arange(100), 20)
    held = np.zeros(10)
    for seed in range(100):
        held += [len(part) for part in Dirichlet(1e-3).split(labels, 10, seed)]
    assert np.all(np.abs(held / held.sum() - 0.1) < 0.02)


@pytest.mark.parametrize("kind", [Dirichlet, QuantitySkew, DirichletClients])
def test_too_few_samples_is_an_error_that_says_what_works(kind):
    with pytest.raises(ValueError, match=r"alpha=0\.3.*40 samples.*50 clients.*at least 1.*num_clients to 40"):
        kind(0.3).split(np.arange(40) % 10, 50, 0)
    with pytest.raises(ValueError, match="min_samples to 4"):
        kind(0.3, min_samples=5).split(np.arange(40) % 10, 10, 0)


def test_clients_without_samples_are_possible_on_request():
    parts = Dirichlet(0.3, min_samples=0).split(np.arange(40) % 10, 50, 0)
    assert_complete(parts, 40)
    assert min(len(part) for part in parts) == 0


@pytest.mark.parametrize("kind", [*ALPHA_KINDS, lambda _: Shards(3), lambda _: IID()])
def test_a_class_without_samples(kind):
    labels = np.repeat([0, 1, 3, 4], 100)
    assert_complete(kind(0.1).split(labels, 5, 0), 400)


@pytest.mark.parametrize("kind", ALPHA_KINDS)
@pytest.mark.parametrize("alpha", [0, -1, float("nan"), float("inf"), -float("inf")])
def test_illegal_alpha_is_rejected_when_built(kind, alpha):
    with pytest.raises(ValueError, match="alpha must be a finite number above 0"):
        kind(alpha)


@pytest.mark.parametrize("kind", ALPHA_KINDS)
@pytest.mark.parametrize("alpha", [5e-324, 1e-8, 1e20, 1e308])
def test_extreme_alpha_works(kind, alpha):
    parts = kind(alpha).split(CIFAR[::50], 10, 0)
    assert_complete(parts, 1000)
    sizes = [len(part) for part in parts]
    if alpha > 1:
        assert min(sizes) == max(sizes) == 100


def test_dirichlet_extremes_give_one_owner_a_class_or_an_even_split():
    owners = (histogram(Dirichlet(1e-8).split(CIFAR, 10, 0), CIFAR) > 100).sum(axis=0)
    assert np.all(owners == 1)
    even = histogram(Dirichlet(1e20).split(CIFAR, 10, 0), CIFAR)
    assert np.all(even == 500)


def test_dirichlet_shares_have_the_variance_of_the_distribution():
    # Var of one share of Dir(a, ..., a) over N parts: (N - 1) / (N^2 (N a + 1)).
    alpha, clients = 0.5, 10
    shares = [histogram(Dirichlet(alpha, 0).split(CIFAR, clients, s), CIFAR) / 5000 for s in range(60)]
    expected = (clients - 1) / (clients**2 * (clients * alpha + 1))
    assert np.mean(shares) == pytest.approx(0.1)
    assert np.var(shares) == pytest.approx(expected, rel=0.1)  # 6,000 shares: a standard error of about 3%


SKEWED = np.repeat(np.arange(10), [50, 100, 500, 1000, 2000, 3000, 4000, 5000, 7000, 9000])


@pytest.mark.parametrize(("labels", "clients"), [(CIFAR[::5], 10), (CIFAR[::5], 7), (SKEWED[::5], 20)])
def test_dirichlet_over_classes_runs_from_few_classes_to_iid(labels, clients):
    """Equal sizes at any alpha, and a distance from the iid split that falls as alpha grows."""
    share, distances = np.bincount(labels) / len(labels), []
    for alpha in (1e-8, 0.01, 0.1, 0.3, 1, 10, 100, 1e6):
        drawn = [histogram(DirichletClients(alpha).split(labels, clients, seed), labels) for seed in range(2)]
        assert all(np.ptp(counts.sum(axis=1)) <= 1 for counts in drawn)
        distances.append(np.mean([np.abs(c / c.sum(axis=1, keepdims=True) - share).sum() for c in drawn]))
        if alpha == 1e-8:  # a transport plan of N x C needs N + C - 1 entries
            assert max((counts > 0.02 * counts.sum(axis=1).max()).sum() for counts in drawn) <= clients + 9
        if alpha == 1e6:
            assert max(np.abs(counts - counts.sum(axis=1, keepdims=True) * share).max() for counts in drawn) < 4
    assert distances == sorted(distances, reverse=True)


@pytest.mark.parametrize("clients", [10, 20, 100])
def test_dirichlet_over_classes_gives_one_class_a_client_where_that_is_possible(clients):
    """No client is left with what others did not want."""
    for alpha in (5e-324, 1e-8):
        counts = histogram(DirichletClients(alpha).split(CIFAR, clients, 1), CIFAR)
        assert np.all((counts > 0).sum(axis=1) == 1)


def test_no_client_follows_its_draw_less_than_another():
    """The largest share of a client's classes, by the client's place: 40 splits, a standard error of about 0.02."""
    shares = [histogram(DirichletClients(0.3).split(CIFAR[::10], 10, s), CIFAR[::10]).max(axis=1) for s in range(40)]
    means = np.mean(shares, axis=0) / 500
    assert means.max() - means.min() < 0.12 and means.min() > 0.3


def test_the_nearest_table_has_its_sums_and_the_ratios_of_the_draws():
    """Scaling rows and columns leaves the cross ratios t_ij t_kl / (t_il t_kj) as they were."""
    log_draws = np.random.default_rng(0).normal(size=(4, 3))
    rows, columns = np.array([10_000, 20_000, 30_000, 40_000]), np.array([50_000, 20_000, 30_000])
    table = nearest_table(log_draws, rows, columns)
    assert np.allclose(table.sum(axis=1), rows) and np.allclose(table.sum(axis=0), columns, atol=0.5)
    crossed = [log[1:, 1:] + log[:1, :1] - log[1:, :1] - log[:1, 1:] for log in (log_draws, np.log(table))]
    assert np.allclose(*crossed)
    counts = whole_numbers(table, rows, columns)
    assert np.array_equal(counts.sum(axis=1), rows) and np.array_equal(counts.sum(axis=0), columns)
    assert np.abs(counts - table).max() <= 2


@pytest.mark.parametrize("classes", [1, 2, 3])
def test_shards_limit_the_classes_of_a_client(classes):
    parts = Shards(classes).split(CIFAR, 20, 3)
    seen = (histogram(parts, CIFAR) > 0).sum(axis=1)
    assert seen.max() <= classes
    assert max(len(p) for p in parts) - min(len(p) for p in parts) <= classes
    assert_complete(parts, 50000)


def test_shards_errors():
    with pytest.raises(ValueError, match="to at least 5"):
        Shards(1).split(CIFAR, 2, 0)
    with pytest.raises(ValueError, match="30 samples are too few"):
        Shards(4).split(np.arange(30) % 3, 10, 0)
    with pytest.raises(ValueError, match="at least 1, got 0"):
        Shards(0)


def test_quantity_skew_keeps_labels_even():
    parts = QuantitySkew(0.5).split(CIFAR, 10, 0)
    sizes = np.array([len(part) for part in parts])
    assert sizes.max() > 4 * sizes.min()
    big = histogram(parts, CIFAR)[sizes.argmax()] / sizes.max()
    assert np.all(np.abs(big - 0.1) < 0.02)


def test_in_order_blocks(caplog):
    with caplog.at_level(logging.INFO):
        parts = InOrder().split(np.zeros(23), 4, 0)
    assert [part.tolist() for part in parts] == [list(range(5 * k, 5 * k + 5)) for k in range(4)]
    assert "3 of 23 rows" in caplog.text
    parts = InOrder(clients_size=2).split(np.zeros(23), 4, 9)
    assert [part.tolist() for part in parts] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    with pytest.raises(ValueError, match=r"23 samples are too few for 4 clients \(24 are needed"):
        InOrder(clients_size=6).split(np.zeros(23), 4, 0)
    with pytest.raises(ValueError, match="at least 1 row"):
        InOrder(clients_size=0)


def test_natural_follows_the_groups():
    groups = np.array(["b", "a", "c", "a", "b"])
    parts = Natural().split(np.zeros(5), 3, 0, groups)
    assert [part.tolist() for part in parts] == [[1, 3], [0, 4], [2]]
    with pytest.raises(ValueError, match=r"set data\.num_clients to 3"):
        Natural().split(np.zeros(5), 10, 0, groups)
    with pytest.raises(ValueError, match="has none"):
        Natural().split(np.zeros(5), 3, 0)


def test_the_base_class_refuses_a_wrong_subclass():
    class Overlapping(Partition):
        def _assign(self, labels, num_clients, rng, groups):
            return [np.arange(len(labels))] * num_clients

    class Forgetful(Partition):
        def _assign(self, labels, num_clients, rng, groups):
            return [np.array([k]) for k in range(num_clients)]

    with pytest.raises(ValueError, match="disjoint"):
        Overlapping().split(np.zeros(5), 2, 0)
    with pytest.raises(ValueError, match="left 3 samples"):
        Forgetful().split(np.zeros(5), 2, 0)


@pytest.mark.parametrize(("labels", "clients"), [(np.zeros((2, 2)), 2), (np.zeros(4), 0)])
def test_illegal_input(labels, clients):
    with pytest.raises(ValueError, match="got"):
        IID().split(labels, clients, 0)


def test_description_is_plain():
    assert Dirichlet(0.3, 2).describe() == {
        "kind": "Dirichlet",
        "arguments": {"alpha": 0.3, "min_samples": 2},
    }
    assert InOrder().describe() == {"kind": "InOrder", "arguments": {"clients_size": None}}
