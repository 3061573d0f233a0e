"""Reads W&B's offline files, `offline-run-*/run-*.wandb`, without a server.

Such a file is a LevelDB log (32 KiB blocks, a 7-byte header before each piece: checksum, length, kind) of protobuf
records, after 7 bytes of W&B's own. The framing is read here, since wandb 0.31 has no reader in Python any more; the
records are wandb's own classes.
"""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

from fedpm_lightning.report.records import RunError
from fedpm_lightning.report.weights_and_biases.record import WandbRecord

_BLOCK, _HEADER, _PREFIX = 32768, 7, b":W&B"
_WHOLE, _LAST = 1, 4


def read_offline(files: Sequence[Path]) -> list[WandbRecord]:
    """Read runs from their files; the pieces of one run, which a resume adds, become one.

    Args:
        files: The *.wandb files, those of one run in the order in which they were written (by name, they are).

    Raises:
        RunError: If none of them can be read; of some that cannot a line is printed.
    """
    runs: dict[str, WandbRecord] = {}
    unreadable: list[str] = []
    for file in files:
        try:
            number, piece = read_file(file)
        except (RunError, OSError, ValueError, TypeError) as cause:  # TypeError: a value where a branch was expected
            unreadable.append(str(cause) if isinstance(cause, RunError) else f"{file}: {cause}")
            continue
        earlier = runs.pop(number, None)  # pop: a run stands where its last piece does
        runs[number] = piece if earlier is None else _continued(earlier, piece)
    if unreadable and not runs:
        raise RunError(unreadable[0])
    for line in unreadable:
        print(f"skipped a W&B file that cannot be read: {line}", file=sys.stderr)
    return list(runs.values())


def read_file(file: Path) -> tuple[str, WandbRecord]:
    """Read one file; return the run's id and what it says.

    Raises:
        RunError: If it is no W&B file.
    """
    number, found = file.stem.removeprefix("run-"), WandbRecord(str(file.parent))
    for record in records(file):
        kind = record.WhichOneof("record_type")
        if kind == "run":
            number = record.run.run_id or number
            _merge(found.config, record.run.config.update)
        elif kind == "config":
            _merge(found.config, record.config.update)
        elif kind == "history":
            found.rows.append({"/".join(item.nested_key) or item.key: _value(item) for item in record.history.item})
        elif kind == "summary":
            found.summary |= {"/".join(item.nested_key) or item.key: _value(item) for item in record.summary.update}
        elif kind == "exit":
            found.ended_well = record.exit.exit_code == 0
    return number, found


def records(file: Path) -> Iterator[Any]:
    """Yield the protobuf records of a file; one whose end has not been written (yet) ends the reading.

    Raises:
        RunError: If it does not begin as a W&B file does.
    """
    from google.protobuf.message import DecodeError
    from wandb.proto import wandb_internal_pb2

    read = cast(Any, wandb_internal_pb2).Record.FromString  # a generated module: type checkers see no classes in it
    data = file.read_bytes()
    if data and not data.startswith(_PREFIX):
        raise RunError(f"{file} is not a W&B file (it does not begin with {_PREFIX.decode()}): leave it out")
    for message in _messages(data):
        try:
            yield read(message)
        except DecodeError:
            return


def _messages(data: bytes) -> Iterator[bytes]:
    """Join the pieces of each message."""
    at, pending = _HEADER, b""
    while at + _HEADER <= len(data):
        left = _BLOCK - at % _BLOCK
        if left < _HEADER:  # the padding at a block's end
            at += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        if kind == 0 or at + _HEADER + length > len(data):  # still being written, or cut short by a kill
            return
        pending += data[at + _HEADER : at + _HEADER + length]
        at += _HEADER + length
        if kind in (_WHOLE, _LAST):
            yield pending
            pending = b""


def _merge(config: dict[str, Any], items: Iterable[Any]) -> None:
    """Enter configuration items, whole values or single leaves of nested ones."""
    for item in items:
        *branches, leaf = [*item.nested_key] or [item.key]
        place = config
        for branch in branches:
            place = place.setdefault(branch, {})
        place[leaf] = _value(item)


def _value(item: Any) -> Any:
    return json.loads(item.value_json)


def _continued(earlier: WandbRecord, later: WandbRecord) -> WandbRecord:
    """Join a run's next piece to what came before."""
    last = max((int(row["round"]) for row in earlier.rows if "round" in row), default=0)
    return WandbRecord(
        later.name,
        {**earlier.config, **later.config},
        earlier.rows + later.rows,
        {**earlier.summary, **later.summary},
        later.ended_well,
        [*earlier.resumed_after, last],
    )
