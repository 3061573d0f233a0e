from __future__ import annotations

import sys

import numpy as np
import pytest

from fedpm_lightning.report.partitions.heterogeneity import client_heterogeneity
from fedpm_lightning.report.partitions.picture import draw_partition, kinds_for, partition_figure, partition_title

pytest.importorskip("matplotlib", reason="pictures need the plots extra")
TWO = {"sizes": [4, 2, 0], "histogram": [[4, 0], [1, 1], [0, 0]]}


def test_files(tmp_path):
    files = draw_partition(TWO, "two", tmp_path / "new")
    names = [f"partition-{kind}{end}" for kind in ("heatmap", "bubbles", "bars") for end in (".pdf", ".png")]
    assert [file.name for file in files] == names
    assert files[1].read_bytes().startswith(b"\x89PNG")
    assert all(b"/Type3" not in file.read_bytes() for file in files[::2]), "publishers refuse Type 3 fonts"
    assert b"/FontFile2" in files[0].read_bytes()


def test_the_heat_map_shows_shares_and_the_bubbles_counts():
    sizes, heat, _ = partition_figure(TWO, "two", "heatmap").axes
    assert np.asarray(heat.images[0].get_array()).tolist() == [[1, 0.5, 0], [0, 0.5, 0]]
    assert [bar.get_height() for bar in sizes.patches] == [4, 2, 0] and sizes.get_title() == "two"
    _, bubbles = partition_figure(TWO, "two", "bubbles").axes
    (points,) = bubbles.collections
    assert points.get_offsets().tolist() == [[0, 0], [1, 0], [1, 1]]
    area = points.get_sizes()
    assert area[0] / area[1] == pytest.approx(4)


def test_no_share_is_white_and_all_of_a_client_is_dark():
    image = partition_figure(TWO, "two", "heatmap").axes[1].images[0]
    none, full = (image.to_rgba(np.array([[value]]))[0, 0, :3] for value in (0.0, 1.0))
    assert none.min() > 0.95 and full.max() < 0.5


def test_stacked_bars_add_up_to_the_sizes():
    (panel,) = partition_figure(TWO, "two", "bars").axes
    tops = [
        max(bar.get_y() + bar.get_height() for bar in panel.patches if bar.get_x() < k < bar.get_x() + 1)
        for k in (0, 1)
    ]
    assert tops == [4, 2]
    assert [text.get_text() for text in panel.get_legend().get_texts()] == ["1", "0"], "as they are stacked"


def test_many_clients_or_classes_are_shown_as_distributions(tmp_path):
    few, many = {"histogram": [[1] * 10] * 100}, {"histogram": [[1] * 100] * 100}
    assert kinds_for(few)[0] == "heatmap" and "bars" in kinds_for(few)
    assert kinds_for(many) == kinds_for({"histogram": [[1]] * 3000}) == ("distributions",)
    split = {"sizes": [4, 4, 4, 0], "histogram": [[4, 0], [0, 4], [2, 2], [0, 0]]}
    figure = partition_figure(split, "many", "distributions")
    assert [panel.get_xlabel() for panel in figure.axes][1] == "effective classes of 2"
    assert [sum(bar.get_height() for bar in panel.patches) for panel in figure.axes] == [4, 3, 3]
    assert client_heterogeneity(split["histogram"])[0] == pytest.approx([1, 1, 2])
    assert client_heterogeneity(split["histogram"])[1] == pytest.approx([0.5, 0.5, 0])


def test_nothing_to_draw(tmp_path):
    assert draw_partition({"sizes": [1], "histogram": []}, "none", tmp_path) == []


def test_without_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(RuntimeError, match=r"pip install 'fedpm-lightning\[plots\]'"):
        partition_figure(TWO, "two", "heatmap")


def test_title():
    split = {"kind": "InOrder", "arguments": {"clients_size": None}}
    assert partition_title("a9a", {"partition": split, "seed": 3}) == "a9a, InOrder(), seed 3"
