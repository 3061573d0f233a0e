from __future__ import annotations

import gzip
import io
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedpm_lightning.configuration.canonical import KNOWN_DATA
from fedpm_lightning.data import BrokenDataError, DataRequest, MissingDataError
from fedpm_lightning.data.arrays import ArraySet
from fedpm_lightning.data.sources import LOADERS, WITH_COLUMNS, images, load
from fedpm_lightning.data.sources.decode import decode_images
from fedpm_lightning.data.sources.hugging_face import HubSet


@pytest.fixture
def read(tmp_path):
    """Load a set with a root of its own."""

    def load_it(source: Path | str, name: str = "mine", **request) -> ArraySet:
        return load(DataRequest(name, str(source), tmp_path / "root", **request))

    return load_it


def test_parquet_folder(read, small_set, picture):
    data = read(small_set)
    assert data.x_train.shape == (60, 3, 8, 8) and data.x_train.dtype == torch.uint8
    assert data.x_test.shape == (20, 3, 8, 8) and data.num_classes == 3 and data.groups is None
    assert data.y_train.tolist() == [i % 3 for i in range(60)] and data.y_train.dtype == torch.int64
    rng = np.random.default_rng(7)
    expected = rng.integers(0, 256, (8, 8, 3)).astype(np.uint8)
    assert np.array_equal(data.x_train[7].permute(1, 2, 0).numpy(), expected)
    assert data.normalise is not None and data.augment is None
    assert data.normalise(data.x_train).mean().abs() < 1e-4


def test_natural_clients_of_a_column(read, small_set, write_parquet):
    groups = read(small_set, group_column="client_id").groups
    assert groups is not None and groups.tolist() == [i % 4 for i in range(60)]
    write_parquet(small_set, "test", [0, 1, 2])  # nobody asks who holds a test image
    assert len(read(small_set, group_column="client_id").x_test) == 3
    with pytest.raises(BrokenDataError, match="expected a column writer, found img, label, client_id"):
        read(small_set, group_column="writer")


def test_several_files_binary_cells_and_a_data_folder(read, tmp_path, picture):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    (tmp_path / "x" / "data").mkdir(parents=True)
    for split, shard in [("train", 0), ("train", 1), ("test", 0)]:
        cells = [picture(shard * 3 + i, channels=1) for i in range(3)]
        table = pa.table({"image": pa.array(cells, pa.binary()), "labels": [shard] * 3})
        pq.write_table(table, tmp_path / "x" / "data" / f"{split}-0000{shard}-of-00002.parquet")
    data = read(tmp_path / "x")
    assert data.x_train.shape == (6, 1, 8, 8) and data.y_train.tolist() == [0, 0, 0, 1, 1, 1]


def test_broken_parquet_names_file_row_and_expectation(read, tmp_path, write_parquet, picture):
    def broken(match: str, labels, images=None, name="mine", **columns):
        write_parquet(tmp_path / "b", "test", [0])
        write_parquet(tmp_path / "b", "train", labels, images, **columns)
        with pytest.raises(BrokenDataError, match=match):
            read(tmp_path / "b", name)

    broken(r"train-00000-of-00001\.parquet, row 1: expected an encoded image", [0, 0], [picture(0), b"no image"])
    broken("row 1: expected an encoded image", [0, 0], [picture(0), None])
    broken("row 1: expected an encoded image", [0, 0], [picture(0), picture(1)[:60]])
    broken("row 2: image of 9 x 9 pixels, expected 8 x 8", [0] * 3, [picture(0), picture(1), picture(2, 9)])
    broken("row 1: label -1, expected a whole number", [0, -1])
    broken("row 1: label None", [0, None])
    broken("row 0: label 'cat'", ["cat"])
    broken(r"row 1: label 10, expected 0\.\.9", [0, 10], name="cifar10")
    broken("image of 8 x 8 pixels, expected 32 x 32", [0], name="cifar10")
    broken("expected a column img or image, found picture, label", [0], image="picture")
    broken("expected a column fine_label or label or labels, found img, target", [0], label="target")
    broken("label 10000000 in row 1 of 2 training samples, expected at most 1", [0, 10_000_000])
    broken("expected a column fine_label, found img, label", [0], name="cifar100")
    broken("expected at least one image, found none", [])


def test_cifar10_is_not_taken_for_cifar100(read, tmp_path, write_parquet, picture):
    for split in ("train", "test"):
        images = [picture(i, 32) for i in range(10)]
        write_parquet(tmp_path / "b", split, list(range(10)), images, label="fine_label")
    with pytest.raises(BrokenDataError, match="training images of 10 classes, expected all 100"):
        read(tmp_path / "b", "cifar100")


def encoded(image: Image.Image, kind: str = "PNG", **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format=kind, **options)
    return buffer.getvalue()


LEVELS = np.arange(256, dtype=np.uint8).reshape(16, 16)
COLOURS = np.random.default_rng(0).integers(0, 256, (16, 16, 3)).astype(np.uint8)
OPAQUE = np.dstack([COLOURS, np.full((16, 16), 255, np.uint8)])
PALETTE = Image.fromarray(LEVELS).quantize(16)
PIXEL_FORMS = {
    "1 bit": (encoded(Image.fromarray(LEVELS > 99)), (LEVELS > 99) * 255),
    "8-bit grey": (encoded(Image.fromarray(LEVELS)), LEVELS),
    "grey with opaque alpha": (encoded(Image.fromarray(np.dstack([LEVELS, OPAQUE[..., 3]]), "LA")), LEVELS),
    "16-bit grey": (encoded(Image.fromarray(LEVELS.astype(np.uint16) * 257)), LEVELS),
    "16-bit grey, TIFF": (
        encoded(Image.fromarray(LEVELS.astype(np.uint16) * 257 - np.uint16(100) * (LEVELS > 0)), "TIFF"),
        LEVELS,
    ),
    "16-bit grey, PGM": (b"P5 16 16 65535\n" + (LEVELS.astype(">u2") * 257).tobytes(), LEVELS),
    "palette": (encoded(PALETTE), np.asarray(PALETTE.convert("RGB"))),
    "RGB": (encoded(Image.fromarray(COLOURS)), COLOURS),
    "opaque alpha": (encoded(Image.fromarray(OPAQUE)), COLOURS),
    "CMYK": (encoded(Image.fromarray(255 - COLOURS).convert("CMYK"), "TIFF"), 255 - COLOURS),
}


@pytest.mark.parametrize("form", PIXEL_FORMS)
def test_every_pixel_form_is_scaled_to_bytes(form):
    image, expected = PIXEL_FORMS[form]
    found = decode_images(lambda row: image, 2, None, None, str)[1].permute(1, 2, 0).numpy()
    assert np.array_equal(found.squeeze(), expected)


@pytest.mark.parametrize(
    ("image", "match"),
    [
        (encoded(Image.fromarray(np.linspace(0, 1, 256, dtype=np.float32).reshape(16, 16)), "TIFF"), "mode F"),
        (encoded(Image.fromarray(LEVELS.astype(np.int32) * 1000), "TIFF"), r"mode I\) have no known range"),
        (encoded(Image.fromarray(np.dstack([COLOURS, LEVELS]))), "transparent pixels"),
        (encoded(Image.fromarray(LEVELS), transparency=7), "transparent pixels"),
        (encoded(PALETTE, transparency=0), "transparent pixels"),
    ],
)
def test_pixels_without_a_known_value_are_refused(image, match):
    with pytest.raises(BrokenDataError, match=f"1: expected an encoded image, but .*{match}"):
        decode_images(lambda row: [encoded(PALETTE), image][row], 2, None, None, str)


def test_a_grey_first_picture_does_not_grey_the_others():
    images = [encoded(Image.fromarray(LEVELS)), encoded(Image.fromarray(COLOURS))]
    grey, coloured = decode_images(lambda row: images[row], 2, None, None, str).permute(0, 2, 3, 1).numpy()
    assert np.array_equal(coloured, COLOURS) and np.array_equal(grey, np.dstack([LEVELS] * 3))


def test_the_size_of_one_picture_does_not_take_all_memory(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    huge = encoded(Image.new("1", (8_000, 4_000)))
    with pytest.raises(BrokenDataError, match=r"0: an image of 4000 x 8000 pixels.*GiB"):
        decode_images(lambda row: huge if row < 1 else b"", 10**8, 1, None, str)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10**6)
    with pytest.raises(BrokenDataError, match="decompression bomb"):
        decode_images(lambda row: huge, 1, 1, None, str)


def test_truncated_parquet_and_wrong_column_type(read, small_set):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    file = small_set / "train-00000-of-00001.parquet"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(BrokenDataError, match=r"train-00000.*expected a complete parquet file"):
        read(small_set)
    pq.write_table(pa.table({"img": [1, 2], "label": [0, 1]}), file)
    with pytest.raises(BrokenDataError, match="column img is int64, expected struct"):
        read(small_set)


def test_test_part_must_agree_with_the_training_part(read, tmp_path, write_parquet, picture):
    write_parquet(tmp_path / "b", "train", [0, 1])
    with pytest.raises(MissingDataError, match=r"no test-\*\.parquet"):
        read(tmp_path / "b")
    write_parquet(tmp_path / "b", "test", [2])
    with pytest.raises(BrokenDataError, match=r"test label 2, expected 0\.\.1"):
        read(tmp_path / "b")
    write_parquet(tmp_path / "b", "test", [1], [picture(0, 9)])
    with pytest.raises(BrokenDataError, match="differ in shape"):
        read(tmp_path / "b")


def test_parquet_without_pyarrow_says_what_to_install(read, small_set, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r"pip install 'fedpm-lightning\[hf\]'"):
        read(small_set)


def write_folder(folder: Path, names: list[str], picture) -> Path:
    for i, name in enumerate(names):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture(i, channels=1))
    return folder


def test_image_folder(read, tmp_path, picture):
    names = ["train/10/a.png", "train/9/b.png", "train/9/notes.txt", "train/2/c.png", "test/9/d.png"]
    data = read(write_folder(tmp_path / "f", names, picture))
    assert data.y_train.tolist() == [2, 0, 1] and data.y_test.tolist() == [1]  # files sorted, classes numeric
    assert data.x_train.shape == (3, 1, 8, 8) and data.num_classes == 3
    (tmp_path / "f" / "train" / "9" / "b.png").write_bytes(b"no image")
    with pytest.raises(BrokenDataError, match=r"b\.png: expected an encoded image"):
        read(tmp_path / "f")


def test_image_folder_with_clients(read, tmp_path, picture):
    names = ["train/ann/cat/1.png", "train/bob/cat/1.png", "train/bob/dog/2.png", "test/ann/dog/1.png"]
    data = read(write_folder(tmp_path / "f", names, picture), group_column="client_id")
    assert data.groups is not None and data.groups.tolist() == [0, 1, 1] and data.y_train.tolist() == [0, 0, 1]
    with pytest.raises(ValueError, match=r"partition\.column 'writer' has no effect on a folder of images"):
        read(tmp_path / "f", group_column="writer")
    write_folder(tmp_path / "f", ["test/cat/9.png"], picture)
    assert len(read(tmp_path / "f", group_column="client_id").x_test) == 2


def test_image_folder_errors(read, tmp_path, picture):
    folder = write_folder(tmp_path / "f", ["train/cat/1.png", "test/dog/1.png"], picture)
    with pytest.raises(BrokenDataError, match="class 'dog' is not a folder of the training part"):
        read(folder)
    (folder / "test" / "dog" / "1.png").unlink()
    with pytest.raises(MissingDataError, match="expected test/<class>/<image>"):
        read(folder)


def test_hub_set_through_datasets(small_set, tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")
    source = HubSet(str(small_set), None, "client_id")
    split = source.read("train")
    assert split.x.shape == (60, 3, 8, 8) and split.groups == [f"c{i % 4}" for i in range(60)]
    assert source.files()


def test_missing_sources_say_where_how_big_and_how(read, tmp_path, monkeypatch):
    with pytest.raises(MissingDataError, match=r"/none/here does not exist.*about 170 MB.*data\.source"):
        read("/none/here", "cifar10")
    with pytest.raises(BrokenDataError, match=r"expected train-\*\.parquet"):
        read(tmp_path, "cifar10")
    with pytest.raises(ValueError, match=r"unknown data set 'cifr10'; data\.name is one of a9a, cifar10, cifar100"):
        read("torchvision", "cifr10")
    with pytest.raises(ValueError, match="names no clients"):
        read("torchvision", "cifar10", group_column="x")
    datasets = pytest.importorskip("datasets")

    def offline(*args, **kwargs):
        raise ConnectionError("Couldn't reach the Hub")

    monkeypatch.setattr(datasets, "load_dataset", offline)
    with pytest.raises(MissingDataError, match=r"'some/set'.*Couldn't reach.*parquet files on another machine"):
        read("some/set")


def test_torchvision_without_network(read, tmp_path, monkeypatch):
    import torchvision

    def offline(*args, **kwargs):
        raise OSError("Name or service not known")

    monkeypatch.setattr(torchvision.datasets.cifar, "download_and_extract_archive", offline)
    with pytest.raises(MissingDataError) as caught:
        read("torchvision", "cifar10")
    for words in (
        "cifar-10-batches-py",
        "not known",
        "about 170 MB",
        "copy the content",
        str(tmp_path / "root"),
    ):
        assert words in str(caught.value)
    assert caught.value.__cause__ is None and caught.value.__suppress_context__


def test_torchvision_files_already_there(read, tmp_path):
    folder = tmp_path / "root" / "MNIST" / "raw"
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for part, n in [("train", 10), ("t10k", 3)]:
        pixels = rng.integers(0, 256, (n, 28, 28)).astype(np.uint8)
        header = (0x803).to_bytes(4, "big") + b"".join(k.to_bytes(4, "big") for k in (n, 28, 28))
        (folder / f"{part}-images-idx3-ubyte").write_bytes(header + pixels.tobytes())
        header = (0x801).to_bytes(4, "big") + n.to_bytes(4, "big")
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(header + bytes(range(n)))
    data = read("torchvision", "mnist")
    assert data.x_train.shape == (10, 1, 28, 28) and data.y_test.tolist() == [0, 1, 2] and data.num_classes == 10
    (folder / "train-images-idx3-ubyte").write_bytes(b"short")
    with pytest.raises(BrokenDataError, match=r"complete files of MNIST \(train\).*Delete the folder"):
        read("torchvision", "mnist")


def test_torchvision_images_with_channels_last(read, tmp_path, monkeypatch):
    import torchvision

    class Fake:
        def __init__(self, root, download, train):
            self.data = np.full((10, 32, 32, 3), (10, 20, 30), dtype=np.uint8)
            self.targets = [*range(9, -1, -1)]

    monkeypatch.setattr(torchvision.datasets, "CIFAR10", Fake)
    folder = tmp_path / "root" / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    (folder / "data_batch_1").write_bytes(gzip.compress(pickle.dumps(0)))
    data = read("torchvision", "cifar10")
    assert data.x_train[0, :, 5, 5].tolist() == [10, 20, 30] and data.y_train[:2].tolist() == [9, 8]


def test_digits(read):
    data = read("torchvision", "digits")
    assert data.x_train.shape == (1438, 1, 8, 8) and data.x_test.shape == (359, 1, 8, 8)
    assert data.x_train.min() == 0 and data.x_train.max() == 255
    counts = torch.bincount(data.y_test, minlength=10)
    assert counts.min() >= 34 and counts.max() <= 37
    assert torch.equal(read("torchvision", "digits").y_test, data.y_test)


def test_the_sets_whose_source_is_only_a_place_are_the_named_ones():
    """`configuration` keeps the names apart, so that reading a configuration does not load torch."""
    assert set(LOADERS) - {"libsvm", *WITH_COLUMNS} == KNOWN_DATA


def test_a_folder_of_other_files_is_told_the_endings(read, tmp_path):
    for name in ("train/cat/a.tif", "train/cat/b.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(MissingDataError, match=r"ending in \.tif, \.txt\).*\n.*one of \.bmp, \.gif, \.jpeg"):
        read(tmp_path, "mine")


def test_digits_are_scikit_learns_read_without_importing_it():
    from sklearn.datasets import load_digits

    bunch, (pixels, labels) = load_digits(), images._embedded_digits()
    assert np.array_equal(pixels, bunch.images) and np.array_equal(labels, bunch.target)
    assert (pixels.dtype, labels.dtype) == (bunch.images.dtype, np.int64)
