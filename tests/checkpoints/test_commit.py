"""A checkpoint is there or not: whichever write a kill falls on, a whole one is found, and no client's file is lost."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from fedpm_lightning.checkpoints.atomic_files import DiskFullError, write_durably
from fedpm_lightning.checkpoints.checkpoint_io import RunCheckpointIO
from fedpm_lightning.checkpoints.identity import compare, refuse
from fedpm_lightning.checkpoints.manifest import Manifest, checkpoint_file, keep_only, manifest_file, newest_intact
from fedpm_lightning.report.setting import setting_of


class Killed(BaseException):
    pass


def content(round: int) -> dict:
    """Return a checkpoint after `round` rounds: client 0 took part in round 1 only, client 1 in every round."""
    clients = {0: {"c": torch.full((3,), 1.0)}, 1: {"c": torch.full((3,), float(round))}}
    return {"global_step": round, "federated": {"clients": clients, "changed": {0: 0, 1: round - 1}}}


def save(files: RunCheckpointIO, round: int) -> None:
    files.save_checkpoint(content(round), checkpoint_file(files.folder, round))
    keep_only(files.folder, {round, round - 1})


def clients_in(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "clients").iterdir())


def test_only_changed_clients_are_written_and_old_versions_go(tmp_path):
    files = RunCheckpointIO(tmp_path)
    save(files, 1)
    first = (tmp_path / "clients" / "0-r1.pt").stat()
    save(files, 2)
    assert clients_in(tmp_path) == ["0-r1.pt", "1-r1.pt", "1-r2.pt"]
    save(files, 3)
    assert clients_in(tmp_path) == ["0-r1.pt", "1-r2.pt", "1-r3.pt"]
    assert (tmp_path / "clients" / "0-r1.pt").stat() == first  # neither written again nor moved
    loaded = RunCheckpointIO(tmp_path).load_checkpoint(checkpoint_file(tmp_path, 3))
    assert torch.equal(loaded["federated"]["clients"][1]["c"], torch.full((3,), 3.0))


@pytest.mark.parametrize("at", range(4))
def test_a_kill_at_any_write_leaves_the_round_before_or_the_new_one(tmp_path, monkeypatch, at):
    """The third round writes a client, the checkpoint and its manifest: kill before each, and after all."""
    files = RunCheckpointIO(tmp_path)
    save(files, 1)
    save(files, 2)
    left = [at]
    replace = Path.replace

    def killed(self, target):
        if left[0] == 0:
            raise Killed
        left[0] -= 1
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", killed)
    if at < 3:
        with pytest.raises(Killed):
            save(files, 3)
    else:
        save(files, 3)
    monkeypatch.undo()
    found = newest_intact(tmp_path, warn=pytest.fail)
    assert found == checkpoint_file(tmp_path, 3 if at == 3 else 2)
    again = RunCheckpointIO(tmp_path)
    assert again.load_checkpoint(found)["global_step"] == (3 if at == 3 else 2)
    keep_only(tmp_path, {1, 2, 3} if at == 3 else {1, 2})
    save(again, 3)
    assert newest_intact(tmp_path, warn=pytest.fail) == checkpoint_file(tmp_path, 3)


@pytest.mark.parametrize("victim", ["checkpoint", "manifest", "client"])
def test_damage_is_named_and_passed_over(tmp_path, victim):
    files = RunCheckpointIO(tmp_path)
    save(files, 1)
    save(files, 2)
    path = {
        "checkpoint": checkpoint_file(tmp_path, 2),
        "manifest": manifest_file(tmp_path, 2),
        "client": tmp_path / "clients" / "1-r2.pt",
    }[victim]
    path.write_bytes(path.read_bytes()[:-30])
    told: list[str] = []
    assert newest_intact(tmp_path, told.append) == checkpoint_file(tmp_path, 1)
    assert len(told) == 1 and "round 2" in told[0]
    if victim != "manifest":
        with pytest.raises(ValueError, match="damaged"):
            files.load_checkpoint(checkpoint_file(tmp_path, 2))


def test_nothing_but_damage_is_an_error_with_the_way_out(tmp_path):
    files = RunCheckpointIO(tmp_path)
    save(files, 1)
    checkpoint_file(tmp_path, 1).unlink()
    with pytest.raises(ValueError, match="--resume never"):
        newest_intact(tmp_path, lambda line: None)


def test_a_checkpoint_never_executes_code_when_it_is_read(tmp_path):
    import pickle

    class Evil:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "executed",))

    path = tmp_path / "foreign.ckpt"
    torch.save({"x": Evil()}, path)
    with pytest.raises(pickle.UnpicklingError):
        RunCheckpointIO(tmp_path).load_checkpoint(path, weights_only=False)
    assert not (tmp_path / "executed").exists()


def test_no_room_leaves_the_old_file_and_nothing_half(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_durably(path, b"old")

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(DiskFullError, match=r"no room for .*3 bytes"):
        write_durably(path, b"new")
    assert path.read_bytes() == b"old" and [p.name for p in tmp_path.iterdir()] == ["file"]


def test_what_is_refused_and_what_is_told():
    before = {"seed_everything": 0, "model": {"l2": 0.1, "executor": "auto"}, "data": {"root": "a"}}
    now = {"seed_everything": 0, "model": {"l2": 0.2, "executor": "sequential"}, "data": {"root": "b"}}
    refused, told = compare({**before, "rounds": 3}, {**now, "rounds": 6, "trainer": {"precision": "64-true"}})
    assert [d.key for d in refused] == ["model.l2", "trainer.precision"]
    assert [d.key for d in told] == ["model.executor"]
    with pytest.raises(ValueError, match=r"model.l2: 0.1 in the checkpoint, 0.2 now"):
        refuse(refused, "x")
    refuse([], "x")


@pytest.mark.parametrize("bad", [np.ones(2), np.float64(1.0), {1: object}, RunCheckpointIO])
def test_what_could_not_be_read_back_is_refused_before_it_is_written(tmp_path, bad):
    files = RunCheckpointIO(tmp_path)
    checkpoint = {**content(1), "callbacks": {"Mine": {"kept": [bad]}}}
    with pytest.raises(ValueError, match=r"the checkpoint's callbacks\.Mine\.kept\.0\S* is a \w+, which reading"):
        files.save_checkpoint(checkpoint, checkpoint_file(tmp_path, 1))
    assert not list(tmp_path.iterdir())


def test_weights_that_a_spawned_process_hands_over_are_written(tmp_path):
    files = RunCheckpointIO(tmp_path / "checkpoints")
    files.save_checkpoint({"net.weight": torch.ones(2)}, tmp_path / ".temp.ckpt")
    assert torch.equal(files.load_checkpoint(tmp_path / ".temp.ckpt")["net.weight"], torch.ones(2))


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ({"model": {"executor": "sequential"}}, {"model": {"executor": "vectorized", "clients_per_chunk": 8}}, True),
        ({"model": {"reduce": "sum"}}, {"model": {"reduce": "ordered"}}, True),
        ({"data": {"participation": 1.0}}, {"data": {"participation": None}}, True),
        ({"data": {"num_clients": 10, "clients_per_round": 10}}, {"data": {"num_clients": 10}}, True),
        ({"data": {"participation": 0.5}}, {"data": {"participation": None}}, False),
        ({"model": {"lr_schedule": {"class_path": "a.Constant"}}}, {"model": {"lr_schedule": None}}, True),
        ({"data": {"name": "a9a", "source": "/a/x"}}, {"data": {"name": "a9a", "source": "/b/y"}}, True),
        ({"data": {"name": "mine", "source": "/a/x"}}, {"data": {"name": "mine", "source": "/b/x"}}, True),
        ({"data": {"name": "mine", "source": "/a/x"}}, {"data": {"name": "mine", "source": "/a/y"}}, False),
        ({"trainer": {"precision": "32-true"}}, {"trainer": {"precision": "64-true"}}, False),
        ({"trainer": {"accelerator": "cpu"}}, {"trainer": {"accelerator": "gpu"}}, True),
        ({"label": "a", "checkpoint_every": 1}, {"label": "b", "checkpoint_every": 5}, True),
    ],
)
def test_resume_and_compare_agree_on_what_is_the_same_experiment(one, other, same):
    assert (compare(one, other)[0] == []) is same
    a, b = ({key: value for key, value in setting_of(config, 1) if value != "None"} for config in (one, other))
    assert (a == b) is same


def test_a_checkpoint_is_deleted_after_its_manifest_and_its_clients_after_both(tmp_path, monkeypatch):
    """A kill in between leaves nothing named that is gone."""
    files = RunCheckpointIO(tmp_path)
    for round in (1, 2):
        files.save_checkpoint(content(round), checkpoint_file(tmp_path, round))
    gone: list[str] = []
    unlink = Path.unlink
    monkeypatch.setattr(Path, "unlink", lambda self, **options: (gone.append(self.name), unlink(self, **options)))
    keep_only(tmp_path, {2})
    assert gone == ["round-000001.json", "round-000001.ckpt", "1-r1.pt"]


@pytest.mark.parametrize(
    "forged",
    [
        {"round": "x"}, {"round": 2}, {"best": [1]}, {"sha256": 5}, {"config": "x"}, {"extra": 1},
        {"clients": {"0": ["../../x", "a"]}}, {"clients": {"0": ["clients/0-r1.pt/../../y.pt", "a"]}}, {"clients": [3]},
    ],
)  # fmt: skip
def test_a_forged_manifest_is_damaged_in_words(tmp_path, forged):
    save(RunCheckpointIO(tmp_path), 1)
    path = manifest_file(tmp_path, 1)
    path.write_text(json.dumps({**json.loads(path.read_text()), **forged}))
    with pytest.raises(ValueError, match="damaged"):
        Manifest.read(path)
