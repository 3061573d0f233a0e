from __future__ import annotations

import sys

import numpy as np
import pytest

from fedpm_lightning.report.partition_picture import draw_partition, partition_figure, partition_title

pytest.importorskip("matplotlib", reason="pictures need the plots extra")
TWO = {"sizes": [4, 2, 0], "histogram": [[4, 0], [1, 1], [0, 0]]}


def test_files(tmp_path):
    files = draw_partition(TWO, "two", tmp_path / "new")
    assert [file.name for file in files] == [
        "partition-heatmap.pdf", "partition-heatmap.png", "partition-bubbles.pdf", "partition-bubbles.png",
    ]  # fmt: skip
    assert files[0].read_bytes().startswith(b"%PDF") and files[1].read_bytes().startswith(b"\x89PNG")


def test_the_heat_map_shows_shares_and_the_bubbles_counts():
    sizes, heat, _ = partition_figure(TWO, "two", "heatmap").axes
    assert np.asarray(heat.images[0].get_array()).tolist() == [[1, 0.5, 0], [0, 0.5, 0]]
    assert [bar.get_height() for bar in sizes.patches] == [4, 2, 0] and sizes.get_title() == "two"
    _, bubbles = partition_figure(TWO, "two", "bubbles").axes
    (points,) = bubbles.collections
    assert points.get_offsets().tolist() == [[0, 0], [1, 0], [1, 1]]
    area = points.get_sizes()
    assert area[0] / area[1] == pytest.approx(4)


def test_many_clients_and_one_class(tmp_path):
    many = {"sizes": [1] * 3000, "histogram": [[1]] * 3000}
    figure = partition_figure(many, "many", "heatmap")
    assert not figure.axes[0].patches, "an area instead of thousands of bars"
    figure.savefig(tmp_path / "many.png", dpi=60)


def test_nothing_to_draw(tmp_path):
    assert draw_partition({"sizes": [1], "histogram": []}, "none", tmp_path) == []


def test_without_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(RuntimeError, match=r"pip install 'fedpm-lightning\[plots\]'"):
        partition_figure(TWO, "two", "heatmap")


def test_title():
    split = {"kind": "InOrder", "arguments": {"clients_size": None}}
    assert partition_title("a9a", {"partition": split, "seed": 3}) == "a9a, InOrder(), seed 3"
