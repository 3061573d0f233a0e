"""Server optimizers against numbers worked out by hand, and what they must not do."""

from __future__ import annotations

import copy
from functools import partial
from itertools import pairwise

import pytest
import torch
import yaml
from torch import nn

from fedpm_lightning.methods import FedNew
from fedpm_lightning.server.adaptive import FedAdagrad, FedAdam, FedYogi
from fedpm_lightning.server.optimizers import Assign, check_steps, set_target
from fedpm_lightning.trainer.module import FederatedModule


def moves(make, rounds=3, deltas=None):
    """Return |theta| after each round in which D = target - theta is 1 (or `deltas`)."""
    theta = {"w": nn.Parameter(torch.zeros((), dtype=torch.float64))}
    optimizer, path = make(theta.values()), []
    for D in deltas or [1.0] * rounds:
        set_target(optimizer, theta, {"w": theta["w"].detach() + D})
        optimizer.step()
        optimizer.zero_grad()
        path.append(float(theta["w"].detach()))
    return path


def steps(make, **keywords):
    path = [0.0, *moves(make, **keywords)]
    return [b - a for a, b in pairwise(path)]


def test_fedavgm_accumulates_momentum():
    """beta 0.9 on changes of 1: v = 1, 1.9, 2.71."""
    assert steps(lambda p: torch.optim.SGD(p, lr=1.0, momentum=0.9)) == pytest.approx([1, 1.9, 2.71], abs=1e-12)


def test_fedadam_without_bias_correction():
    found = steps(lambda p: FedAdam(p, lr=0.1, beta1=0.9, beta2=0.99, tau=1e-3, v0=0.0))
    assert found == pytest.approx([0.09901, 0.13374, 0.15634], abs=5e-6)
    corrected = steps(lambda p: torch.optim.Adam(p, lr=0.1, betas=(0.9, 0.99), eps=1e-3))
    assert corrected[1] != pytest.approx(found[1], abs=0.01), "torch's Adam corrects the bias: another method"


def test_v_starts_at_tau_squared_by_default():
    tau, lr = 0.5, 0.1
    v = 0.99 * tau**2 + 0.01
    assert steps(lambda p: FedAdam(p, lr=lr, tau=tau), rounds=1) == pytest.approx([lr * 0.1 / (v**0.5 + tau)])
    assert steps(lambda p: FedAdam(p, lr=lr, tau=tau, v0=4.0), rounds=1) == pytest.approx(
        [lr * 0.1 / ((0.99 * 4 + 0.01) ** 0.5 + tau)]
    )


def test_fedyogi_and_fedadagrad_by_hand():
    """D = 2, -1, 0.5 written out with the paper's rules."""
    deltas, lr, tau = [2.0, -1.0, 0.5], 0.1, 0.01
    for make, b1, rule in (
        (FedAdagrad, 0.3, lambda v, D: v + D**2),
        (FedYogi, 0.9, lambda v, D: v - 0.01 * D**2 * (1 if v > D**2 else -1 if v < D**2 else 0)),
        (FedAdam, 0.9, lambda v, D: 0.99 * v + 0.01 * D**2),
    ):
        m, v, expected = 0.0, tau**2, []
        for D in deltas:
            m, v = b1 * m + (1 - b1) * D, rule(v, D)
            expected.append(lr * m / (v**0.5 + tau))
        found = steps(lambda p, make=make, b1=b1: make(p, lr=lr, beta1=b1, tau=tau), deltas=deltas)
        assert found == pytest.approx(expected, rel=1e-12), make.__name__


def test_yogi_shrinks_v_where_changes_become_small():
    small = [0.001] * 5
    yogi = steps(lambda p: FedYogi(p, lr=1.0, tau=0.1, v0=1.0), deltas=small)
    adam = steps(lambda p: FedAdam(p, lr=1.0, tau=0.1, v0=1.0), deltas=small)
    assert adam[-1] > yogi[-1], "Adam forgets v geometrically, Yogi by D^2 only"


def test_plain_replacement_is_bitwise_and_sgd_is_not_needed_for_it():
    torch.manual_seed(0)
    theta = {"w": nn.Parameter(torch.randn(1000))}
    target = {"w": torch.randn(1000) * 1e-3}
    assign = Assign(theta.values())
    set_target(assign, theta, target)
    assign.step()
    assert torch.equal(theta["w"], target["w"])


@pytest.mark.parametrize("make", [FedAdam, FedYogi, FedAdagrad])
def test_a_parameter_without_target_stays_and_the_state_survives_a_checkpoint(make):
    theta = {k: nn.Parameter(torch.ones(3)) for k in ("a", "b")}
    optimizer = make(theta.values())
    set_target(optimizer, theta, {"a": torch.zeros(3)})
    optimizer.step()
    assert torch.equal(theta["b"], torch.ones(3))
    assert not torch.equal(theta["a"], torch.ones(3))
    fresh = make([nn.Parameter(p.detach().clone()) for p in theta.values()])
    fresh.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    other = dict(zip(theta, fresh.param_groups[0]["params"], strict=True))
    for opt, params in ((optimizer, theta), (fresh, other)):
        set_target(opt, params, {"a": torch.full((3,), 0.5)})
        opt.step()
    assert torch.equal(other["a"], theta["a"])


@pytest.mark.parametrize("bad", [{"lr": 0.0}, {"beta1": 1.0}, {"tau": 0.0}, {"v0": -1.0}, {"beta2": 1.0}])
def test_values_out_of_range_are_refused(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        FedAdam([nn.Parameter(torch.zeros(1))], **bad)


@pytest.mark.parametrize("name", ["FedAdam", "FedYogi", "FedAdagrad"])
def test_the_yaml_names_this_optimizer(repo, name):
    model = yaml.safe_load((repo / "configs" / "method" / f"{name.lower()}.yaml").read_text())["model"]
    entry = model["server_optimizer"]  # a class alone, or with arguments
    assert (entry if isinstance(entry, str) else entry["class_path"]).rsplit(".", 1)[-1] == name


def test_an_optimizer_that_needs_a_loss_is_refused_and_others_are_tried_on_copies():
    theta = {"w": torch.nn.Parameter(torch.ones(2))}
    with pytest.raises(ValueError, match=r"model\.server_optimizer LBFGS cannot step from theta - target alone"):
        check_steps(torch.optim.LBFGS, theta)
    with pytest.raises(ValueError, match="cannot step from theta - target alone"):
        FederatedModule(torch.nn.Linear(2, 1), FedNew(), server_optimizer=torch.optim.LBFGS).configure_optimizers()
    check_steps(FedAdam, theta)
    check_steps(Assign, theta)
    assert theta["w"].tolist() == [1, 1] and theta["w"].grad is None


def test_a_method_that_counts_on_its_target_refuses_other_server_optimizers():
    module = FederatedModule(torch.nn.Linear(2, 1), FedNew(), server_optimizer=partial(torch.optim.SGD, lr=0.5))
    with pytest.raises(ValueError, match="SGD would move theta elsewhere than FedNew counts on: leave it out"):
        module.configure_optimizers()
    assert isinstance(FederatedModule(torch.nn.Linear(2, 1), FedNew()).configure_optimizers(), Assign)


def test_the_rate_of_replacement_can_be_monitored():
    assert Assign([torch.ones(1)]).param_groups[0]["lr"] == 1.0
