"""The simulated network: a round lasts as long as its slowest client, by a formula that is worked out by hand."""

from __future__ import annotations

import math

import pytest
from torch import nn

from fedpm_lightning.callbacks import Communication, Dropouts, SimulatedNetwork
from fedpm_lightning.callbacks.simulation.network import factors
from fedpm_lightning.cli import main
from fedpm_lightning.methods import FedAvg, FedPM
from fedpm_lightning.preconditioners import Foof
from fedpm_lightning.report.tables import compare
from fedpm_lightning.round import Hooks
from fedpm_lightning.testing import check_callback
from fedpm_lightning.testing.rounds import Rounds
from fedpm_lightning.testing.stacks import clients_of
from fedpm_lightning.types import LocalWork

SIZES = (30, 3, 8)
STEPS = [data.steps(LocalWork(epochs=1)) for data in clients_of(SIZES)]
D = 6 * 3 + 3
SPEC = {"down_mbps": 8.0, "up_mbps": 4.0, "latency_s": 0.5, "spread": 0.3, "step_s": 2.0, "compute_spread": 0.7}


class Lost(Hooks):
    def __init__(self, client):
        self.client = client

    def on_client_end(self, round, update):
        update.dropped = update.client == self.client


def rounds(method, hooks):
    return Rounds(method, nn.Linear(6, 3).double(), clients_of(SIZES), LocalWork(epochs=1), hooks=hooks)


def by_hand(client, down, up, trips=1, step_s=2.0):
    bandwidth, delay, slowness = factors(0, client)
    rate, latency = math.exp(0.3 * bandwidth), 2 * trips * 0.5 * math.exp(0.3 * delay)
    return latency + down / (1e6 * rate) + up / (5e5 * rate) + STEPS[client] * step_s * math.exp(0.7 * slowness)


def test_the_slowest_client_decides_and_rounds_add_up():
    run = rounds(FedAvg(0.1), [SimulatedNetwork(**SPEC)])
    run.step()
    one = max(by_hand(k, 8 * D, 8 * D) for k in range(3))
    assert run.federation.row["time/simulated_s"] == pytest.approx(one, rel=1e-12)
    run.step([1])
    assert run.federation.row["time/simulated_s"] == pytest.approx(one + by_hand(1, 8 * D, 8 * D), rel=1e-12)


def test_lost_clients_are_not_waited_for():
    spec = {**SPEC, "step_s": 0.0}
    slowest = max(range(3), key=lambda k: factors(0, k)[1])  # by its latency, which it would show without an upload
    run = rounds(FedAvg(0.1), [Lost(slowest), SimulatedNetwork(**spec)])
    run.step()
    expected = max(by_hand(k, 8 * D, 8 * D, step_s=0.0) for k in {0, 1, 2} - {slowest})
    assert run.federation.row["time/simulated_s"] == pytest.approx(expected, rel=1e-12)
    nobody = rounds(FedAvg(0.1), [Dropouts(1.0), SimulatedNetwork(**SPEC)])
    nobody.step()
    assert nobody.federation.row["time/simulated_s"] == 0


def test_bytes_are_those_that_are_sent_and_a_first_pass_is_one_more_trip():
    method = FedPM(0.1, preconditioner=Foof(damping=1.0), correction="gradient")
    run = rounds(method, [Communication(), SimulatedNetwork(**SPEC)])
    run.step()
    up, down = [8 * (D + D + min(7 * n, 7 * 8 // 2) + 1) for n in SIZES], 8 * (D + D)  # rows, or the triangle
    assert run.federation.row["comm/up_bytes"] == sum(up)
    expected = max(by_hand(k, down, up[k], trips=2) for k in range(3))
    assert run.federation.row["time/simulated_s"] == pytest.approx(expected, rel=1e-12)


def test_it_keeps_to_what_callbacks_promise():
    assert check_callback(SimulatedNetwork)["time/simulated_s"] > 0


def test_connections_belong_to_clients_and_seeds():
    assert factors(0, 1) == factors(0, 1) != factors(0, 2) and factors(0, 1) != factors(1, 1)


def test_measured_steps_take_the_time_of_this_machine():
    network = SimulatedNetwork(latency_s=0.0, spread=0.0, compute_spread=0.0, down_mbps=1e9, up_mbps=1e9)
    run = rounds(FedAvg(0.1), [network])
    run.step()
    longest = network._measured * max(STEPS) / sum(STEPS)
    assert run.federation.row["time/simulated_s"] == pytest.approx(longest, rel=1e-6)


def test_compare_draws_and_counts_in_simulated_seconds(quickstart, tmp_path, capsys):
    words = ("--trainer.callbacks", "SimulatedNetwork", "--trainer.callbacks.step_s", "0.1")
    run = quickstart("--model.local_epochs", "1", "--rounds", "2", *words, folder="runs/one")
    assert run.code == 0
    capsys.readouterr()
    assert main(["compare", "runs", "--plots", "figures", "--x", "simulated"]) == 0
    assert (tmp_path / "figures" / "test_acc-simulated.png").exists()
    capsys.readouterr()
    assert compare.main(["runs", "--reach", "0.01", "--x", "simulated"]) == 0
    printed = capsys.readouterr().out
    assert "simulated seconds to reach" in printed and f"{float(run.rows[0]['time/simulated_s']):.2f}" in printed


@pytest.mark.parametrize("bad", [{"down_mbps": 0}, {"up_mbps": -1}, {"latency_s": -1}, {"spread": -1}, {"step_s": -1}])
def test_values_out_of_range_are_refused(bad):
    with pytest.raises(ValueError, match=f"^{next(iter(bad))} must be"):
        SimulatedNetwork(**bad)
