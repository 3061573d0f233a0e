"""LIBSVM text: every accepted form gives the same numbers, every rejected one names file and line."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedpm_lightning.client.objective import Objective
from fedpm_lightning.data import BrokenDataError, DataRequest, FederatedData, InOrder, MissingDataError
from fedpm_lightning.data.sources import has_test_part, load
from fedpm_lightning.data.sources.libsvm import load_libsvm

PLAIN = "-1 1:0.5 3:2\n+1 2:-1 5:1e-2\n-1\n+1 1:1\n"


def read(tmp_path: Path, text: str | bytes, test: str | None = None, name: str = "libsvm", width: int | None = None):
    file = tmp_path / "data"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    if test is not None:
        (tmp_path / "data.t").write_text(test)
    return load_libsvm(DataRequest(name, str(file), tmp_path, width=width))


def loss(data):
    """The logistic loss at a fixed w that tells the two classes apart."""
    w = torch.arange(1, data.x_train.shape[1] + 1, dtype=torch.float64)
    return float(Objective()((data.x_train @ w).unsqueeze(1), data.y_train, {}))


def test_dense_rows_and_classes(tmp_path):
    data = read(tmp_path, PLAIN)
    expected = [[0.5, 0, 2, 0, 0], [0, -1, 0, 0, 0.01], [0] * 5, [1, 0, 0, 0, 0]]
    assert torch.equal(data.x_train, torch.tensor(expected, dtype=torch.float64))
    assert data.y_train.tolist() == [0, 1, 0, 1] and data.y_train.dtype == torch.int64
    assert data.num_classes == 2 and data.x_test.shape == (0, 5) and data.y_test.shape == (0,)


@pytest.mark.parametrize(
    "text",
    [
        PLAIN.replace("\n", "\r\n"),
        "\n# comment\n" + PLAIN.replace("\n", "   \n") + "\n\n",
        PLAIN.replace("3:2", "3:2  # three"),
        PLAIN.rstrip("\n"),
        PLAIN.replace("-1 ", "0 ").replace("-1\n", "0\n").replace("2:0 5", "2:-1 5"),
        PLAIN.replace("+1", "2").replace("-1 1", "1 1").replace("\n-1\n", "\n1\n"),
        PLAIN.replace("+1", "1.0"),
    ],
    ids=["crlf", "blank, comment, trailing space", "comment at the end", "no last newline", "0/1", "1/2", "floats"],
)
def test_all_accepted_forms_give_the_same_loss(tmp_path, text):
    assert loss(read(tmp_path, text)) == loss(read(tmp_path / ".", PLAIN)) != loss(read(tmp_path, "-1\n+1 5:1\n"))


def test_the_width_covers_train_and_test(tmp_path):
    data = read(tmp_path, "-1 5:1\n+1 1:1\n", test="+1 4:1\n")
    assert data.x_train.shape == (2, 5) and data.x_test.shape == (1, 5) and data.y_test.tolist() == [1]
    assert read(tmp_path, "-1 4:1\n+1\n", test="+1 5:1\n").x_train.shape == (2, 5)
    assert read(tmp_path, "-1 4:1\n+1\n", width=9).x_train.shape == (2, 9)
    assert read(tmp_path, "-1 4:1\n+1\n", name="a9a").x_train.shape == (2, 123)


@pytest.mark.parametrize(
    ("lines", "number", "expected"),
    [
        ("+1 1:1\n-1 0:1\n", 2, "count from 1"),
        ("+1 1:1\n\n-1 3:1 2:1\n", 3, "must grow"),
        ("+1 2:1 2:1\n", 1, "must grow"),
        ("+1 1:nan\n", 1, "finite number after 1:"),
        ("+1 1:inf\n", 1, "finite number after 1:"),
        ("+1 1:x\n", 1, "finite number after 1:"),
        ("+1 1:1_0\n", 1, "finite number after 1:"),
        ("+1 1:\n", 1, "finite number after 1:"),
        ("+1 1:1\n-1 11:1\n", 2, "at most 10"),
        ("# c\n+1 1:1\n-1 1:1\n3 1:1\n", 4, "labels -1, 1, got 3"),
        ("yes 1:1\n", 1, "a number as the label"),
        ("nan 1:1\n", 1, "a number as the label"),
        ("+1 1\n", 1, "index:value"),
        ("+1 a:1\n", 1, "index:value"),
        ("+1 -2:1\n", 1, "index:value"),
        ("+1 1.5:1\n", 1, "index:value"),
    ],
)
def test_rejected_lines_are_named(tmp_path, lines, number, expected):
    with pytest.raises(BrokenDataError) as error:
        read(tmp_path, lines, width=10)
    assert f"{tmp_path / 'data'}, line {number}: expected" in str(error.value) and expected in str(error.value)


@pytest.mark.parametrize("index", [10**10, 10**30])
def test_an_index_beyond_the_memory_is_named(tmp_path, index):
    with pytest.raises(BrokenDataError, match=rf"data, line 2: index {index} makes 3 x {index} numbers.*GiB"):
        read(tmp_path, f"-1 1:1\n+1 2:1 {index}:1\n+1 3:1\n")
    with pytest.raises(BrokenDataError, match=rf"data\.t, line 1: index {index} makes"):
        read(tmp_path, "-1 1:1\n+1 2:1\n", test=f"+1 {index}:1\n")
    with pytest.raises(BrokenDataError, match=rf"data\.width {index} makes"):
        read(tmp_path, "-1 1:1\n+1 2:1\n", width=index)


@pytest.mark.parametrize("text", ["", "\n\n", "# only a comment\n"])
def test_an_empty_file_is_rejected(tmp_path, text):
    with pytest.raises(BrokenDataError, match="is empty"):
        read(tmp_path, text)


def test_a_third_label_in_the_test_part_is_named_there(tmp_path):
    with pytest.raises(BrokenDataError, match=r"data\.t, line 2: expected one of the labels 0, 1, got 2"):
        read(tmp_path, "0\n1\n", test="1\n2\n")


@pytest.mark.parametrize(("label", "cls"), [("-1", 0), ("0", 0), ("+1", 1), ("2", 1)])
def test_one_label_alone_keeps_its_meaning(tmp_path, label, cls):
    assert read(tmp_path, f"{label} 1:1\n").y_train.tolist() == [cls]


def test_the_file_is_found_in_a_folder_and_missed_in_words(tmp_path):
    (tmp_path / "w8a").write_text("-1 300:1\n+1 1:1\n")
    assert load(DataRequest("w8a", str(tmp_path), tmp_path)).x_train.shape == (2, 300)
    assert not has_test_part("w8a", str(tmp_path), tmp_path) and has_test_part("digits", "torchvision", tmp_path)
    with pytest.raises(MissingDataError, match=r"a9a \(2\.3 MB\).*put it there or name it with --data\.source"):
        load(DataRequest("a9a", "torchvision", tmp_path))
    (tmp_path / "libsvm").mkdir()
    (tmp_path / "libsvm" / "a9a").write_text("-1 1:1\n+1\n")
    assert len(load(DataRequest("a9a", "torchvision", tmp_path)).x_train) == 2


def test_federated_data_without_any_evaluation_set(tmp_path):
    (tmp_path / "data").write_text(PLAIN * 3)
    options = {"num_clients": 4, "partition": InOrder(3), "batch_size": None, "val_fraction": 0.0}
    data = FederatedData("libsvm", str(tmp_path / "data"), str(tmp_path), **options, width=7)
    assert data.eval_names == [] and data.val_dataloader() == [] and data.input_shape == (7,)
    x, y = next(data.client(1).everything())
    assert x.dtype == torch.float64 and y.tolist() == [1, 0, 1]
    with pytest.raises(ValueError, match=r"data\.width"):
        FederatedData("libsvm", width=0)


def test_a_run_without_evaluation_and_without_optimum_follows_the_training_loss(fedpm, tmp_path):
    (tmp_path / "data").write_text(PLAIN * 5)
    words = ["--data.name", "libsvm", "--data.source", str(tmp_path / "data"), "--data.num_clients", "4"]
    words += ["--data.partition.clients_size", "5", "--model.net.in_features", "5", "--trainer.callbacks", "[]"]
    run = fedpm("fit", "--config", "configs/a9a.yaml", *words, "--rounds", "3")
    assert run.code == 0 and run.summary["monitor"]["key"] == "train/loss"
    assert (run.folder / "checkpoints" / "best.ckpt").is_file()


def test_a_broken_file_ends_a_run_with_its_line(fedpm, tmp_path, capsys):
    (tmp_path / "data").write_text("+1 1:1\n-1 2:1 2:1\n")
    run = fedpm("fit", "--config", "configs/a9a.yaml", "--data.source", str(tmp_path / "data"), "--rounds", "1")
    assert run.code == 1 and "data, line 2: expected an index above 2" in capsys.readouterr().err
