"""One SLURM job array a sweep: a plain sbatch file, which can be read, edited and submitted again.

A library (submitit) would hide the script behind pickled functions and bring its own requeue logic. Here the shell
does the little there is: it passes the scheduler's signal on to the run, which ends its round and saves it, and asks
for the job to be queued again; the next start goes on from the checkpoint. That also works in a container, where
`scontrol` does not exist, and for any number of devices in a run.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedpm_lightning.sweep import SweepError
from fedpm_lightning.sweep.folder import SweepFolder

_SCRIPT = r"""#!/bin/bash
# {count} of {name}, one array task each; written by `fedpm sweep`. Submit it again after a
# crash or a change of the lines below: points that are finished end at once, others go on from their checkpoints.
{directives}

cd {cwd} || exit 1
{setup}
export OMP_NUM_THREADS="${{OMP_NUM_THREADS:-${{SLURM_CPUS_PER_TASK:-1}}}}"
# Lightning must not take the batch job for its own: one process starts here, and this script queues it again.
export SLURM_JOB_NAME=interactive

asked=
trap 'asked=requeue; kill -TERM "$run" 2>/dev/null' USR1   # {lead} s before the time limit
trap 'asked=end; kill -TERM "$run" 2>/dev/null' TERM       # pre-empted (SLURM queues it again) or cancelled

{command} &
run=$!
while :; do # a trap ends `wait` early; the run itself may still be saving its round
  wait "$run"
  code=$?
  if [ "$code" -le 128 ] || ! kill -0 "$run" 2>/dev/null; then break; fi
done

if [ "$asked" = requeue ] && [ "$code" -gt 128 ]; then
  if [ "${{SLURM_RESTART_COUNT:-0}}" -ge {restarts} ]; then
    echo "queued again {restarts} times already: give it more --time, or is a round longer than that?" >&2
    exit 1
  fi
  scontrol requeue "${{SLURM_ARRAY_JOB_ID}}_${{SLURM_ARRAY_TASK_ID}}"
  exit
fi
exit "$code"
"""


@dataclass(frozen=True)
class Slurm:
    """What the user asks of the scheduler.

    Attributes:
        directives: sbatch option -> value, without hyphens; an empty value is a bare flag.
        parallel: The most array tasks at once; None for no limit.
        lead: Seconds before the time limit at which a run is stopped and queued again.
        setup: Lines before the run: modules, environments.
        prefix: Words before `fedpm`, such as `apptainer exec --nv image.sif`.
        restarts: How often a task is queued again at most.
    """

    directives: Mapping[str, str] = field(default_factory=dict[str, str])
    parallel: int | None = None
    lead: int = 120
    setup: str = ""
    prefix: str = ""
    restarts: int = 100


def sbatch_script(folder: SweepFolder, name: str, indices: Sequence[int], slurm: Slurm) -> str:
    """Write the batch file of the points with the given indices."""
    given = {key.lstrip("-"): value for key, value in slurm.directives.items()}
    directives = {
        "job-name": name,
        "array": array_of(indices) + (f"%{slurm.parallel}" if slurm.parallel else ""),
        "output": f"{folder.path}/slurm/%A_%a.log",
        "open-mode": "append",
        "requeue": "",
        "signal": f"B:USR1@{slurm.lead}",
        "nodes": "1",
        "ntasks": "1",
        "cpus-per-task": "1",
        **given,
    }
    lines = [f"#SBATCH --{key}" + (f"={value}" if value else "") for key, value in directives.items()]
    fedpm = f"{slurm.prefix} fedpm" if slurm.prefix else shlex.join([sys.executable, "-m", "fedpm_lightning.cli"])
    grace = max(slurm.lead - 30, slurm.lead / 2)
    return _SCRIPT.format(
        count=f"{len(indices)} point{'s' if len(indices) != 1 else ''}",
        name=name,
        directives="\n".join(lines),
        cwd=shlex.quote(str(Path.cwd())),
        setup=slurm.setup,
        lead=slurm.lead,
        restarts=slurm.restarts,
        command=f'{fedpm} sweep --folder {shlex.quote(str(folder.path))} --index "$SLURM_ARRAY_TASK_ID" -- '
        f"--grace_s {grace:g}",
    )


def seconds_of(limit: str) -> int | None:
    """Return the seconds of a limit as sbatch writes it (M, M:S, H:M:S, D-H, D-H:M, D-H:M:S); None if it is none."""
    found = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", limit.strip())
    if found is None:
        return None
    days, *rest = found.groups()
    numbers = [int(part) for part in rest if part is not None]
    if days is not None:
        hours, minutes, seconds = (*numbers, 0, 0)[:3]
    elif len(numbers) == 3:
        hours, minutes, seconds = numbers
    else:
        hours, (minutes, seconds) = 0, (*numbers, 0)[:2]
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds


def check_lead(slurm: Slurm) -> None:
    """Check that the signal comes while a run still has time.

    Raises:
        SweepError: If it would come before the run has begun, or the time limit cannot be read.
    """
    limit = slurm.directives.get("time")
    if slurm.lead < 1:
        raise SweepError(f"--lead must be at least 1 second, got {slurm.lead}")
    if limit is None:
        return
    seconds = seconds_of(limit)
    if seconds is None:
        raise SweepError(f"--time {limit} is no time limit; write H:M:S, such as 4:00:00, or D-H:M:S")
    if 0 < seconds <= 2 * slurm.lead:
        raise SweepError(
            f"--lead {slurm.lead} leaves {max(seconds - slurm.lead, 0)} s of --time {limit} to train in: "
            f"give more --time, or --lead {max(seconds // 4, 1)}"
        )


def array_of(indices: Sequence[int]) -> str:
    """Write indices as sbatch does: `0-3,7,9-10`."""
    runs: list[list[int]] = []
    for index in sorted(indices):
        if runs and runs[-1][-1] == index - 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def submit(folder: SweepFolder, script: str) -> str:
    """Write the batch file into the sweep's folder and hand it to the scheduler.

    Returns:
        What sbatch said.

    Raises:
        SweepError: If there is no sbatch, or it refused.
    """
    file = folder.path / "slurm" / "array.sbatch"
    file.parent.mkdir(parents=True, exist_ok=True)  # SLURM does not make the folder of its output files
    file.write_text(script, encoding="utf-8")
    if shutil.which("sbatch") is None:
        raise SweepError(f"there is no sbatch on this machine; on the cluster's login node:  sbatch {file}")
    done = subprocess.run(["sbatch", str(file)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SweepError(f"sbatch refused {file}:\n  {done.stderr.strip()}")
    return f"{done.stdout.strip()} ({file})"


def pairs(entries: Sequence[str]) -> dict[str, str]:
    """Read `--sbatch key=value` options; a key alone is a flag.

    Raises:
        SweepError: If an entry has no key.
    """
    found: dict[str, str] = {}
    for entry in entries:
        key, _, value = entry.partition("=")
        if not key.strip("-"):
            raise SweepError(f"--sbatch {entry!r}: write key=value, such as --sbatch constraint=a100")
        found[key.lstrip("-")] = value
    return found
