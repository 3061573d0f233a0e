"""Decoded tensors on disk: read without pickle, keyed by the content of their source files, written atomically."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedpm_lightning.errors import first_line

log = logging.getLogger(__name__)

FORMAT = 2
"""Raised when the content of a cache file changes its meaning."""

CHECKSUM = "crc32"
"""Its key in a cache file; torch.load itself does not notice flipped bits."""

Tensors = dict[str, Tensor]


def data_root(root: str | None) -> Path:
    """Return the folder for downloads: `root`, else $FEDPM_DATA, else one in the user's cache."""
    return Path(root or os.environ.get("FEDPM_DATA") or "~/.cache/fedpm-lightning").expanduser()


def cache_key(files: Sequence[Path], **settings: object) -> str:
    """Digest what a decoded copy depends on: the settings, and the names and whole content of the files.

    Sizes and times of change would be cheaper and wrong: an unpacked archive restores both, so that two sets of images
    of one shape agree in all of them. Reading the files takes less than reading the larger decoded copy.
    """
    digest = hashlib.sha256(json.dumps([FORMAT, settings], sort_keys=True, default=str).encode())
    for file in files:
        # The folders count as well: in <split>/<client>/<class>/<file> they carry the label.
        digest.update("/".join(file.parts[-4:]).encode() + b"\0")
        with file.open("rb") as content:
            digest.update(hashlib.file_digest(content, "sha256").digest())
    return digest.hexdigest()[:16]


def cached(path: Path, names: Sequence[str], build: Callable[[], Tensors]) -> Tensors:
    """Return the tensors kept at `path`, or build and keep them.

    A damaged file is ignored and rewritten; a folder that cannot be written costs only the time of the
    next decoding.

    Args:
        path: The cache file.
        names: Tensors that must be in it.
        build: Makes the tensors.
    """
    kept = _read(path, names)
    if kept is not None:
        return kept
    tensors = build()
    try:
        _write(path, {**tensors, CHECKSUM: torch.tensor(_checksum({name: tensors[name] for name in names}))})
    except (OSError, RuntimeError) as error:
        # torch.save reports a full disk as a RuntimeError of several lines.
        log.warning("the decoded data are not kept in %s and will be decoded again: %s", path, first_line(error))
    return tensors


def _read(path: Path, names: Sequence[str]) -> Tensors | None:
    if not path.is_file():
        return None
    try:
        content: Any = torch.load(path, weights_only=True)
        tensors: Tensors = {name: content[name] for name in names}
        if int(content[CHECKSUM]) == _checksum(tensors):
            return tensors
        reason = "its checksum does not match"
    except Exception as error:
        # A half-written or foreign file can fail in any layer below torch.load.
        reason = first_line(error)
    log.warning("%s is damaged and is built again: %s", path, reason)
    return None


def _checksum(tensors: Tensors) -> int:
    value = 0
    for name, tensor in tensors.items():
        header = f"{name} {tensor.dtype} {list(tensor.shape)}".encode()
        value = zlib.crc32(tensor.contiguous().numpy().data, zlib.crc32(header, value))
    return value


def _write(path: Path, tensors: Tensors) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Two processes may write at once: each fills a file of its own, and the rename decides.
    partial = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        torch.save(tensors, partial)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
