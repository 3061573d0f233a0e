"""Interrupt and resume: what keeps a state per client only under settings that no method file has."""

from __future__ import annotations

import pytest

from convex import logistic_clients
from resume_parts import torn_and_gone_on


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fednl_rank1", ("--model.method.compressor", "powersgd", "--model.method.option", "2")),
        ("fednew", ("--model.method.hessian_every", "0", "--model.method.bits", "6")),
    ],
)
def test_a_torn_round_changes_nothing(fedpm, tmp_path, name, words):
    lines = []
    for c in logistic_clients(4, 30, 6):
        for x, y in zip(c.x[:30].tolist(), c.y[:30].tolist(), strict=True):
            lines.append(f"{y} " + " ".join(f"{j}:{value!r}" for j, value in enumerate(x, 1)))
    (tmp_path / "data").write_text("\n".join(lines))
    base = ("fit", "--config", "configs/a9a.yaml", "--config", f"configs/method/convex/{name}.yaml")
    data = ("--data.name", "libsvm", "--data.source", str(tmp_path / "data"), "--data.num_clients", "4")
    size = ("--data.partition.clients_size", "30", "--data.clients_per_round", "3", "--model.net.in_features", "6")
    run = torn_and_gone_on(fedpm, *base, *data, *size, *words, "--model.l2", "0.1")
    assert run.rows[0]["opt/distance"] != run.rows[1]["opt/distance"]
