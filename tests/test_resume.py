"""A run that stops and goes on ends where an undisturbed one ends, bit for bit."""

from __future__ import annotations

import torch

SETTINGS = ("--model.local_epochs", "1", "--data.participation", "0.5")
MEASURED = ("train/loss", "val/loss", "val/acc", "test/loss", "test/acc", "comm/up_bytes", "comm/down_bytes")


def weights(run):
    return torch.load(run.folder / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]


def test_six_rounds_are_three_and_three_more(quickstart):
    straight = quickstart(*SETTINGS, "--rounds", "6", folder="straight")
    assert quickstart(*SETTINGS, "--rounds", "3", folder="halves").code == 0
    halves = quickstart(*SETTINGS, "--rounds", "6", folder="halves")
    assert all(torch.equal(value, weights(straight)[name]) for name, value in weights(halves).items())
    for a, b in zip(straight.rows, halves.rows, strict=True):
        assert [a[k] for k in MEASURED] == [b[k] for k in MEASURED]
    assert straight.summary["initial"] == halves.summary["initial"]


def test_a_finished_run_is_left_alone_and_never_starts_afresh(quickstart):
    first = quickstart(*SETTINGS, "--rounds", "2")
    before = (first.folder / "metrics.csv").read_text()
    assert quickstart(*SETTINGS, "--rounds", "2").code == 0
    assert (first.folder / "metrics.csv").read_text() == before
    again = quickstart(*SETTINGS, "--rounds", "1", "--resume", "never")
    assert len(again.rows) == 1


def test_resume_must_needs_a_checkpoint(quickstart, capsys):
    assert quickstart(*SETTINGS, "--resume", "must", folder="empty").code == 1
    assert "last.ckpt does not exist" in capsys.readouterr().err
