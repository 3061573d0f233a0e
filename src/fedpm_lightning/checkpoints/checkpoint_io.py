"""Lightning's reading and writing of checkpoints, with the clients' states in files of their own.

A client that did not take part since the last checkpoint keeps its file: a round writes as many states as its cohort
has clients, however many clients there are.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.fabric.plugins import TorchCheckpointIO
from torch import Tensor

from fedpm_lightning.checkpoints.atomic_files import digest, from_file, to_bytes, write_durably
from fedpm_lightning.checkpoints.manifest import CLIENTS, Manifest, checkpoint_file, manifest_of, rounds_in
from fedpm_lightning.nested import named_leaves

Versions = dict[int, tuple[str, str]]
"""Client -> (file below the folder, its SHA-256)."""


class RunCheckpointIO(TorchCheckpointIO):
    """Writes a run's checkpoints durably, clients apart, and commits them with a manifest.

    Checkpoints that others ask for (a ModelCheckpoint of one's own, SLURM's requeue) are written durably, in one file.

    Args:
        folder: The run's checkpoints.

    A part that reading with `weights_only` would refuse is refused before it is written.

    Attributes:
        best: The best round, for the next manifest.
        config: The run's configuration, for the next manifest.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.best: int | None = None
        self.config: dict[str, Any] = {}
        self._versions: Versions = {}

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: object = None) -> None:
        """Write a checkpoint; the last step, the manifest, commits it."""
        # What Lightning hands from a spawned process to the first one is weights alone.
        path, round = Path(path), int(checkpoint.get("global_step", -1))
        check_readable(checkpoint)
        if path != checkpoint_file(self.folder, round):
            write_durably(path, to_bytes(checkpoint))
            return
        federated: dict[str, Any] = checkpoint["federated"]
        versions = self._write_clients(federated["clients"], federated["changed"])
        listed = {client: list(version) for client, version in versions.items()}
        whole = {**checkpoint, "federated": {**federated, "clients": listed, "side_files": True}}
        sha = write_durably(path, to_bytes(whole))
        Manifest(round, sha, versions, self.best, self.config).write(self.folder)
        self._versions = versions

    def _write_clients(self, states: dict[int, Any], changed: dict[int, int]) -> Versions:
        """Write the states that the disk does not hold; never over a file that a checkpoint names."""
        versions: Versions = {}
        for client, state in states.items():
            name = f"{CLIENTS}/{client}-r{changed[client] + 1}.pt"
            known = self._versions.get(client)
            if known is None or known[0] != name:
                known = (name, write_durably(self.folder / name, to_bytes(state)))
            versions[client] = known
        return versions

    def load_checkpoint(
        self, path: str | Path, map_location: Callable[..., object] | None = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Read a checkpoint with its clients' files. Tensors and numbers only, whatever `weights_only` says.

        Raises:
            ValueError: If a file that the checkpoint names is missing or torn.
        """
        path = Path(path)
        manifest = manifest_of(path)
        trouble = manifest.problem(path.resolve().parent) if manifest else None
        if trouble:
            raise ValueError(f"the checkpoint {path} is damaged: {trouble}; --resume auto goes on from the one before")
        checkpoint: dict[str, Any] = from_file(path)
        federated = checkpoint.get("federated", {})
        if federated.get("side_files"):
            self._join(federated, path.resolve().parent)
        return checkpoint

    def _join(self, federated: dict[str, Any], folder: Path) -> None:
        """Put the clients' states back in their place."""
        versions = {client: (file, sha) for client, (file, sha) in federated["clients"].items()}
        for file, sha in versions.values():
            if not (folder / file).is_file() or digest(folder / file) != sha:
                raise ValueError(
                    f"the checkpoint names {folder / file}, which is missing or torn: keep the folder clients beside it"
                )
        # Mapped, so that a store with a bound need not have them all in memory at once.
        federated["clients"] = {client: from_file(folder / file, mmap=True) for client, (file, _) in versions.items()}
        federated["side_files"] = False
        self._versions = versions if folder == self.folder.resolve() else {}

    def previous(self, round: int) -> int | None:
        """Return the newest committed round before `round`."""
        return max((r for r in rounds_in(self.folder) if r < round), default=None)


def check_readable(checkpoint: object) -> None:
    """Check that everything in a checkpoint can be read back.

    Raises:
        ValueError: Naming the first part that cannot.
    """
    for name, part in named_leaves(checkpoint):
        if isinstance(part, Tensor | bool | int | float | str | bytes | None) and not isinstance(part, np.generic):
            continue
        try:
            torch.load(io.BytesIO(to_bytes(part)), weights_only=True)
        except Exception as cause:
            raise ValueError(
                f"the checkpoint's {name} is a {type(part).__name__}, which reading never gives back: "
                "keep tensors, numbers and strings, in dictionaries and lists"
            ) from cause
