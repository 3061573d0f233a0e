from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from fedpm_lightning.callbacks.run.partition_picture import PartitionPicture

pytestmark = pytest.mark.pictures
SPLIT = {"partition": {"kind": "IID", "arguments": {}}, "sizes": [1, 2], "histogram": [[1, 0], [0, 2]], "seed": 0}


def start(folder, split=SPLIT, step=0, rank=0):
    data = SimpleNamespace(name="toy", partition_report=SimpleNamespace(to_dict=lambda: dict(split)))
    trainer = SimpleNamespace(is_global_zero=rank == 0, fast_dev_run=False, global_step=step, datamodule=data)
    PartitionPicture(folder).on_train_start(trainer, None)
    return folder / "partition.png"


def test_drawn_once_by_the_first_rank(tmp_path):
    pytest.importorskip("matplotlib", reason="pictures need the plots extra")
    assert not start(tmp_path, rank=1).exists()
    file = start(tmp_path)
    drawn = file.stat().st_mtime_ns
    start(tmp_path, step=3)
    assert file.stat().st_mtime_ns == drawn, "a resumed run has its picture"


def test_nothing_to_draw_or_nothing_to_draw_with(tmp_path, monkeypatch):
    assert not start(tmp_path, split={"sizes": [1]}).exists()
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert not start(tmp_path).exists()
