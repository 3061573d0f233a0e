"""Plays as text: one client a speaking role, 80 characters in, the next one out (the Shakespeare task of LEAF).

A speech begins, at the start of the file or after a blank line, with `NAME:` on a line of its own; the lines below are
its text. A role's text is all its speeches in the file's order, a newline after each line. The first 80 % of its
characters are for training, the rest for testing, and windows are cut afterwards: no character lies on both sides.

LEAF (Caldas et al. 2018) differs in that it tells plays apart, which this form of file does not name, and in that it
gives the unknown character no index of its own. The file of 1.1 MB is read in 0.1 s, so that no copy is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fedpm_lightning.data.arrays import ArraySet, DataRequest, check_memory
from fedpm_lightning.data.partitions.base import Natural
from fedpm_lightning.errors import BrokenDataError, MissingDataError

PLAYS = ("shakespeare",)
"""The named sets of this form."""

LEAF = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
"""LEAF's 80 characters, in its order; any other one is number 80, so that there are 81 classes."""

LENGTH = 80
"""Characters that go in."""

TEST_SHARE = 0.2
"""Of a role's characters, the last ones."""

_SITE = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"

Codes = NDArray[np.int64]


def load_play(request: DataRequest) -> ArraySet:
    """Load a file of plays; a role whose training text gives no window is left out.

    Raises:
        MissingDataError: If there is no file; the message says where it is looked for and where to get it.
        BrokenDataError: If it is not in this form; the message gives file, line and what was expected.
        ValueError: If a column of client ids is named.
    """
    if request.group_column not in (None, Natural.column):
        raise ValueError(
            f"data.partition.column {request.group_column!r} has no effect on data.name {request.name}, where the "
            "speaking roles are the clients; leave it out"
        )
    path, stride = play_file(request), request.stride or 1
    texts = {role: encode(text) for role, text in sorted(read_roles(path).items())}
    cuts = {role: len(codes) - round(TEST_SHARE * len(codes)) for role, codes in texts.items()}
    train = {role: windows(codes[: cuts[role]], stride) for role, codes in texts.items()}
    train = {role: found for role, found in train.items() if len(found)}
    if not train:
        raise BrokenDataError(f"{path}: expected a role that says more than {LENGTH} characters in its first 80 %")
    test = {role: windows(texts[role][cuts[role] :], stride) for role in train}
    check_memory((sum(map(len, train.values())) + sum(map(len, test.values())), LENGTH + 1), 8, str(path))
    (x_train, y_train, groups), (x_test, y_test, test_groups) = stacked(train), stacked(test)
    return ArraySet(
        x_train,
        y_train,
        x_test,
        y_test,
        num_classes=len(LEAF) + 1,
        groups=groups,
        test_groups=test_groups,
        client_names=tuple(train),
        overlap=LENGTH // stride,
        language=True,
    )


def play_file(request: DataRequest) -> Path:
    """Return the file that `source` names: itself, or the only .txt file of a folder.

    Without a source (its default, "torchvision") the folder is `root`/shakespeare.

    Raises:
        MissingDataError: If it is not there.
    """
    own = request.source == "torchvision"
    place = request.root / request.name if own else Path(request.source).expanduser()
    found = sorted(place.glob("*.txt")) if place.is_dir() else [place] if place.is_file() else []
    if len(found) > 1:
        raise MissingDataError(f"{place}: {len(found)} .txt files; name one of them with --data.source")
    if not found:
        what = "no .txt file in" if place.is_dir() else "no file"
        raise MissingDataError(
            f"{what} {place}; download the tiny Shakespeare (1.1 MB) from {_SITE}, put it "
            f"{'there as ' + str(place / 'tinyshakespeare.txt') if own else 'there'} or name it with --data.source"
        )
    return found[0]


def read_roles(path: Path) -> dict[str, str]:
    """Return what each role says, in the order in which they first speak.

    Raises:
        BrokenDataError: At the first line that belongs to no role, or is not UTF-8.
    """
    lines: dict[str, list[str]] = {}
    role, after_blank = "", True
    try:
        with path.open(encoding="utf-8-sig") as file:
            for number, raw in enumerate(file, start=1):
                line = raw.rstrip("\n")
                if after_blank and line.rstrip().endswith(":") and line.strip() != ":":
                    role = line.strip()[:-1]
                    lines.setdefault(role, [])
                elif line.strip():
                    if not role:
                        raise BrokenDataError(f"{path}, line {number}: expected a role, `NAME:`, got {line[:40]!r}")
                    lines[role].append(line)
                after_blank = not line.strip()
    except UnicodeDecodeError as cause:
        raise BrokenDataError(f"{path}: expected UTF-8 text, got byte {cause.object[cause.start]:#x}") from None
    if not lines:
        raise BrokenDataError(f"{path}: expected speeches, a line `NAME:` and lines of text; the file is empty")
    return {role: "".join(f"{line}\n" for line in said) for role, said in lines.items()}


def encode(text: str) -> Codes:
    """Return the number of each character, [len(text)]."""
    table = np.full(128, len(LEAF), dtype=np.int64)
    table[[ord(character) for character in LEAF]] = np.arange(len(LEAF))
    points = np.frombuffer(text.encode("utf-32-le"), dtype="<u4").astype(np.int64)
    return np.where(points < len(table), table[np.minimum(points, len(table) - 1)], len(LEAF))


def windows(codes: Codes, stride: int) -> Codes:
    """Return every window of 81 characters that begins at a multiple of `stride`, [n, 81]."""
    if len(codes) <= LENGTH:
        return np.empty((0, LENGTH + 1), dtype=np.int64)
    return np.lib.stride_tricks.sliding_window_view(codes, LENGTH + 1)[::stride]


def stacked(parts: Mapping[str, Codes]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the inputs [n, 80], the targets [n] and the number of the role [n] of all roles' windows."""
    rows = torch.from_numpy(np.concatenate(list(parts.values())))
    owner = np.repeat(np.arange(len(parts)), [len(found) for found in parts.values()])
    return rows[:, :-1].contiguous(), rows[:, -1].contiguous(), torch.from_numpy(owner)
