"""Rows of settings that differ: unique, short, and saying what differs."""

from __future__ import annotations

import inspect

from fedpm_lightning.compression import Message
from fedpm_lightning.configuration.canonical import MESSAGE_ARGUMENTS, MESSAGE_DEFAULTS
from fedpm_lightning.report.runs import find_runs
from fedpm_lightning.report.setting import differing_keys, setting_of
from fedpm_lightning.report.tables.grid import build_grid
from fedpm_lightning.report.tables.notes import base_lines, difference_lines
from fedpm_lightning.report.tables.row_labels import label_settings, natural, short_key, short_value

PACKAGE = "fedpm_lightning"


def setting(**entries):
    return tuple(sorted((key.replace("__", "."), str(value)) for key, value in entries.items()))


def test_many_keys_become_departures_from_the_commonest_setting():
    base = setting(clients=10, epochs=5, rounds=20)
    others = [setting(clients=20, epochs=2, rounds=20), setting(clients=10, epochs=5, rounds=5)]
    found = label_settings("FedPM", [{base: 3, others[0]: 1, others[1]: 1}])
    assert [found.of[one] for one in (base, *others)] == ["FedPM", "FedPM (clients=20, epochs=2)", "FedPM (rounds=5)"]
    assert found.base == "clients=10, epochs=5, rounds=20"


def test_few_keys_are_named_by_every_row():
    found = label_settings("FedPM", [{setting(lr=0.1, ema=0): 1, setting(lr=0.2, ema=0): 1}])
    assert list(found.of.values()) == ["FedPM (lr=0.1)", "FedPM (lr=0.2)"] and found.base == ""


def test_a_class_that_differs_stands_for_its_arguments():
    cosine = {"lr_schedule": {"class_path": f"{PACKAGE}.Cosine", "init_args": {"floor": 0.0, "warm": 3}}}
    settings = [setting_of({"model": model}, "1") for model in ({"lr_schedule": None}, cosine)]
    assert differing_keys(settings) == ["model.lr_schedule"]
    assert list(label_settings("FedPM", [dict.fromkeys(settings, 1)]).of.values()) == [
        "FedPM (lr_schedule=None)",
        "FedPM (lr_schedule=Cosine)",
    ]


def test_values_that_read_the_same_when_shortened_are_written_out():
    a, b = setting(text="x" * 40 + "a"), setting(text="x" * 40 + "b")
    labels = set(label_settings("M", [{a: 1, b: 1}]).of.values())
    assert labels == {f"M (text={'x' * 40}a)", f"M (text={'x' * 40}b)"}


def test_short_forms():
    assert short_value("my.module.Class") == "Class" and short_value("0.5") == "0.5"
    callbacks = str([{"class_path": "a.Dropouts", "init_args": {"rate": 0.3}}, {"class_path": "a.Krum"}])
    assert short_value(callbacks) == "Dropouts(rate=0.3)+Krum"
    assert len(short_value("y" * 100)) == 32
    assert short_key("model.method.init_args.lr", ["model.method.init_args.lr", "model.server.lr"]) == "method.lr"
    assert sorted(["e=10", "e=5", "e=5.5"], key=natural) == ["e=5", "e=5.5", "e=10"]


def test_another_source_of_an_unnamed_data_set_is_another_setting():
    def of(name, source):
        return setting_of({"data": {"name": name, "source": source}}, "1")

    assert of("mine", "/here/a") != of("mine", "/here/b")
    assert of("mine", "/here/a") == of("mine", "/there/a")
    assert of("cifar10", "torchvision") == of("cifar10", "/data/parquet"), "the same images from another place"


def test_a_key_that_older_runs_lack_splits_no_row():
    old = {"data": {"name": "digits", "width": None}}
    new = {"data": {**old["data"], "stride": None, "label_column": None, "input_columns": None}}
    assert setting_of(old, "1") == setting_of(new, "1") != setting_of({"data": {**new["data"], "stride": 8}}, "1")


def test_rows_that_differ_in_the_task_are_pointed_out(tmp_path, write_run):
    write_run(tmp_path / "a", "FedAvg", acc=(0.5, 0.6, 0.7))
    write_run(tmp_path / "b", "FedProx", acc=(0.5, 0.6, 0.7))
    write_run(tmp_path / "c", "FedPM", acc=(0.5, 0.6))
    (line,) = difference_lines(build_grid(find_runs([tmp_path]), "val/acc", "final"))
    assert line == "not alike, digits alpha=0.1: rows differ in more than the method: rounds (3; FedPM: 2)"


def test_what_a_bare_label_means_is_said_below_the_table(tmp_path, write_run):
    for number, more in enumerate([{"a": 1, "b": 1, "c": 1}, {"a": 2, "b": 1, "c": 1}, {"a": 1, "b": 2, "c": 2}]):
        write_run(tmp_path / str(number), more=more)
    grid = build_grid(find_runs([tmp_path]), "val/acc", "final")
    assert list(grid.rows) == ["FedAvg", "FedAvg (a=2)", "FedAvg (b=2, c=2)"]
    assert base_lines(grid) == ["FedAvg, where not said otherwise: a=1, b=1, c=1"]


def test_a_name_that_reads_like_another_row_keeps_its_own(tmp_path, write_run):
    write_run(tmp_path / "a", "FedAvg", method={"lr": 0.1})
    write_run(tmp_path / "b", "FedAvg", method={"lr": 0.2})
    write_run(tmp_path / "c", "FedAvg (lr=0.1)", acc=(0.9,))
    grid = build_grid(find_runs([tmp_path]), "val/acc", "final")
    assert len(grid.rows) == 3 and all(cell.n == 1 for row in grid.rows.values() for cell in row.values())


def test_a_message_is_one_key_of_what_it_changes():
    """Whatever arguments a configuration spells out; an old one without the key is one at full precision."""

    def message(**arguments):
        path = "fedpm_lightning.compression.Message"
        return dict(setting_of({"model": {"message": {"class_path": path, "init_args": arguments}}}, "1"))[
            "model.message"
        ]

    assert message(parameters="full", rounding="nearest", share=None, levels=3, factors_every=1) == "full"
    assert setting_of({"model": {"l2": 0, "message": None}}, "1") == setting_of({"model": {"l2": 0}}, "1")
    assert message(parameters="int8", rounding="stochastic", levels=3, factor_share=0.9) == "int8"
    assert message(parameters="int8", rounding="nearest", factors="full") == "int8, rounding=nearest"
    assert message(parameters="full", factors="low_rank", factor_share=0.9, factors_every=2, rounding="nearest") == (
        "factors=low_rank, factor_share=0.9, factors_every=2"
    )
    assert message(parameters="topk", share=0.1, error_feedback=True) == "topk, share=0.1, error_feedback=True"
    assert message(parameters="qsgd", levels=1, bucket=512) == "qsgd, levels=1"
    plain = [setting_of({"model": {"message": given}}, "1") for given in (None, {"parameters": "int8"})]
    assert differing_keys(plain) == ["model.message"]


def test_what_a_message_need_not_say_are_its_defaults():
    defaults = {name: p.default for name, p in inspect.signature(Message).parameters.items()}
    assert defaults == MESSAGE_DEFAULTS and set(MESSAGE_ARGUMENTS) < set(defaults)
