"""What is on the disk: one manifest a checkpoint, which commits it, and the search for the newest good one.

    checkpoints/round-000006.ckpt   weights, server, loops, callbacks
    checkpoints/round-000006.json   the manifest: checksums of that file and of the clients' files
    checkpoints/clients/3-r5.pt     client 3's state as round 5 left it
    checkpoints/last.ckpt           stands for the newest round, best.ckpt for the best

A checkpoint exists once its manifest does; whatever was written before is named by no manifest and swept later.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedpm_lightning.checkpoints.atomic_files import digest, write_durably
from fedpm_lightning.checks import is_mapping

VERSION = 1
CLIENTS = "clients"


@dataclass(frozen=True)
class Manifest:
    """One committed checkpoint.

    Attributes:
        round: Rounds done, 1-based: the checkpoint is the state after this round.
        sha256: Checksum of the checkpoint file.
        clients: Client -> (file below the checkpoints' folder, checksum).
        best: The best saved round so far.
        config: The run's configuration.
    """

    round: int
    sha256: str
    clients: dict[int, tuple[str, str]] = field(default_factory=dict[int, tuple[str, str]])
    best: int | None = None
    config: dict[str, Any] = field(default_factory=dict[str, Any])

    def write(self, folder: Path) -> None:
        """Commit the checkpoint."""
        # One line a field: `indent` and `asdict` would take a tenth of a second where 10,000 clients have a state.
        fields = {"version": VERSION, **vars(self)}
        lines = ",\n".join(f" {json.dumps(key)}: {json.dumps(value)}" for key, value in fields.items())
        write_durably(manifest_file(folder, self.round), f"{{\n{lines}\n}}\n".encode())

    @classmethod
    def read(cls, path: Path) -> Manifest:
        """Read a manifest.

        Raises:
            ValueError: If it is damaged or of another version.
        """
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if content.pop("version") != VERSION:
                raise ValueError(f"{path} is of another version than {VERSION}")
            clients = {int(client): (str(file), str(sha)) for client, (file, sha) in content.pop("clients").items()}
            found = cls(clients=clients, **content)
            if not found.is_plausible() or manifest_file(path.parent, found.round) != path:
                raise ValueError(f"{path} is damaged: it does not describe the checkpoint beside it")
            return found
        except (KeyError, TypeError, AttributeError, UnicodeDecodeError, json.JSONDecodeError) as cause:
            raise ValueError(f"{path} is damaged ({type(cause).__name__})") from cause

    def is_plausible(self) -> bool:
        """Tell whether every field is of its type, and every file lies in the checkpoints' folder."""
        inside = all(re.fullmatch(rf"{CLIENTS}/\d+-r\d+\.pt", file) for file, _ in self.clients.values())
        numbers = [self.round, *([] if self.best is None else [self.best])]
        found: dict[str, object] = vars(self)
        typed = isinstance(found["sha256"], str) and is_mapping(found["config"])
        return inside and typed and all(type(number) is int and number >= 0 for number in numbers)

    def problem(self, folder: Path) -> str | None:
        """Return what is wrong with the files that the manifest names; None if nothing is."""
        named = {checkpoint_file(folder, self.round): self.sha256}
        named |= {folder / file: sha for file, sha in self.clients.values()}
        for path, sha in named.items():
            if not path.is_file():
                return f"{path.relative_to(folder)} is missing"
            if digest(path) != sha:
                return f"{path.relative_to(folder)} has not the checksum it was written with: it is torn or changed"
        return None


def checkpoint_file(folder: Path, round: int) -> Path:
    """Return the checkpoint file of a round."""
    return folder / f"round-{round:06d}.ckpt"


def manifest_file(folder: Path, round: int) -> Path:
    """Return the manifest of a round."""
    return folder / f"round-{round:06d}.json"


def rounds_in(folder: Path, ending: str = ".json") -> list[int]:
    """Return the rounds that have a manifest (or another file of that ending), oldest first."""
    found = (re.fullmatch(rf"round-(\d+)\{ending}", path.name) for path in folder.glob(f"round-*{ending}"))
    return sorted(int(match[1]) for match in found if match)


def manifest_of(checkpoint: Path) -> Manifest | None:
    """Return the manifest beside a checkpoint file (or a link to one); None where there is none."""
    real = checkpoint.resolve()
    beside = real.with_suffix(".json")
    return Manifest.read(beside) if beside.is_file() and re.fullmatch(r"round-\d+\.ckpt", real.name) else None


def newest_intact(folder: Path, warn: Callable[[str], None] = print) -> Path | None:
    """Return the newest checkpoint that is whole, passing over damaged ones with a line; None where there is none.

    Raises:
        ValueError: If there are checkpoints and every one is damaged.
    """
    rounds = rounds_in(folder)
    for round in reversed(rounds):
        try:
            trouble = Manifest.read(manifest_file(folder, round)).problem(folder)
        except ValueError as cause:
            trouble = str(cause)
        if trouble is None:
            return checkpoint_file(folder, round)
        warn(f"skipped the checkpoint of round {round}: {trouble}")
    if rounds:
        raise ValueError(
            f"every checkpoint in {folder} is damaged (rounds {', '.join(map(str, rounds))}); restore one from a "
            "copy, or start afresh with --resume never"
        )
    last = folder / "last.ckpt"
    return last if last.is_file() else None


def keep_only(folder: Path, rounds: Iterable[int]) -> None:
    """Delete every checkpoint but those of `rounds`, and the clients' files that none of these names.

    A manifest goes before its checkpoint, and that before the clients' files: nothing is ever named that is gone.
    """
    kept = {round for round in rounds if manifest_file(folder, round).is_file()}
    for ending in (".json", ".ckpt"):
        for round in set(rounds_in(folder, ending)) - kept:
            (folder / f"round-{round:06d}{ending}").unlink(missing_ok=True)
    named = {file for round in kept for file, _ in Manifest.read(manifest_file(folder, round)).clients.values()}
    for path in (folder / CLIENTS).glob("*"):
        if f"{CLIENTS}/{path.name}" not in named:
            path.unlink(missing_ok=True)
    for path in folder.glob(".*.tmp"):
        path.unlink(missing_ok=True)
