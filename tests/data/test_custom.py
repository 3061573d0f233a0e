"""A data set of one's own: what a loader may return, and what is said when it is wrong."""

from __future__ import annotations

import json
import re
import shlex
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from fedpm_lightning.data import IID, ArraySet, BrokenDataError, FederatedData, Natural
from fedpm_lightning.data.prepare import prepare
from fedpm_lightning.data.sources import has_test_part
from fedpm_lightning.data.sources.custom import array_set, checked, load_custom

X, Y = np.random.default_rng(0).normal(size=(50, 4)), np.arange(50) % 2
IMAGES = np.random.default_rng(0).integers(0, 256, (50, 8, 8, 3)).astype(np.uint8)


def vectors():
    return X, Y, X[:7], Y[:7]


CALLS: list[int] = []


def counted():
    CALLS.append(1)
    return vectors()


def train_only(source):
    return np.full((int(source), 4), 0.5), np.arange(int(source)) % 2


class Pictures(TensorDataset):
    """As torchvision's classes: two calls, and a transform of its own."""

    def __init__(self, root, train: bool = True):
        images = torch.from_numpy(IMAGES).permute(0, 3, 1, 2)
        super().__init__(images if train else images[:9], torch.from_numpy(Y if train else Y[:9]))

    def __getitem__(self, index):
        image, target = super().__getitem__(index)
        return image.float() / 2, int(target)


def by_client():
    """Clients of 20, 20 and 10 samples, by name."""
    return replace(array_set((X, Y), "here"), groups=torch.tensor([7, 7, 3, 3, 9]).repeat_interleave(10))


def broken():
    raise KeyError("no such column")


@pytest.fixture(autouse=True)
def importable(monkeypatch, request):
    """`here.vectors` is this file's."""
    monkeypatch.setitem(sys.modules, "here", request.module)


def data(name: str, **arguments) -> FederatedData:
    return FederatedData(name=name, **{"num_clients": 5, "partition": IID(), "val_fraction": 0.0, **arguments})


def test_a_function_that_returns_arrays():
    found = data("here.vectors", val_fraction=0.2)
    assert (found.num_classes, found.input_shape, found.eval_names) == (2, (4,), ["val", "test"])
    x, y = next(found.client(0).everything())
    assert x.dtype == torch.float32 and y.dtype == torch.int64
    rows = found.prepared.parts[0]
    assert torch.equal(x.double(), found.prepared.data.x_train[torch.from_numpy(rows)].float().double())
    assert [x.dtype for loader in found.val_dataloader() for x, _ in loader] == [torch.float32] * 2


def test_the_source_is_passed_on_and_a_test_part_is_not_needed():
    found = data("here.train_only", source="30")
    assert found.eval_names == [] and sum(found.partition_report.sizes) == 30


def test_it_is_called_once_for_the_question_and_the_data_and_not_kept(tmp_path):
    CALLS.clear()
    assert has_test_part("here.counted", "torchvision", tmp_path)
    found = data("here.counted", root=str(tmp_path))
    found.setup()
    assert len(CALLS) == 1 and load_custom.cache_info().currsize == 0


def test_a_class_of_torch_datasets_with_its_transforms(tmp_path):
    found = data("here.Pictures", root=str(tmp_path))
    assert found.input_shape == (3, 8, 8) and len(found.prepared.data.y_test) == 9
    assert torch.equal(found.prepared.data.x_train, torch.from_numpy(IMAGES).permute(0, 3, 1, 2) / 2)


@pytest.mark.parametrize("images", [IMAGES, IMAGES.transpose(0, 3, 1, 2), IMAGES[..., 0]])
def test_images_of_any_layout_are_normalised(images):
    found = array_set((images, Y), "here")
    channels = 1 if images.ndim == 3 else 3
    assert found.x_train.shape == (50, channels, 8, 8) and found.normalise is not None
    assert found.normalise(found.x_train).mean((0, 2, 3)).abs().max() < 1e-5
    assert torch.equal(found.x_train[:, 0], torch.from_numpy(IMAGES[..., 0]))


def test_pairs_are_parts():
    found = array_set(((X, Y), (X[:7], Y[:7])), "here")
    assert torch.equal(found.x_test, torch.from_numpy(X[:7])) and len(found.y_train) == 50


def test_a_dictionary_names_its_parts_and_the_clients():
    owners = ["b", "a", "b", "c", "a"] * 10
    found = array_set({"x_test": X[:7], "x_train": X, "y_test": Y[:7], "y_train": Y, "groups": owners}, "here")
    assert torch.equal(found.x_test, torch.from_numpy(X[:7])) and found.groups[:5].tolist() == [1, 0, 1, 2, 0]
    assert array_set({"x_train": X, "y_train": Y}, "here").groups is None


def test_whole_numbers_are_token_ids_and_truth_values_features():
    tokens = np.arange(50, dtype=np.int16)[:, None] + np.arange(3, dtype=np.int16)
    found = checked(array_set((tokens, Y), "here"), "here")
    assert found.x_train.dtype == torch.int64 and found.normalise is None and found.x_train[4].tolist() == [4, 5, 6]
    assert array_set((X > 0, Y), "here").x_train.dtype == torch.float32


class Words(nn.Sequential):
    """A linear layer on the embeddings of a sentence."""

    def __init__(self, vocabulary: int = 60):
        super().__init__(nn.Embedding(vocabulary, 8), nn.Flatten(), nn.Linear(40, 2))


def tokens():
    x = np.random.default_rng(0).integers(0, 60, (400, 5))
    y = (x > 29).sum(1) > 2
    return x[100:], y[100:], x[:100], y[:100]


@pytest.mark.parametrize("method", ["fedavg", "fedpm", "scaffold"])
def test_token_ids_train(fedpm, method):
    """An embedding, by methods that stack clients and by those that look at layers."""
    words = ("--data.name", "here.tokens", "--model.net", "here.Words", "--model.executor", "auto")
    run = fedpm("fit", "--config", "quickstart", "--config", f"method/{method}", *words, "--rounds", "2")
    assert run.code == 0
    assert float(run.rows[-1]["test/loss"]) < run.summary["initial"]["test/loss"]


def test_a_token_outside_of_the_vocabulary_is_said_in_a_line(fedpm, capsys):
    words = ("--data.name", "here.tokens", "--model.net", "here.Words", "--model.net.vocabulary", "10", "--rounds", "1")
    assert fedpm("fit", "--config", "quickstart", "--config", "method/fedavg", *words).code == 1
    error = capsys.readouterr().err
    assert "model.net Words cannot take inputs of shape (5,) from data.name here.tokens: IndexError: index" in error


def test_a_set_that_says_everything_stays_as_it_is():
    whole = ArraySet(torch.zeros(4, 2), torch.tensor([0, 1, 0, 1]), torch.zeros(0, 2), torch.zeros(0).long(), 2)
    assert array_set(whole, "here") is whole


@pytest.mark.parametrize(
    ("result", "match"),
    [
        (None, r"expected an ArraySet, .*got NoneType"),
        ((X, Y, X), "expected an ArraySet"),
        ((X, Y[:40]), r"inputs and targets of shapes \[50, 4\] and \[40\]"),
        ((X, Y * 0.5), r"\[50\] of float64, expected .* whole numbers"),
        ((X, 2 * Y - 1), r"targets -1 to 1, expected whole numbers from 0"),
        ((X, ["cat"] * 50), "targets such as cat, expected whole numbers from 0"),
        ((X, Y * 10**7), "label 10000000 in row 1 of 50 training samples"),
        ((X, Y, X, Y + 1), r"test targets 1 to 2, expected 0\.\.1"),
        ((X, Y, X[:, :3], Y), "expected samples of one shape"),
        ((np.where(X[7, 1] == X, np.nan, X), Y), "NaN or infinity in row 7"),
        ((X[:0], Y[:0]), "expected samples"),
        (((X * 10).astype(int), Y), "a negative token id in row 0 of the training inputs"),
        ({"x_train": X, "y": Y}, "a dictionary of x_train, y; expected x_train and y_train"),
        ({"x_train": X, "y_train": Y, "groups": ["a"] * 40}, r"groups of shape \[40\].* 50 training samples"),
        ({"x_train": X, "y_train": Y, "groups": ["a", None] * 25}, "groups, row 1: expected a client id, found none"),
        (replace(array_set((X, Y), "here"), groups=torch.arange(3)), r"groups of shape \[3\].* 50 training samples"),
        (
            {"x_train": X, "y_train": Y, "x_test": X[:7], "y_test": Y[:7], "groups": Y, "test_groups": Y[:3]},
            r"test_groups of shape \[3\].* 7 test samples",
        ),
        (
            replace(array_set((X, Y), "here"), groups=torch.from_numpy(Y), client_names=("a",)),
            "client ids up to 1, expected at most 0 with 1 client_names",
        ),
    ],
)
def test_what_is_wrong_is_said(result, match):
    with pytest.raises(BrokenDataError, match=match):
        checked(array_set(result, "here"), "here")


@pytest.mark.parametrize(
    ("name", "source", "match"),
    [
        ("here.vectrs", "torchvision", r"'here\.vectrs' cannot be imported .*vectrs.*PYTHONPATH"),
        ("nowhere.vectors", "torchvision", "cannot be imported .*No module named 'nowhere'"),
        ("here.X", "torchvision", "is ndarray, expected a function or class"),
        ("here.vectors", "/data", "data.source '/data' has no effect on data.name here.vectors"),
    ],
)
def test_a_wrong_name_or_a_source_without_effect_is_refused_at_once(name, source, match):
    with pytest.raises(ValueError, match=match):
        FederatedData(name=name, source=source)


def test_clients_that_a_set_names():
    found = FederatedData(name="here.by_client", num_clients=3, partition=Natural(), val_fraction=0.1)
    assert sum(found.partition_report.sizes) == 45 and min(found.partition_report.sizes) < 12


def test_some_of_the_named_clients_are_tested_on_their_own_samples(monkeypatch, request):
    owners, tests = (
        np.array(["b", "a", "c", "b", "a"])[np.arange(50) % 5],
        np.array(["a", "z", "b", "c", "b", "a", "b"]),
    )
    parts = {"x_train": X, "y_train": Y, "x_test": X[:7], "y_test": Y[:7], "groups": owners, "test_groups": tests}
    monkeypatch.setattr(request.module, "owned", lambda: parts, raising=False)
    found = data("here.owned", num_clients=2, partition=Natural(clients="largest"))
    assert found.partition_report.names == ["a", "b"] and found.partition_report.sizes == [20, 20]
    assert torch.equal(found.prepared.data.x_test, torch.from_numpy(X[[0, 2, 4, 5, 6]]))
    assert found.prepared.data.test_groups.tolist() == [0, 1, 1, 0, 1]


def test_named_clients_count_for_the_natural_partition_only():
    named, unnamed = by_client(), array_set((X, Y), "here")
    one, other = (prepare(data, IID(), 5, seed=0, val_fraction=0.9) for data in (named, unnamed))
    assert torch.equal(one.x_val, other.x_val) and one.report == other.report


def test_an_error_inside_names_its_kind():
    with pytest.raises(ValueError, match=r"here\.broken failed: KeyError: 'no such column'"):
        data("here.broken").setup()


def test_the_documents_example_runs(fedpm, repo, tmp_path, monkeypatch):
    text = (repo / "docs" / "data.md").read_text()
    code = re.search(r'```python title="my_data.py"\n(.*?)```', text, re.DOTALL)[1]
    command = re.search(r"```bash\n(fedpm fit .*?my_data.*?)```", text, re.DOTALL)[1]
    (tmp_path / "my_data.py").write_text(code)
    monkeypatch.setattr(sys, "path", [*sys.path])  # fedpm adds the folder it is started in
    run = fedpm(*shlex.split(command)[1:], "--rounds", "1", "--model.local_epochs", "1")
    assert run.code == 0 and run.summary["monitor"]["key"] == "val/acc"
    assert sum(json.loads((run.folder / "partition.json").read_text())["sizes"]) == 450
