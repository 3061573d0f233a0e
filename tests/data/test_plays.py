"""Plays: roles, characters, windows, and that no character lies on two sides of a split."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fedpm_lightning.data import (
    IID,
    ArraySet,
    BrokenDataError,
    DataRequest,
    FeatureShift,
    FederatedData,
    MissingDataError,
    Natural,
)
from fedpm_lightning.data.prepare import prepare
from fedpm_lightning.data.sources import is_language, load
from fedpm_lightning.data.sources.plays import LEAF, LENGTH, encode, read_roles, windows
from fedpm_lightning.types import LocalWork

REAL = Path(os.environ.get("FEDPM_TEST_DATA") or Path(__file__).parents[2] / ".." / "shared" / "data").resolve()


def request(file: Path, **arguments) -> DataRequest:
    return DataRequest("shakespeare", str(file), file.parent, **arguments)


def loaded(file: Path, **arguments) -> ArraySet:
    return load(request(file, **arguments))


def data(file: Path, **arguments) -> FederatedData:
    given = {"num_clients": 4, "partition": Natural(), "val_fraction": 0.0, **arguments}
    return FederatedData("shakespeare", str(file), str(file.parent), **given)


def written(tmp_path: Path, text: str | bytes) -> Path:
    file = tmp_path / "play.txt"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def decoded(codes) -> str:
    return "".join((LEAF + "#")[code] for code in codes)


def said(part: torch.Tensor, targets: torch.Tensor) -> str:
    """The text that windows of stride 1 were cut from."""
    return decoded([*part[0], *targets])


SPEECHES = "A:\nOne: two,\nthus:\n\nB b.:\nThree.\n\nA:\nFour\n"


@pytest.mark.parametrize("text", [SPEECHES, SPEECHES.replace("\n", "\r\n"), "\ufeff\n\n" + SPEECHES + "\n"])
def test_a_role_says_the_lines_below_its_name(tmp_path, text):
    """A colon within a speech is no role: those stand behind a blank line."""
    assert read_roles(written(tmp_path, text)) == {"A": "One: two,\nthus:\nFour\n", "B b.": "Three.\n"}


def test_a_blank_line_within_a_speech_ends_nothing(tmp_path):
    assert read_roles(written(tmp_path, "A:\none\n\ntwo\n")) == {"A": "one\ntwo\n"}


def test_characters_are_leafs_and_all_others_are_one():
    assert len(LEAF) == len(set(LEAF)) == 80
    assert encode(LEAF).tolist() == list(range(80)) and encode("$\u00e9\U0001f3ad\t\x7f").tolist() == [80] * 5


@pytest.mark.parametrize("stride", [1, 7, 80, 81, 200])
def test_windows_hold_what_the_text_does(stride):
    codes = np.arange(500)
    cut = windows(codes, stride)
    assert cut.shape == (len(range(0, 500 - LENGTH, stride)), LENGTH + 1)
    assert all(
        (row == np.arange(first, first + 81)).all() for row, first in zip(cut, range(0, 420, stride), strict=True)
    )
    assert len(windows(codes[:80], 1)) == 0 and len(windows(codes[:81], 1)) == 1


def test_training_and_test_text_are_the_two_parts_of_what_a_role_says(tiny_play):
    roles, found = read_roles(tiny_play), loaded(tiny_play)
    names = sorted(roles)
    assert found.client_names == tuple(name for name in names if name != "SHORT"), "too little for one window"
    assert found.num_classes == 81 and found.language and found.x_train.dtype == found.y_train.dtype == torch.int64
    for number, name in enumerate(found.client_names):
        mine, tests = found.groups == number, found.test_groups == number
        first, last = said(found.x_train[mine], found.y_train[mine]), said(found.x_test[tests], found.y_test[tests])
        assert first + last == roles[name] and len(last) == round(0.2 * len(roles[name]))


@pytest.mark.parametrize("stride", [1, 3, 8, 80, 100])
@pytest.mark.parametrize("partition", [Natural(), IID()])
def test_validation_is_the_last_text_of_each_role_and_shares_no_character_with_training(tiny_play, stride, partition):
    """Of a text whose characters are all different: what training saw, validation does not contain."""
    raw = loaded(tiny_play, stride=stride)
    places = torch.arange(len(raw.y_train)) * stride  # each window holds places .. places + 80; roles are far apart
    far = replace(raw, x_train=places[:, None] + 10**6 * raw.groups[:, None] + torch.arange(80))
    found = prepare(far, partition, 4, seed=0, val_fraction=0.25)
    train, val = found.data.x_train, found.x_val
    assert not set((train[:, 0:1] + torch.arange(81)).flatten().tolist()) & set(val.flatten().tolist())
    for role in range(4):
        mine, held, whole = (x[:, 0][x[:, 0] // 10**6 == role] for x in (train, val, far.x_train))
        n = len(whole)
        assert len(held) == round(0.25 * n) and len(mine) + len(held) + (80 // stride) * (len(held) > 0) == n
        assert mine.tolist() == whole[: len(mine)].tolist() and held.tolist() == whole[n - len(held) :].tolist()
    assert len(found.parts) == 4 and found.report.names == (list(raw.client_names) if partition == Natural() else None)
    assert (found.data.groups is None) == (partition == IID())


def test_a_role_that_would_have_nothing_left_is_not_held_out(tiny_play):
    """At stride 1 the 80 windows before the validation ones are left out, which is more than the smallest role has."""
    found = data(tiny_play, val_fraction=0.75)
    sizes = torch.bincount(loaded(tiny_play).groups).tolist()
    expected = [n - (h + 80 if h + 80 < n else 0) for n in sizes for h in [round(0.75 * n)]]
    assert found.partition_report.sizes == expected and min(sizes) in expected
    assert len(found.prepared.y_val) == sum(round(0.75 * n) for n in sizes if n != min(sizes))
    assert data(tiny_play).partition_report.sizes == sizes
    with pytest.raises(ValueError, match=r"val_fraction 1e-09 of \d+ training samples holds none out"):
        data(tiny_play, val_fraction=1e-9).setup()


def test_some_of_the_roles_are_tested_on_their_own_text(tiny_play):
    raw = loaded(tiny_play)
    train, test = (torch.bincount(groups, minlength=4) for groups in (raw.groups, raw.test_groups))
    two = data(tiny_play, num_clients=2, partition=Natural(clients="largest"))
    kept = sorted(range(4), key=lambda k: -train[k])[:2]
    assert two.partition_report.sizes == [int(train[k]) for k in sorted(kept)]
    assert two.partition_report.names == [raw.client_names[k] for k in sorted(kept)]
    assert len(two.prepared.data.y_test) == int(test[kept].sum())
    drawn = {tuple(data(tiny_play, num_clients=2, partition=Natural(clients="random"), seed=s).partition_report.names)
             for s in range(8)}  # fmt: skip
    assert len(drawn) > 2
    with pytest.raises(ValueError, match=r"names 4 clients but num_clients is 2; set .* to 4, or data\.partition\.cl"):
        data(tiny_play, num_clients=2).setup()
    big = Natural(min_samples=int(train.sort().values[1]))  # counted before validation is held out
    assert len(data(tiny_play, num_clients=3, partition=big, val_fraction=0.2).partition_report.sizes) == 3
    with pytest.raises(ValueError, match=r"names 3 clients with at least \d+ samples .* set data\.num_clients to 3$"):
        data(tiny_play, partition=big).setup()


def test_limits_keep_every_role_only_where_roles_are_clients(tiny_play):
    assert sorted(data(tiny_play, limit_train=4).partition_report.sizes) == [1] * 4
    found = data(tiny_play, limit_train=3, num_clients=3, partition=IID(), limit_test=5)
    assert found.partition_report.sizes == [1] * 3 and len(found.prepared.data.y_test) == 5
    with pytest.raises(ValueError, match="limit_train is 3, but each of the 4 clients"):
        data(tiny_play, limit_train=3).setup()


def test_batches_are_token_ids_whatever_the_precision(tiny_play):
    found = data(tiny_play, batch_size=8)
    x, y = next(found.client(0).batches(0, LocalWork(steps=1)))
    assert x.shape == (8, 80) and x.dtype == y.dtype == torch.int64 and found.input_shape == (80,)
    assert found.language and not FederatedData().language
    assert is_language("shakespeare", "", tiny_play.parent) and not is_language("digits", "", tiny_play.parent)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "is empty"),
        ("\n\n\n", "is empty"),
        ("\nOnce upon a time\n", "line 2: expected a role, `NAME:`, got 'Once upon a time'"),
        (":\nwords\n", "line 1: expected a role"),
        ("A:\nwords\n\nB:\n", "expected a role that says more than 80 characters in its first 80 %"),
        (b"A:\nw\xe9\n", "expected UTF-8 text, got byte 0xe9"),
    ],
)
def test_what_is_no_play_is_refused_in_words(tmp_path, text, match):
    with pytest.raises(BrokenDataError, match=match):
        loaded(written(tmp_path, text))


def test_where_the_file_is_looked_for(tmp_path, tiny_play):
    with pytest.raises(MissingDataError, match=r"no file .*; download .*1\.1 MB.* as .*tinyshakespeare\.txt"):
        load(DataRequest("shakespeare", "torchvision", tmp_path))
    own = tmp_path / "shakespeare"
    own.mkdir()
    with pytest.raises(MissingDataError, match=r"no \.txt file in .*shakespeare; download"):
        load(DataRequest("shakespeare", "torchvision", tmp_path))
    (own / "input.txt").write_text(tiny_play.read_text())
    assert torch.equal(load(DataRequest("shakespeare", "torchvision", tmp_path)).x_test, loaded(tiny_play).x_test)
    (own / "other.txt").write_text("")
    with pytest.raises(MissingDataError, match=r"2 \.txt files; name one of them with --data\.source"):
        loaded(own)
    with pytest.raises(MissingDataError, match=r"no file .*nowhere"):
        loaded(tmp_path / "nowhere")


def test_settings_that_a_set_does_not_have_are_refused(tiny_play):
    with pytest.raises(ValueError, match=r"data\.stride 8 has no effect on data\.name digits"):
        FederatedData(stride=8)
    with pytest.raises(ValueError, match=r"data\.stride must be at least 1"):
        data(tiny_play, stride=0)
    with pytest.raises(ValueError, match=r"column 'speaker' has no effect on data\.name shakespeare"):
        data(tiny_play, partition=Natural("speaker")).setup()
    with pytest.raises(ValueError, match="FeatureShift shifts inputs, which token ids cannot be"):
        data(tiny_play, partition=FeatureShift()).setup()
    for wrong in ({"clients": "some"}, {"min_samples": 0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            Natural(**wrong)


def test_the_tiny_shakespeare():
    file = REAL / "shakespeare" / "tinyshakespeare.txt"
    if not file.is_file():
        pytest.skip(f"no {file}; set FEDPM_TEST_DATA to a folder with shakespeare/tinyshakespeare.txt")
    roles = read_roles(file)
    assert len(roles) == 309 and sum(map(len, roles.values())) == 1_027_852
    assert roles["First Citizen"].startswith("Before we proceed any further, hear me speak.\nYou are all resolved")
    codes = encode("".join(roles.values()))
    assert int((codes == 80).sum()) == "".join(roles.values()).count("$") == 1
    found = loaded(file, stride=80)
    assert len(found.client_names) == 247 and found.overlap == 1
