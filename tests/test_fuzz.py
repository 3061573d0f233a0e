"""Random input: every file and every value ends in a run or in a message, never in a traceback."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedpm_lightning.cli import main
from fedpm_lightning.data import BrokenDataError, DataRequest
from fedpm_lightning.data.sources.hugging_face import ParquetFolder
from fedpm_lightning.data.sources.libsvm import load_libsvm

REUSED = [HealthCheck.function_scoped_fixture]  # the folder may be used again: every example writes its own files

NUMBERS = ["-1", "0", "1e-8", "0.3", "1", "2", "7", "nan", "inf", "1e30", "null", "x", "[1]", ""]
KEYS = {
    "--data.num_clients": ["-1", "0", "1", "3", "12", "500", "2.5"],
    "--data.batch_size": ["-1", "0", "1", "7", "null", "x"],
    "--data.participation": NUMBERS,
    "--data.partition.alpha": NUMBERS,
    "--data.partition.min_samples": ["-1", "0", "3", "100"],
    "--data.val_fraction": NUMBERS,
    "--data.limit_train": ["0", "10", "30", "200"],
    "--data.name": ["digits", "digit", "cifar10", "a9a"],
    "--model.local_epochs": ["-1", "0", "1", "2", "null"],
    "--model.method.lr": NUMBERS,
    "--model.method.preconditioner.damping": NUMBERS,
    "--model.method.preconditioner.ema": NUMBERS,
    "--model.method.preconditioner.inv_every": ["-1", "0", "1", "3"],
    "--model.l2": NUMBERS,
    "--model.max_loss": NUMBERS,
    "--model.weighting": ["size", "uniform", "both"],
    "--model.buffer_policy": ["mix", "local", "freeze", "keep"],
    "--model.net.num_classes": ["0", "9", "10", "11"],
    "--seed_everything": ["-1", "0", "7", "x", str(2**32)],
    "--checkpoint_every": ["0", "1", "5"],
    "--rounds": ["1"],
}
CHOICES = st.lists(
    st.sampled_from(sorted(KEYS)).flatmap(lambda key: st.tuples(st.just(key), st.sampled_from(KEYS[key]))),
    min_size=1,
    max_size=3,
)


@settings(max_examples=10, deadline=None, derandomize=True, suppress_health_check=REUSED)
@given(CHOICES)
def test_any_value_of_any_key_ends_with_a_code(fedpm, tmp_path, monkeypatch, capsys, choices):
    monkeypatch.setenv("FEDPM_DATA", str(tmp_path / "nothing"))
    for name in ("cifar10", "a9a"):
        assert not (tmp_path / "nothing" / name).exists()
    words = ["--data.limit_train", "150", "--data.limit_test", "50", "--model.local_epochs", "1", "--rounds", "1"]
    words += [word for choice in choices for word in choice]
    folder = f"run{len(list(tmp_path.iterdir()))}"
    if ("--data.name", "cifar10") in choices:  # would download
        words += ["--data.source", str(tmp_path / "nothing")]
    code = main(["fit", "--config", "configs/quickstart.yaml", *words, "--run_dir", folder])
    captured = capsys.readouterr()
    assert code in {0, 1, 2, 3}, choices
    assert "Traceback" not in captured.err + captured.out
    assert code == 0 or "error:" in captured.err, choices


LINES = st.lists(
    st.one_of(
        st.text(alphabet="+-0123456789.:e #\t\r\nanif", max_size=30),
        st.builds(
            lambda label, index, value: f"{label} {index}:{value}",
            st.sampled_from(["-1", "+1", "0", "1", "2"]),
            st.integers(-1, 12),
            st.floats(width=16),
        ),
    ),
    max_size=6,
)


@settings(max_examples=100, deadline=None, derandomize=True, suppress_health_check=REUSED)
@given(LINES, st.binary(max_size=5))
def test_any_text_is_read_or_named(tmp_path, lines, tail):
    file = tmp_path / "data"
    file.write_bytes("\n".join(lines).encode() + tail)
    try:
        data = load_libsvm(DataRequest("libsvm", str(file), tmp_path, width=10))
    except BrokenDataError as error:
        assert str(file) in str(error) and "expected" in str(error)
    else:
        assert torch.isfinite(data.x_train).all() and data.x_train.shape[1] == 10
        assert set(data.y_train.tolist()) <= {0, 1} and len(data.y_train) == len(data.x_train) > 0


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=REUSED)
@given(position=st.floats(0, 0.999), value=st.integers(0, 255), cut=st.booleans())
def test_a_damaged_parquet_file_is_read_or_named(tmp_path, small_parquet, position, value, cut):
    whole = bytearray(small_parquet)
    at = int(position * len(whole))
    if cut:
        del whole[at:]
    else:
        whole[at] = value
    file = tmp_path / "train-00000-of-00001.parquet"
    file.write_bytes(whole)
    try:
        split = ParquetFolder(tmp_path).read("train")
    except BrokenDataError as error:
        assert "train-" in str(error) and ("expected" in str(error))
    else:
        assert split.x.shape[1:] == (3, 8, 8) and len(split.x) == len(split.y)


@pytest.fixture(scope="module")
def small_parquet(tmp_path_factory):
    """The bytes of a file with three images."""
    import io

    import numpy as np
    from PIL import Image

    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    cells = []
    for seed in range(3):
        buffer = io.BytesIO()
        pixels = np.random.default_rng(seed).integers(0, 256, (8, 8, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(buffer, format="PNG")
        cells.append({"bytes": buffer.getvalue(), "path": None})
    path = tmp_path_factory.mktemp("parquet") / "x.parquet"
    pq.write_table(pa.table({"img": cells, "label": [0, 1, 2]}), path)
    return path.read_bytes()
