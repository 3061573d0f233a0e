"""Executors through `fedpm fit`: what is printed and recorded, the same rows and model, an exact resume."""

from __future__ import annotations

import pytest
import torch

SMALL = ("--model.net.hidden", "[16]", "--model.local_epochs", "2", "--trainer.precision", "64-true")
STACK = ("--model.executor", "vectorized", "--model.clients_per_chunk", "4")


def method(name):
    return ("--config", f"configs/method/{name}.yaml")


def checkpoint(run):
    return torch.load(run.folder / "checkpoints" / "last.ckpt", weights_only=True)


def figures(run):
    return [{k: float(v) for k, v in row.items() if v and not k.startswith("time/")} for row in run.rows]


def test_stacked_rounds_of_fedpm_are_those_of_clients_one_after_another(quickstart, capsys):
    words = (*SMALL, "--rounds", "2", "--data.participation", "0.7")
    one = quickstart(*words, "--model.executor", "sequential", folder="one")
    many = quickstart(*words, *STACK, folder="many")
    assert one.code == many.code == 0
    assert one.summary["executor"] == "sequential"
    assert many.summary["executor"] == "vectorized, up to 4 clients at once"
    assert "executor:" not in capsys.readouterr().out
    for before, after in zip(figures(one), figures(many), strict=True):
        assert after == pytest.approx(before, rel=1e-9)
    a, b = checkpoint(one)["state_dict"], checkpoint(many)["state_dict"]
    assert all(torch.allclose(a[key], b[key], rtol=1e-10, atol=1e-12) for key in a)


def test_a_run_goes_on_bit_for_bit(quickstart):
    words = (*method("scaffold"), *STACK, "--model.net.hidden", "[16]", "--model.local_epochs", "1")
    whole = quickstart(*words, "--rounds", "2", folder="whole")
    quickstart(*words, "--rounds", "1", folder="parts")
    parts = quickstart(*words, "--rounds", "2", folder="parts")
    assert figures(parts) == figures(whole)
    a, b = checkpoint(whole), checkpoint(parts)
    assert all(torch.equal(a["state_dict"][key], b["state_dict"][key]) for key in a["state_dict"])


def test_what_cannot_be_stacked_says_why_once(quickstart, capsys):
    run = quickstart(*method("fedsophia"), *SMALL, *STACK, "--rounds", "2")
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("executor:")]
    assert lines == ["executor: sequential, since FedSophia, with these settings, looks at one client at a time"]
    assert run.code == 0 and run.summary["executor"] == "sequential"


@pytest.mark.parametrize(("hidden", "expected"), [("[16]", "vectorized, up to 256"), ("[2000]", "sequential")])
def test_auto_stacks_small_networks_only(quickstart, hidden, expected):
    run = quickstart(*method("fedavg"), "--model.net.hidden", hidden, "--rounds", "1", "--model.local_epochs", "1")
    assert run.code == 0 and run.summary["executor"].startswith(expected)


def test_a_chunk_of_no_client_is_refused(quickstart, capsys):
    assert quickstart("--model.clients_per_chunk", "0").code != 0
    assert "model.clients_per_chunk must be a finite number of at least 1, got 0" in capsys.readouterr().err
