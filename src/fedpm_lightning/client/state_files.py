"""Client states on disk, written once and memory-mapped, so that only what is read takes memory.

The files are scratch, not checkpoints: they lie in a hidden folder that goes with the process, and a start removes what
a killed one left. The folder is the run's own, because the system's temporary folder is often memory itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import shutil
import tempfile
import weakref
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from fedpm_lightning.nested import named_leaves
from fedpm_lightning.types import ClientState

MIB = 2**20


class StateFiles:
    """A scratch folder of states, created with the first one.

    Args:
        parent: Where the folder is made; None: where the system keeps temporary files.
        rank: This process among those that share `parent`.
    """

    def __init__(self, parent: Path | None = None, rank: int = 0) -> None:
        self._parent = parent
        self._prefix = f".client-states-{rank}-"
        self._folder: Path | None = None
        self._remove: Callable[[], object] | None = None
        self._files: dict[int, Path] = {}
        self._written = 0
        if parent is not None:
            for left in parent.glob(f"{self._prefix}*"):
                shutil.rmtree(left, ignore_errors=True)

    def __contains__(self, client: int) -> bool:
        return client in self._files

    def write(self, client: int, state: ClientState) -> ClientState:
        """Write a client's state; return the same as tensors that lie in the file.

        Raises:
            OSError: If there is no room.
        """
        self.drop(client)
        buffer = io.BytesIO()
        torch.save(state, buffer)
        # A name is never used twice: somebody may still hold tensors of the file before.
        self._written += 1
        path = self._place() / f"{client}-{self._written}.pt"
        path.write_bytes(buffer.getbuffer())
        self._files[client] = path
        return torch.load(path, map_location="cpu", mmap=True, weights_only=True)

    def drop(self, client: int) -> None:
        """Remove a client's file; tensors that map it stay valid."""
        path = self._files.pop(client, None)
        if path is not None:
            with contextlib.suppress(PermissionError):  # Windows removes a mapped file only with its folder
                path.unlink(missing_ok=True)

    def close(self) -> None:
        """Remove all files."""
        self._files.clear()
        if self._remove is not None:
            self._remove()
        self._folder = self._remove = None

    def _place(self) -> Path:
        if self._folder is None:
            if self._parent is not None:
                self._parent.mkdir(parents=True, exist_ok=True)
            self._folder = Path(tempfile.mkdtemp(prefix=self._prefix, dir=self._parent))
            # Also where a run ends with an error: at the latest when the process does.
            self._remove = weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        return self._folder


def give_back_memory() -> None:
    """Return the C allocator's free pages to the system, if it is glibc's.

    It keeps blocks of a state's size for later ones, between which live states lie: without this the process keeps
    growing with the clients, and only the states themselves are bounded.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def size_of(value: object) -> int:
    """Return the bytes of all tensors in a state."""
    return sum(leaf.nbytes for _, leaf in named_leaves(value) if isinstance(leaf, Tensor))
