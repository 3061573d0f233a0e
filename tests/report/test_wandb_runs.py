"""Runs read from W&B's offline files are the runs of their folders; what W&B's server returns takes the same way."""

from __future__ import annotations

import shutil
import struct
from types import SimpleNamespace

import pytest

from fedpm_lightning.callbacks.run.weights_and_biases import finish_wandb
from fedpm_lightning.cli import main
from fedpm_lightning.report.records import RunError
from fedpm_lightning.report.run import Column, Heterogeneity
from fedpm_lightning.report.runs import find_runs
from fedpm_lightning.report.weights_and_biases.offline import read_file, read_offline, records
from fedpm_lightning.report.weights_and_biases.record import WandbRecord, only_ours, read_project, record_of, to_run
from resume_parts import until

CONFIG = {
    "seed_everything": 3,
    "rounds": 2,
    "label": "FedAvg",
    "data": {"name": "digits", "partition": {"class_path": "a.Dirichlet", "init_args": {"alpha": 0.5}}},
    "model": {"method": {"class_path": "a.FedAvg", "init_args": {"lr": 0.1}}},
}


def rows(*numbers, **figures):
    return [{"round": number, "val/acc": number / 10, "_step": number, **figures} for number in numbers]


@pytest.fixture
def logged(quickstart, tmp_path, monkeypatch):
    """A real run of two rounds, and its offline files moved elsewhere, as somebody else would hand them over."""
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.delenv("WANDB_DIR", raising=False)
    words = ("--rounds", "2", "--model.local_epochs", "1", "--data.limit_train", "200")
    wandb = ("--trainer.logger", "WandbLogger", "--trainer.logger.offline", "true")
    run = quickstart(*words, *wandb, folder="runs/one")
    finish_wandb(0)
    assert run.code == 0
    (file,) = run.folder.glob("wandb/offline-run-*/*.wandb")
    # W&B's service is another process: its last record says that the file is complete.
    until(lambda: any(record.HasField("exit") for record in records(file)))
    theirs = tmp_path / "theirs" / file.parent.name
    shutil.copytree(file.parent, theirs)
    return run, theirs


def test_an_offline_run_is_the_run_of_its_folder(logged, capsys, tmp_path):
    run, theirs = logged
    ((mine,), (other,)) = find_runs([run.folder]), find_runs([theirs.parent])
    assert other.setting == mine.setting and other.history.rows == mine.history.rows
    assert other.history.initial == mine.history.initial and other.history.monitor == mine.history.monitor
    assert (other.label, other.seed, other.column, other.state) == (mine.label, mine.seed, mine.column, "finished")
    assert other.summary["partition_hash"] == mine.summary["partition_hash"] and other.path == theirs
    tables = []
    for path in (run.folder, theirs, next(theirs.glob("*.wandb"))):
        capsys.readouterr()
        assert main(["compare", str(path)]) == 0
        tables.append(capsys.readouterr().out)
    assert tables[0] == tables[1] == tables[2]
    assert main(["compare", str(run.folder), str(theirs), "--format", "markdown"]) == 0
    shown = capsys.readouterr().out
    assert "(1)** |" in shown and "seed 0 is there already" in shown, "the same run twice is one run"
    cut_short(theirs, tmp_path / "cut")


def cut_short(whole, folder):
    """A file that a kill cut in the middle of its last records is a run that did not finish."""
    folder.mkdir()
    (file,) = whole.glob("*.wandb")
    data = file.read_bytes()
    for share in (0.3, 0.9):
        (folder / file.name).write_bytes(data[: int(len(data) * share)])
        number, record = read_file(folder / file.name)
        assert not record.ended_well and number in file.name
    assert to_run(record).state == "unfinished"


def test_a_bad_file_among_others_costs_one_line(tmp_path, capsys):
    bad, good = tmp_path / "run-bad.wandb", tmp_path / "run-good.wandb"
    bad.write_bytes(b"not W&B's")
    good.write_bytes(b":W&B\0\0\0")
    assert len(read_offline([bad, good])) == 1
    assert "skipped" in (told := capsys.readouterr().err) and "run-bad.wandb is not a W&B file" in told


def test_a_file_of_something_else_is_refused(tmp_path):
    (tmp_path / "x.wandb").write_bytes(b"not W&B's")
    with pytest.raises(RunError, match="is not a W&B file"):
        find_runs([tmp_path])


def frames(messages):
    """Write messages in LevelDB's framing, cut at the ends of 32 KiB blocks."""
    data = b":W&B\x00\x00\x00"
    for message in messages:
        first = True
        while first or message:
            left = 32768 - len(data) % 32768
            if left < 7:
                data, left = data + b"\x00" * left, 32768
            part, message = message[: left - 7], message[left - 7 :]
            kind = {(True, True): 1, (True, False): 2, (False, False): 3, (False, True): 4}[first, not message]
            data += struct.pack("<IHB", 0, len(part), kind) + part
            first = False
    return data


def test_the_pieces_of_a_resumed_run_are_one_run(tmp_path):
    import json

    from wandb.proto.wandb_internal_pb2 import Record

    def message(kind, **entries):
        record = Record()
        place = {"config": record.config.update, "history": record.history.item, "summary": record.summary.update}
        for key, value in entries.items():
            item = place[kind].add()
            item.key, item.value_json = key, json.dumps(value)
        return record.SerializeToString()

    def exit_record(code):
        record = Record()
        record.exit.exit_code = code
        return record.SerializeToString()

    def piece(stamp, *messages):
        folder = tmp_path / f"offline-run-{stamp}-abc"
        folder.mkdir()
        (folder / "run-abc.wandb").write_bytes(frames(messages))

    padding = message("config", filler="x" * 70_000)  # longer than two blocks
    config = [padding, message("config", **CONFIG)]
    piece("20260101_000000", *config, *(message("history", **row) for row in rows(1)))
    again = [message("history", **{"round": 1, "val/acc": "NaN"}), message("history", **rows(2)[0])]
    piece("20260101_000100", *config, *again, message("summary", monitor="val/acc", finished=True), exit_record(0))
    (run,) = find_runs([tmp_path])
    assert [row["round"] for row in run.history.rows] == [1, 2] and run.history.rows[1]["val/acc"] == 0.2
    assert run.history.rows[0]["val/acc"] != run.history.rows[0]["val/acc"], "logged last as NaN"
    assert run.state == "finished" and run.resumed_after == [1] and run.path.name.endswith("000100-abc")
    assert len(read_offline(sorted(tmp_path.rglob("*.wandb")))) == 1


@pytest.mark.parametrize(
    ("change", "state"),
    [
        ({"ended_well": True}, "finished"),
        ({"ended_well": False}, "unfinished"),
        ({"ended_well": True, "rows": rows(1)}, "unfinished"),
        ({"ended_well": True, "rows": rows(1), "summary": {"finished": True}}, "finished"),
        ({"ended_well": True, "rows": [*rows(1), {"round": 2, "diverged": 1}]}, "diverged"),
    ],
)
def test_the_state_of_a_run_that_did_not_record_its_facts(change, state):
    run = to_run(WandbRecord(**{"name": "somewhere", "config": CONFIG, "rows": rows(1, 2), **change}))
    assert run.state == state
    assert (run.label, run.seed, run.column) == ("FedAvg", 3, Column("digits", Heterogeneity(value=0.5)))


def test_runs_of_something_else_are_passed_over_with_a_line(capsys):
    ours, other = WandbRecord("ours", CONFIG), WandbRecord("elsewhere", {"lr": 1})
    assert only_ours([other, ours]) == [ours]
    assert capsys.readouterr().err == "skipped a W&B run of something else: elsewhere\n"
    with pytest.raises(RunError, match=r"no W&B run of fedpm-lightning .*: elsewhere"):
        only_ours([other])


def test_what_the_server_returns_takes_the_same_way():
    remote = SimpleNamespace(
        id="x1", config=CONFIG, state="finished", summary={"monitor": "val/acc", "initial/val/acc": 0.05}
    )
    remote.scan_history = lambda: iter(rows(1, 2, **{"trainer/global_step": 7, "epoch": 1}))
    run = to_run(record_of(remote, "me/project"))
    assert str(run.path) == "wandb:me/project/x1" and run.state == "finished"
    assert run.history.rows == [{"round": 1, "val/acc": 0.1}, {"round": 2, "val/acc": 0.2}]
    assert run.history.initial == {"val/acc": 0.05} and tuple(run.history.monitor) == ("val/acc", "max")


@pytest.mark.parametrize("project", ["", "only", "a/b/c", "/b"])
def test_a_project_needs_its_entity(project):
    with pytest.raises(RunError, match="write wandb:ENTITY/PROJECT"):
        read_project(project)


def test_without_a_login_the_verb_says_how(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    assert main(["compare", "wandb:me/project"]) == 2
    assert "wandb login" in capsys.readouterr().err
