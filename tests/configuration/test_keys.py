"""The table of keys: runs from before a key was added are still the same experiment."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedpm_lightning.checkpoints.identity import compare
from fedpm_lightning.configuration.canonical import canonical
from fedpm_lightning.configuration.class_docs import keys
from fedpm_lightning.configuration.keys import BRANCHES

KEPT = sorted((Path(__file__).resolve().parents[2] / "results").rglob("summary.json"))
ADDED = {"norms": "plain", "plain": []}


def lacking(config: dict) -> set[str]:
    """The keys of the classes that a configuration names which it neither says nor means."""
    flat = canonical(config)
    classes = {key: value for key, value in flat.items() if str(value).startswith("fedpm_lightning.")}
    expected = {f"{key}.init_args.{one.name}" for key, path in classes.items() for one in keys(path)}
    expected |= {f"{key}.{one.name}" for key in ("model", "data") for one in keys(BRANCHES[key])} - {"data.source"}
    parts = [key.split(".") for key in flat]
    return expected - {".".join(said[:length]) for said in parts for length in range(1, len(said) + 1)}


def test_a_key_that_kept_runs_lack_is_in_the_table_with_what_they_did():
    found = {key for file in KEPT for key in lacking(json.loads(file.read_text())["config"])}
    assert len(KEPT) > 200 and found == set(), (
        "add them to LEGACY_DEFAULTS, with the value that means what older runs did"
    )


@pytest.mark.parametrize("key", ADDED)
def test_a_checkpoint_from_before_a_preconditioners_key_goes_on_and_another_value_is_refused(key):
    def config(**arguments: object) -> dict:
        foof = {"class_path": "fedpm_lightning.preconditioners.Foof", "init_args": {"damping": 3.0, **arguments}}
        return {
            "model": {"method": {"class_path": "fedpm_lightning.methods.FedPM", "init_args": {"preconditioner": foof}}}
        }

    assert compare(config(), config(**{key: ADDED[key]})) == ([], [])
    assert [one.key.rpartition(".")[2] for one in compare(config(), config(**{key: "other"}))[0]] == [key]


def test_a_callback_whose_file_moved_is_the_same_experiment():
    def config(path: str) -> dict:
        return {"trainer": {"callbacks": [{"class_path": path, "init_args": {"rate": 0.5}}]}}

    old, new = config("fedpm_lightning.callbacks.dropouts.Dropouts"), config("fedpm_lightning.callbacks.Dropouts")
    assert compare(old, new) == ([], []) and compare(old, config("mine.Dropouts"))[1]
