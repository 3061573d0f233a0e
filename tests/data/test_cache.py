from __future__ import annotations

import os
import resource

import pytest
import torch
from PIL import Image

from fedpm_lightning.data import DataRequest
from fedpm_lightning.data.sources import hugging_face, load
from fedpm_lightning.data.sources.cache import cache_key, cached


def test_decoded_once_and_again_when_a_file_changes(small_set, tmp_path, monkeypatch, write_parquet):
    calls = []
    decode = hugging_face.decode_images
    monkeypatch.setattr(hugging_face, "decode_images", lambda *a: calls.append(1) or decode(*a))
    request = DataRequest("mine", str(small_set), tmp_path / "root")
    first, second = load(request), load(request)
    assert len(calls) == 2  # train and test, once each
    assert torch.equal(first.x_train, second.x_train) and torch.equal(first.y_test, second.y_test)
    [kept] = (tmp_path / "root" / "decoded").iterdir()
    assert torch.load(kept, weights_only=True).keys() == {"x_train", "y_train", "x_test", "y_test", "crc32"}
    os.utime(small_set / "train-00000-of-00001.parquet", (1, 1))
    load(request)
    assert len(calls) == 2
    write_parquet(small_set, "test", [0, 1, 2])
    assert load(request).y_test.tolist() == [0, 1, 2] and len(calls) == 4


@pytest.mark.parametrize("damage", ["empty", "truncated", "foreign", "other keys", "flipped"])
def test_a_damaged_cache_is_built_again(tmp_path, damage, caplog):
    path = tmp_path / "x.pt"
    built = {"x": torch.arange(1000)}
    assert cached(path, ["x"], lambda: built) is built
    content = bytearray(path.read_bytes())
    if damage == "flipped":
        content[len(content) // 2] ^= 0xFF
    contents = {"empty": b"", "truncated": content[:-500], "foreign": b"hello" * 100, "flipped": content}
    if damage == "other keys":
        torch.save({"y": torch.zeros(1)}, path)
    else:
        path.write_bytes(contents[damage])
    assert torch.equal(cached(path, ["x"], lambda: built)["x"], built["x"])
    assert "damaged" in caplog.text
    assert torch.equal(torch.load(path, weights_only=True)["x"], built["x"])
    assert [p.name for p in tmp_path.iterdir()] == ["x.pt"]


def test_an_unwritable_folder_is_only_a_warning(tmp_path, caplog):
    (tmp_path / "file").write_text("not a folder")
    built = cached(tmp_path / "file" / "x.pt", ["x"], lambda: {"x": torch.ones(1)})
    assert built["x"] == 1 and "not kept" in caplog.text


def test_a_failed_build_leaves_nothing(tmp_path):
    with pytest.raises(RuntimeError):
        cached(tmp_path / "sub" / "x.pt", ["x"], lambda: (_ for _ in ()).throw(RuntimeError("broken")))
    assert not (tmp_path / "sub").exists()


def test_key_depends_on_files_and_settings(tmp_path):
    file = tmp_path / "a"
    file.write_text("1")
    keys = {cache_key([file]), cache_key([file], name="x"), cache_key([])}
    file.write_text("2")
    assert len(keys | {cache_key([file])}) == 4


def test_folders_that_agree_in_names_sizes_and_times_keep_their_own_images(tmp_path):
    """As two unpacked archives of one shape do."""
    sets = []
    for place, shade in (("a", 10), ("b", 200)):
        for name in ("mine/train/cat/1.bmp", "mine/train/dog/2.bmp", "mine/test/cat/3.bmp"):
            file = tmp_path / place / name
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.new("L", (4, 4), shade).save(file)
            os.utime(file, (1, 1))
        sets.append(load(DataRequest("mine", str(tmp_path / place / "mine"), tmp_path / "root")))
    assert [int(data.x_train.max()) for data in sets] == [10, 200]


def test_a_full_disk_costs_only_the_next_decoding(tmp_path, caplog):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        built = cached(tmp_path / "x.pt", ["x"], lambda: {"x": torch.ones(50_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert built["x"].sum() == 50_000 and "not kept" in caplog.text and not list(tmp_path.iterdir())


def test_a_file_moved_to_another_class_is_another_key(tmp_path):
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
    file = tmp_path / "cat" / "1.png"
    file.write_text("x")
    before = cache_key([file])
    assert cache_key([file.rename(tmp_path / "dog" / "1.png")]) != before
