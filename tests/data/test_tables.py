"""CSV files, pandas frames and Hugging Face sets by column: what becomes of each kind, what is said of a wrong one."""

from __future__ import annotations

import io
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from fedpm_lightning.data import BrokenDataError, DataRequest, FederatedData, MissingDataError, Natural, from_frames
from fedpm_lightning.data.sources import has_test_part, load

pd = pytest.importorskip("pandas", reason="tables need the tables extra")

TRAIN = pd.DataFrame(
    {
        "age": [20, 30, 40, 50, 60, 70],
        "score": [0.5, 0.5, 0.5, 0.5, 0.5, 0.5],
        "job": ["cook", "smith", "cook", "baker", "smith", "cook"],
        "member": [True, False, True, True, False, False],
        "town": ["b", "a", "b", "a", "c", "c"],
        "paid": ["yes", "no", "no", "yes", "no", "yes"],
    }
)
TEST = pd.DataFrame(
    {"age": [45, 20], "score": [0.5, 1.5], "job": ["baker", "tailor"], "member": [False, True], "paid": ["no", "yes"]}
)


@pytest.fixture
def folder(tmp_path):
    """train.csv and test.csv."""
    for name, frame in (("train", TRAIN), ("test", TEST)):
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
    return tmp_path


@pytest.fixture
def read(tmp_path):
    def load_it(source, name="csv", **request):
        return load(DataRequest(name, str(source), tmp_path / "root", **request))

    return load_it


def test_numbers_are_standardised_and_words_become_indicators(read, folder):
    data = read(folder, label_column="paid", group_column="town")
    assert data.x_train.dtype == torch.float32 and data.x_train.shape == (6, 1 + 1 + 3 + 1)
    age = np.array(TRAIN["age"])
    assert data.x_train[:, 0].numpy() == pytest.approx((age - age.mean()) / age.std(), rel=1e-6)
    assert data.x_train[:, 1].tolist() == [0.0] * 6 and data.x_test[:, 1].tolist() == [0.0, 1.0], "a constant column"
    assert data.x_train[:, 2:5].tolist() == [[0, 1, 0], [0, 0, 1], [0, 1, 0], [1, 0, 0], [0, 0, 1], [0, 1, 0]]
    assert data.x_test[:, 2:5].tolist() == [[1, 0, 0], [0, 0, 0]], "a tailor is none of the training part's jobs"
    assert data.x_test[0, 0] == 0 and data.x_train[:, 5].unique().tolist() == [-1.0, 1.0]
    assert data.y_train.tolist() == [1, 0, 0, 1, 0, 1] and data.y_test.tolist() == [0, 1] and data.num_classes == 2
    assert data.groups.tolist() == [1, 0, 1, 0, 2, 2]


def test_a_run_on_some_of_the_clients_is_tested_on_theirs():
    found = from_frames(TRAIN, TEST.assign(town=["c", "a"]), label="paid", clients="town")
    assert found.client_names == ("a", "b", "c")
    assert found.groups.tolist() == [1, 0, 1, 0, 2, 2] and found.test_groups.tolist() == [2, 0]
    with pytest.raises(BrokenDataError, match="test part: column town has no value in row 1"):
        from_frames(TRAIN, TEST.assign(town=["c", None]), label="paid", clients="town")


def test_columns_by_name_and_a_file_alone(read, folder):
    data = read(folder / "train.csv", label_column="job", input_columns=("member", "age"))
    assert data.x_train.shape == (6, 2) and len(data.y_test) == 0
    assert data.y_train.tolist() == [1, 2, 1, 0, 2, 1], "classes are numbered in sorted order"
    assert not has_test_part("csv", str(folder / "train.csv"), folder) and has_test_part("csv", str(folder), folder)


def test_a_column_called_label_needs_no_naming():
    frame = TRAIN.rename(columns={"paid": "label"})
    assert from_frames(frame).y_train.tolist() == from_frames(TRAIN, label="paid").y_train.tolist()


def test_whole_numbers_of_any_kind_are_classes():
    for values in ([3, 1, 3], [3.0, 1.0, 3.0]):
        found = from_frames(pd.DataFrame({"x": [0.1, 0.2, 0.3], "y": values}), label="y")
        assert found.y_train.tolist() == [1, 0, 1]


def changed(**columns):
    return TRAIN.assign(**columns)


@pytest.mark.parametrize(
    ("frame", "request_", "match"),
    [
        (TRAIN, {}, r"say which column holds the classes \(data.label_column\): age, score, job"),
        (TRAIN, {"label": "payed"}, "training part: expected one column payed, found age, score"),
        (TRAIN, {"label": "paid", "inputs": ["age", "hight"]}, "expected one column hight"),
        (TRAIN, {"label": "paid", "clients": "city"}, "expected one column city"),
        (changed(age=[1, None, 3, 4, 5, 6]), {"label": "paid"}, r"column age has no value in row 1 \(1 of 6 rows\)"),
        (changed(job=[None, *"abcde"]), {"label": "paid"}, "column job has no value in row 0"),
        (changed(age=[1, np.inf, 3, 4, 5, 6]), {"label": "paid"}, "column age: an infinite number"),
        (changed(paid=[0.5, 1, 1, 1, 1, 1]), {"label": "paid"}, "column paid: 0.5 in row 0, expected classes"),
        (changed(paid="yes"), {"label": "paid"}, "column paid: yes in every row"),
        (TRAIN, {"label": "paid", "inputs": ["paid"]}, "expected a label and other columns as inputs"),
    ],
)
def test_what_is_wrong_names_the_column(frame, request_, match):
    with pytest.raises(BrokenDataError, match=match):
        from_frames(frame, **request_)


@pytest.mark.parametrize(
    ("test", "match"),
    [
        (TEST.assign(paid=["no", "maybe"]), "column paid: maybe in row 1 of the test part is no class of it"),
        (TEST.assign(age=["old", "young"]), "column age holds numbers in one part and words in the other"),
        (TEST.drop(columns="job"), "test part: expected one column job"),
    ],
)
def test_a_test_part_that_does_not_fit(test, match):
    with pytest.raises(BrokenDataError, match=match):
        from_frames(TRAIN, test, label="paid", clients="town")


def test_a_text_is_no_category():
    frame = pd.DataFrame({"text": [f"word {k}" for k in range(1200)], "y": [0, 1] * 600})
    with pytest.raises(BrokenDataError, match=r"column text: 1200 different values, at most 1000 .* tokeniser"):
        from_frames(frame, label="y")


def test_a_csv_file_trains_with_its_own_clients_and_only_there_has_columns(fedpm, folder, capsys):
    words = (
        "--data.name",
        "csv",
        "--data.source",
        str(folder),
        "--data.label_column",
        "paid",
        "--data.num_clients",
        "3",
    )
    net = ("--model.net.in_features", "6", "--model.net.num_classes", "2", "--data.val_fraction", "0")
    split = ("--data.partition", "Natural", "--data.partition.column", "town")
    run = fedpm("fit", "--config", "quickstart", *words, *split, *net, "--rounds", "1")
    assert run.code == 0 and float(run.rows[0]["test/loss"]) > 0
    for wrong, said in (
        (("--data.label_column", "paid"), "data.label_column has no effect on data.name digits: it is for csv and hf"),
        (("--data.name", "csv"), "data.name csv needs data.source: a CSV file"),
        (("--data.name", "csv", "--data.source", "nowhere.csv"), "nowhere.csv does not exist"),
        ((*words, "--data.input_columns", "[]"), "data.input_columns is empty"),
    ):
        assert fedpm("fit", "--config", "quickstart", *wrong, "--rounds", "1", folder="wrong").code == 1
        assert said in capsys.readouterr().err


def test_a_file_that_is_no_table(read, tmp_path, monkeypatch):
    (tmp_path / "broken.csv").write_bytes(b'a,b\n"1,2\n3')
    with pytest.raises(BrokenDataError, match=r"broken\.csv: expected a CSV file with a line of column names"):
        read(tmp_path / "broken.csv", label_column="a")
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"pip install 'fedpm-lightning\[tables\]'"):
        read(tmp_path / "broken.csv", label_column="a")


# ---------------------------------------------------------------- Hugging Face


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """`datasets`, with its own files below the test's folder."""
    datasets = pytest.importorskip("datasets", reason="Hugging Face sets need the hf extra")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()
    return datasets


def png(value):
    buffer = io.BytesIO()
    Image.fromarray(np.full((4, 4, 3), value, dtype=np.uint8)).save(buffer, format="PNG")
    return {"bytes": buffer.getvalue(), "path": None}


def test_images_by_column(read, tmp_path, hub):
    features = hub.Features(
        {"scan": hub.Image(), "finding": hub.ClassLabel(names=["none", "some"]), "site": hub.Value("string")}
    )
    rows = {"scan": [png(k * 20) for k in range(8)], "finding": [0, 1] * 4, "site": ["b", "a"] * 4}
    for split in ("train", "test"):
        hub.Dataset.from_dict(rows, features=features).to_parquet(tmp_path / "set" / f"{split}.parquet")
    columns = {"label_column": "finding", "input_columns": ("scan",), "group_column": "site"}
    data = read(tmp_path / "set", "hf", **columns)
    assert data.x_train.shape == (8, 3, 4, 4) and data.x_train[3].unique().tolist() == [60]
    assert data.y_train.tolist() == [0, 1] * 4 and data.groups.tolist() == [1, 0] * 4 and data.normalise is not None
    assert has_test_part("hf", str(tmp_path / "set"), tmp_path)
    with pytest.raises(BrokenDataError, match=r"expected a column picture, found scan, finding, site"):
        read(tmp_path / "set", "hf", **{**columns, "input_columns": ("picture",)})
    with pytest.raises(BrokenDataError, match="expected a column fine_label or label or labels"):
        read(tmp_path / "set", "hf", input_columns=("scan",))
    with pytest.raises(BrokenDataError, match=r"an input alone, got scan \(images\), site \(cells\)"):
        read(tmp_path / "set", "hf", label_column="finding")


def test_rows_of_token_ids_and_of_features_as_json(read, tmp_path, hub):
    rows = {"ids": [[1, 2, 3], [4, 5, 6], [1, 1, 1], [2, 2, 2]], "vector": [[0.5, 1.0]] * 4, "label": [0, 1, 0, 1]}
    hub.Dataset.from_dict({**rows, "who": list("aabb")}).to_json(tmp_path / "rows.jsonl")
    data = read(tmp_path / "rows.jsonl", "hf", input_columns=("ids",), group_column="who")
    assert data.x_train.dtype == torch.int64 and data.x_train.tolist() == rows["ids"] and len(data.y_test) == 0
    assert data.groups.tolist() == [0, 0, 1, 1]
    assert read(tmp_path / "rows.jsonl", "hf", input_columns=("vector",)).x_train.is_floating_point()
    for split, label in (("train", [0, 1, 0, 1]), ("validation", [1, 1, 0, 0])):
        hub.Dataset.from_dict({**rows, "label": label}).to_json(tmp_path / "set" / f"{split}.jsonl")
    assert read(tmp_path / "set", "hf", input_columns=("ids",)).y_test.tolist() == [1, 1, 0, 0], (
        "for want of a test part"
    )
    ragged = {"ids": [[1, 2], [1, 2, 3]], "label": [0, 1]}
    hub.Dataset.from_dict(ragged).to_json(tmp_path / "ragged.jsonl")
    with pytest.raises(BrokenDataError, match=r"column ids: 3 numbers in row 1, 2 in row 0: fill or cut"):
        read(tmp_path / "ragged.jsonl", "hf", input_columns=("ids",))


def test_a_table_of_the_hub_is_a_csv_file(read, folder, hub):
    columns = {"label_column": "paid", "group_column": "town"}
    ours, theirs = read(folder, **columns), read(folder, "hf", **columns)
    assert torch.equal(ours.x_train, theirs.x_train) and torch.equal(ours.x_test[:, :5], theirs.x_test[:, :5])
    assert torch.equal(ours.y_test, theirs.y_test) and torch.equal(ours.groups, theirs.groups)


def test_a_set_that_is_not_there(read, tmp_path, hub):
    (tmp_path / "empty").mkdir()
    with pytest.raises(MissingDataError, match=r"data.source nofile\.jsonl of data.name hf does not exist"):
        load(DataRequest("hf", "nofile.jsonl", tmp_path))  # without asking the Hub for it
    with pytest.raises(
        MissingDataError, match=r"cannot load '.*empty' with Hugging Face's datasets: .*Hub id, or a folder"
    ):
        read(tmp_path / "empty", "hf")


def test_clients_of_a_table_are_a_partition(folder):
    data = FederatedData(
        name="csv", source=str(folder), num_clients=3, partition=Natural("town"), label_column="paid", val_fraction=0
    )
    assert data.partition_report.sizes == [2, 2, 2] and data.input_shape == (6,)
