"""epsilon against the library put together by hand, and against closed forms where there are some."""

from __future__ import annotations

import math
import sys

import pytest

from fedpm_lightning.server import accounting
from fedpm_lightning.server.accounting import check_adjacency, epsilon

dp = pytest.importorskip("dp_accounting", reason="epsilon needs the privacy extra")

Z, ROUNDS, N, S, DELTA = 4.0, 30, 100, 10, 1e-3


def test_a_setting_by_hand():
    """Both sums of FedPM at the multipliers of their shares, z/sqrt(1/2) each, and 2 C as the sensitivity."""
    half = dp.GaussianDpEvent(Z / math.sqrt(0.5) / 2)
    one = dp.SampledWithoutReplacementDpEvent(N, S, dp.ComposedDpEvent([half, half]))
    accountant = dp.rdp.RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_ONE)
    accountant.compose(dp.SelfComposedDpEvent(one, ROUNDS))
    expected = accountant.get_epsilon(DELTA)
    assert epsilon(Z, ROUNDS, N, S, DELTA, "replace_one") == pytest.approx(expected, rel=1e-9)
    assert 1 < expected < 10


@pytest.mark.parametrize(("adjacency", "sensitivity"), [("replace_one", 2.0), ("add_or_remove_one", 1.0)])
def test_all_clients_in_each_round_are_gaussian_mechanisms(adjacency, sensitivity):
    """Order a: T a (sensitivity/z)^2 / 2 + log(1 - 1/a) - log(delta a)/(a - 1), the least over the library's orders."""
    orders = dp.rdp.RdpAccountant().orders
    rdp = [ROUNDS * a * (sensitivity / Z) ** 2 / 2 for a in orders]
    bounds = [
        r + math.log1p(-1 / a) - math.log(DELTA * a) / (a - 1) for a, r in zip(orders, rdp, strict=True) if a > 1.01
    ]
    found = epsilon(Z, ROUNDS, N, N, DELTA, adjacency)
    assert found == pytest.approx(min(bounds), rel=1e-12)
    exact = dp.get_epsilon_gaussian(Z / sensitivity / ROUNDS**0.5, DELTA)
    assert exact <= found < 1.25 * exact, "an upper bound of the composed Gaussian mechanism, and no loose one"


def test_it_grows_with_rounds_and_cohorts_and_falls_with_noise():
    base = epsilon(Z, ROUNDS, N, S, DELTA, "replace_one")
    assert epsilon(Z, ROUNDS + 1, N, S, DELTA, "replace_one") > base
    assert (
        epsilon(Z, ROUNDS, N, 2 * S, DELTA, "replace_one") > base > epsilon(2 * Z, ROUNDS, N, S, DELTA, "replace_one")
    )
    assert epsilon(0.0, 1, N, S, DELTA, "replace_one") == math.inf


def test_what_no_accountant_knows_is_refused():
    check_adjacency("add_or_remove_one", 10, 10)
    with pytest.raises(ValueError, match="needs all clients in each round, and 5 of 10 take part: use replace_one"):
        check_adjacency("add_or_remove_one", 10, 5)


def test_without_the_library_the_extra_is_named(monkeypatch):
    accounting._one_round.cache_clear()
    for name in ("dp_accounting", "dp_accounting.rdp"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=r"pip install 'fedpm-lightning\[privacy\]'"):
        epsilon(Z, 1, N, S, DELTA, "replace_one")
