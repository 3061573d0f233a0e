"""Reads what W&B wrote offline."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path


def records(file: Path) -> Iterator:
    """Read an offline run: LevelDB log framing (32 KiB blocks, 7-byte headers) around protobuf records.

    A record whose end has not been written yet ends the reading.
    """
    from google.protobuf.message import DecodeError
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, pending = file.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:  # the padding at a block's end
            at += 32768 - at % 32768
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        if kind == 0 or at + 7 + length > len(data):  # W&B's service is still writing: what is whole comes first
            return
        pending += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            try:
                record = Record.FromString(pending)
            except DecodeError:  # the same: its bytes are not all there yet
                return
            yield record
            pending = b""


def flat(items) -> dict:
    return {"/".join([*item.nested_key] or [item.key]): json.loads(item.value_json) for item in items}
