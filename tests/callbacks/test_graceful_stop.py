from __future__ import annotations

import pytest

SMALL = ("--model.local_epochs=1", "--model.net.hidden=[16]", "--rounds=3")


@pytest.mark.parametrize(
    ("times", "every_s", "rounds"),
    [
        (2, 0.05, 1),  # the scheduler's and the shell's: one wish, the round ends and is saved
        (2, 1.1, 0),  # somebody insists: the round is given up
    ],
)
def test_an_echo_of_the_signal_does_not_give_the_round_up(quickstart, times, every_s, rounds):
    own = ("--trainer.callbacks+=resume_parts.Signal", f"--trainer.callbacks.times={times}")
    run = quickstart(*SMALL, *own, f"--trainer.callbacks.every_s={every_s}")
    assert run.code == 143 and run.summary["rounds_done"] == rounds
