"""Several real ranks (gloo) as children of this process: everything is imported already, so that they cost little."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from fedpm_lightning.testing.case import MethodCase, advance, largest_difference
from fedpm_lightning.types import Params


def check_ranks(case: MethodCase, folder: Path, count: int = 2) -> None:
    """Run three rounds on several processes, each with a part of the cohort, and compare with one process.

    Args:
        case: The method.
        folder: An empty folder (pytest's tmp_path), where the processes meet.
        count: Processes.

    Raises:
        AssertionError: If a process fails, or theta differs by more than the rounding of a sum.
    """
    cohorts = ([0, 1, 3], [1, 2], [0, 2, 3])

    def ran() -> Params:
        return advance(case.start(), cohorts).theta

    one = ran()
    for rank, theta in enumerate(on_ranks(count, folder, lambda rank: ran())):
        gap = largest_difference(one, theta)
        if not gap < 1e-10:
            raise AssertionError(f"theta on rank {rank} of {count} is {gap:.2g} from that of one process")


def on_ranks(count: int, folder: Path, work: Callable[[int], Any]) -> list[Any]:
    """Run `work(rank)` in `count` processes of one group; return what each returned: tensors, numbers, containers."""
    children = [_child(rank, count, folder, work) for rank in range(count)]
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    if codes != [0] * count:
        raise AssertionError("\n".join((folder / f"{rank}.txt").read_text() for rank in range(count)))
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(count)]


def _child(rank: int, count: int, folder: Path, work: Callable[[int], Any]) -> int:
    child = os.fork()
    if child:
        return child
    torch.set_num_threads(1)  # the parent's pool of threads does not live here: whoever waits for it hangs
    try:
        file = os.open(folder / f"{rank}.txt", os.O_CREAT | os.O_WRONLY)
        os.dup2(file, 1)
        os.dup2(file, 2)
        dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=count)
        torch.save(work(rank), folder / f"{rank}.pt")
        os._exit(0)
    except BaseException:
        import traceback

        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(1)
