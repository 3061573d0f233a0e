"""Interrupt and resume: methods with a state per client go on bit for bit, with sampled cohorts."""

from __future__ import annotations

import pytest

from convex import logistic_clients


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fednl_rank1", ("--model.method.compressor", "powersgd", "--model.method.option", "2")),
        ("fednew", ("--model.method.hessian_every", "0", "--model.method.bits", "6")),
        ("fedns_gaussian", ("--model.method.sketch_rows", "20")),
        ("fedpm_corrected", ()),
        ("fedpm", ("--model.executor", "vectorized")),
    ],
)
def test_two_rounds_and_two_more_are_four(fedpm, tmp_path, name, words):
    lines = []
    for c in logistic_clients(4, 30, 6):
        for x, y in zip(c.x[:30].tolist(), c.y[:30].tolist(), strict=True):
            lines.append(f"{y} " + " ".join(f"{j}:{value!r}" for j, value in enumerate(x, 1)))
    (tmp_path / "data").write_text("\n".join(lines))

    def run(rounds, folder, *more):
        base = ("fit", "--config", "configs/a9a.yaml", "--config", f"configs/method/convex/{name}.yaml")
        data = ("--data.name", "libsvm", "--data.source", str(tmp_path / "data"), "--data.num_clients", "4")
        size = ("--data.partition.clients_size", "30", "--data.clients_per_round", "2", "--model.net.in_features", "6")
        return fedpm(*base, *data, *size, *words, "--model.l2", "0.1", "--rounds", rounds, *more, folder=folder)

    whole = run("4", "whole")
    run("2", "half")
    resumed = run("4", "half", "--ckpt_path", "half/checkpoints/last.ckpt")
    assert whole.code == resumed.code == 0
    for key in ("opt/distance", "train/loss", "comm/up_bytes", "comm/down_bytes"):
        assert [row[key] for row in resumed.rows] == [row[key] for row in whole.rows], key
