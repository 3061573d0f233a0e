"""A task of the benchmarks as the file from which the peers read it."""

from __future__ import annotations

from pathlib import Path

import torch

from benchmarks.peers.common import Problem
from benchmarks.tasks import Task


def make_problem(task: Task) -> Problem:
    """Return the task with its data loaded, normalised and split, and its network initialised."""
    data = task.make_data()
    plan = data.prepared
    normalise = plan.data.normalise or (lambda x: x)
    return Problem(
        net=task.net,
        net_args=task.net_args,
        state=task.make_net().state_dict(),
        x=normalise(plan.data.x_train),
        y=plan.data.y_train,
        x_test=normalise(plan.data.x_test),
        y_test=plan.data.y_test,
        parts=[torch.from_numpy(part) for part in plan.parts],
        cohort=data.cohort_size,
        rounds=task.rounds,
        batch_size=task.data["batch_size"],
        epochs=task.local_epochs,
        lr=task.lr,
    )


def write_problem(task: Task, folder: Path) -> Path:
    """Write the task's problem into `folder` and return the file."""
    path = folder / "problem.pt"
    make_problem(task).write(path)
    return path
