"""Files that are whole or absent: written beside, forced to the disk, renamed; each with its SHA-256."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import shutil
from pathlib import Path
from typing import Any

import torch

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""What the system says when a disk, a quota or a file-size limit is full."""


class DiskFullError(OSError):
    """A file of the run could not be written for want of room."""


def to_bytes(content: object) -> bytes:
    """Return what torch.save writes for tensors, numbers and containers of them."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


def from_file(path: Path, mmap: bool = False) -> Any:
    """Read what `to_bytes` wrote, on the CPU; reading never executes code.

    Args:
        path: The file.
        mmap: Leave the tensors in the file until they are read. Removing the file is safe, writing to it is not.
    """
    return torch.load(path, map_location="cpu", mmap=mmap, weights_only=True)


def write_durably(path: Path, content: bytes) -> str:
    """Write a file that a kill or a power cut leaves old, new or absent, never half.

    Returns:
        The content's SHA-256.

    Raises:
        DiskFullError: If there is no room; nothing of the new file remains.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as cause:
        temporary.unlink(missing_ok=True)
        if cause.errno in NO_ROOM:
            raise DiskFullError(f"no room for {path} ({len(content)} bytes): {cause.strerror}") from cause
        raise
    sync_folder(path.parent)
    return hashlib.sha256(content).hexdigest()


def sync_folder(folder: Path) -> None:
    """Force a folder's entries (a rename) to the disk, where the system can."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:  # Windows opens no folders
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def replace_symlink(link: Path, target: Path) -> None:
    """Point `link` to `target`, a file of the same folder, atomically."""
    temporary = link.with_name(f".{link.name}.tmp")
    temporary.unlink(missing_ok=True)
    try:
        temporary.symlink_to(target.name)
    except OSError:  # a file system without links
        shutil.copyfile(target, temporary)
    temporary.replace(link)
    sync_folder(link.parent)
