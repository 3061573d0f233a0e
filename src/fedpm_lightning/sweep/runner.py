"""Runs a sweep's points on this machine, each in its own worker process.

The processes are forked from a server that has imported everything once: a fresh process a point, without seconds of
imports for each. Where there is no such server (macOS, Windows) they start afresh.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing import connection, get_context
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import Any, Protocol

from fedpm_lightning.sweep.devices import slot_environment
from fedpm_lightning.sweep.folder import DONE, SweepFolder
from fedpm_lightning.sweep.points import Point
from fedpm_lightning.sweep.worker import RUNNING_ELSEWHERE, SWEEP, work

_INTERRUPTED = {128 + int(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)} | {-int(signal.SIGTERM)}
_WRONG_COMMAND = 2
_REFRESH_S = 0.5


@dataclass
class Job:
    """A point that is running.

    Attributes:
        point: The point.
        slot: Its place among the jobs that run side by side; decides its GPU.
        process: Its process.
        begun: When it started, in seconds of the monotonic clock.
    """

    point: Point
    slot: int
    process: BaseProcess
    begun: float


@dataclass
class Progress:
    """The state of the sweep for the display.

    Attributes:
        points: All points of the sweep.
        waiting: Those still to be started.
        running: Those that run.
        codes: Exit codes of this start, by point; 0 for those that had finished before.
        failed: Points that failed for good.
        elsewhere: Points that another process is running.
        took: Seconds of each point that ended in this start.
    """

    points: Sequence[Point]
    waiting: deque[Point] = field(default_factory=deque[Point])
    running: list[Job] = field(default_factory=list[Job])
    codes: dict[str, int] = field(default_factory=dict[str, int])
    failed: list[Point] = field(default_factory=list[Point])
    elsewhere: list[Point] = field(default_factory=list[Point])
    took: list[float] = field(default_factory=list[float])


class Display(Protocol):
    """Something that shows progress."""

    def event(self, text: str) -> None:
        """Say what happened."""
        ...

    def show(self, progress: Progress) -> None:
        """Show the state."""
        ...


class Runner:
    """Runs points, a few at a time.

    Args:
        folder: The sweep's folder.
        jobs: How many points run side by side.
        devices: GPUs, dealt out in turn; empty on a machine without.
        retries: How often a point that failed is started again; it goes on from its last checkpoint.
        environment: The environment of the workers; by default that of this process.
    """

    def __init__(
        self,
        folder: SweepFolder,
        jobs: int,
        devices: list[str],
        retries: int = 1,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.folder, self.jobs, self.devices, self.retries = folder, jobs, devices, retries
        self._environment = dict(os.environ if environment is None else environment) | {SWEEP: folder.path.name}
        self._tries: dict[str, int] = {}
        self.signal: int | None = None
        self._context: Any = get_context("forkserver" if sys.platform == "linux" else "spawn")
        if sys.platform == "linux":
            self._context.set_forkserver_preload(["fedpm_lightning.commands.fit"])

    def run(self, points: Sequence[Point], display: Display) -> Progress:
        """Run every point that is not done.

        Returns:
            How things stand at the end; `self.signal` is set if a signal ended it.
        """
        progress = Progress(points)
        for point in points:
            if self.folder.state(point) in DONE:
                progress.codes[point.name] = 0
            else:
                progress.waiting.append(point)
        old = {number: signal.signal(number, self._stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            self._loop(progress, display)
        except KeyboardInterrupt:
            display.event("ended at once; runs go on from their last checkpoints")
        finally:
            self._end(progress, kill=True)
            for number, handler in old.items():
                signal.signal(number, handler)
        return progress

    def _loop(self, progress: Progress, display: Display) -> None:
        announced = False
        while progress.running or (progress.waiting and self.signal is None):
            while self.signal is None and progress.waiting and len(progress.running) < self.jobs:
                progress.running.append(self._start(progress))
            if self.signal is not None and not announced:
                display.event("stopping: the running rounds end and are saved (once more: at once)")
                self._end(progress, kill=False)
                announced = True
            display.show(progress)
            connection.wait([job.process.sentinel for job in progress.running], timeout=_REFRESH_S)
            for job in [job for job in progress.running if job.process.exitcode is not None]:
                progress.running.remove(job)
                self._record_end(job, progress, display)
        display.show(progress)

    def _start(self, progress: Progress) -> Job:
        point = progress.waiting.popleft()
        slot = min(set(range(self.jobs)) - {job.slot for job in progress.running})
        environment = self._environment | slot_environment(slot, self.jobs, self.devices, self._environment)
        arguments = [*point.arguments, f"--run_dir={self.folder.run_dir(point)}"]
        given = (arguments, str(self.folder.log(point)), environment)
        process = self._context.Process(target=work, args=given, name=point.name)
        process.start()
        self._tries[point.name] = self._tries.get(point.name, 0) + 1
        return Job(point, slot, process, time.monotonic())

    def _record_end(self, job: Job, progress: Progress, display: Display) -> None:
        """Note how a point's process ended, and decide whether it is started again."""
        point, code = job.point, job.process.exitcode or 0
        name, state = point.name, self.folder.state(point)
        progress.codes[name] = code
        seconds = time.monotonic() - job.begun
        took = f"{seconds:.0f} s"
        if state in DONE:
            progress.took.append(seconds)
            display.event(f"{state}  {name}  {took}")
        elif code == RUNNING_ELSEWHERE:
            progress.elsewhere.append(point)
            display.event(f"left out  {name}: another process is running it")
        elif self.signal is not None and code in _INTERRUPTED:
            done = self.folder.rounds_done(point)
            where = f"after round {done}; it will go on from there" if done else "before its first round was over"
            display.event(f"stopped  {name} {where}")
        elif code != _WRONG_COMMAND and self._tries[name] <= self.retries and self.signal is None:
            progress.waiting.appendleft(point)
            display.event(f"failed  {name} with exit code {code} after {took}: once more")
        else:
            progress.failed.append(point)
            display.event(f"failed  {name} with exit code {code} after {took}: {self.folder.log(point)}")

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None:
            raise KeyboardInterrupt
        self.signal = number

    def _end(self, progress: Progress, kill: bool) -> None:
        for job in progress.running:
            job.process.kill() if kill else job.process.terminate()
        if kill:
            for job in progress.running:
                job.process.join()
