"""ConfusionMatrix: counts against scikit-learn on the checkpoint's own predictions, and a run that stays as it is."""

from __future__ import annotations

import csv

import numpy as np
import pytest
import torch
from sklearn.metrics import confusion_matrix

from fedpm_lightning import FederatedData
from fedpm_lightning.callbacks import ConfusionMatrix
from fedpm_lightning.callbacks.metrics.client_accuracy import client_accuracies
from fedpm_lightning.data import Dirichlet
from fedpm_lightning.models import MLP
from fedpm_lightning.report.dashboard.run_entry import pictures

SHORT = ("--config", "configs/method/fedavg.yaml", "--model.local_epochs", "1", "--model.net.hidden", "[16]")
ADD = ("--trainer.callbacks+", "ConfusionMatrix")


def table(file):
    with file.open() as content:
        return list(csv.reader(content))


def test_it_counts_what_the_last_model_predicts_and_leaves_the_run_as_it_is(quickstart):
    plain = quickstart(*SHORT, "--rounds", "2", folder="plain")
    run = quickstart(*SHORT, "--rounds", "2", *ADD)
    data = FederatedData(num_clients=10, partition=Dirichlet(alpha=0.1))
    net = MLP(64, [16], 10)
    state = torch.load(run.folder / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
    net.load_state_dict({name.removeprefix("net."): tensor for name, tensor in state.items()})
    (loader,) = data.test_dataloader()
    x, y = next(iter(loader))
    expected = confusion_matrix(y.numpy(), net(x).argmax(1).detach().numpy(), labels=range(10))

    head, *rows = table(run.folder / "confusion.csv")
    assert head[1] == "predicted 0" and rows[3][0] == "true 3"
    assert np.array_equal(np.array([row[1:] for row in rows], dtype=int), expected)
    by_class = [float(row[2]) for row in table(run.folder / "class_acc.csv")[1:]]
    assert by_class == pytest.approx(expected.diagonal() / expected.sum(1))
    histogram = torch.tensor(data.partition_report.histogram, dtype=torch.float64)
    counts = torch.tensor(np.stack([expected.sum(1), expected.diagonal()]), dtype=torch.float64)
    by_client = table(run.folder / "client_acc.csv")[1:]
    assert [float(row[2]) for row in by_client] == pytest.approx(client_accuracies(counts, histogram).tolist())
    assert [int(row[1]) for row in by_client] == data.partition_report.sizes

    assert set(pictures(run.folder)) == {"confusion", "accuracy"} and pictures(plain.folder) == {}
    assert (run.folder / "confusion.png").read_bytes().startswith(b"\x89PNG")
    for one, other in zip(plain.rows, run.rows, strict=True):
        assert {k: v for k, v in one.items() if "time" not in k} == {k: v for k, v in other.items() if "time" not in k}


def test_nothing_is_written_of_more_classes_than_can_be_read_or_without_the_split(quickstart, capsys):
    for words, why in (
        (("--trainer.callbacks.most_classes", "9"), "10 classes are more than most_classes 9; nothing is written"),
        (("--trainer.callbacks.split", "val", "--data.val_fraction", "0"), "no val split is evaluated here"),
    ):
        run = quickstart(*SHORT, "--rounds", "1", *ADD, *words, folder=words[1])
        assert run.code == 0 and why in capsys.readouterr().out
        assert not list(run.folder.glob("confusion*"))
    for words, said in (
        ({"split": "train"}, "split must be"),
        ({"most_classes": 1}, "most_classes must be at least 2"),
    ):
        with pytest.raises(ValueError, match=said):
            ConfusionMatrix(**words)


def test_without_matplotlib_the_tables_are_there(quickstart, capsys, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    run = quickstart(*SHORT, "--rounds", "1", *ADD)
    assert run.code == 0 and "pip install 'fedpm-lightning[plots]'" in capsys.readouterr().out
    assert (run.folder / "client_acc.csv").is_file() and not list(run.folder.glob("*.png"))
