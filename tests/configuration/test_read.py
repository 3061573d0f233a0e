"""Files and options laid over each other to one mapping, without torch."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import yaml

from fedpm_lightning.configuration import ConfigurationError
from fedpm_lightning.configuration.class_sources import arguments, choices
from fedpm_lightning.configuration.keys import BRANCHES, CLASSES, EFFECTS, Effect, effect
from fedpm_lightning.configuration.read import read
from fedpm_lightning.configuration.yaml_text import load

QUICK = ("--config", "configs/quickstart.yaml")


@pytest.fixture
def layers(tmp_path, monkeypatch, repo):
    """Compose YAML texts and options; the files are a.yaml, b.yaml, ..."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").symlink_to(repo / "configs")

    def compose(*layers, options=()):
        words = []
        for name, layer in zip("abcd", layers, strict=False):
            (tmp_path / f"{name}.yaml").write_text(layer if isinstance(layer, str) else yaml.safe_dump(layer))
            words += ["--config", f"{name}.yaml"]
        return read(["fit", *words, *options]).values

    return compose


def node(name, **arguments):
    return {"class_path": name, **({"init_args": arguments} if arguments else {})}


NODES = {
    "model.method": ("fedpm_lightning.methods.FedProx", "FedAvg"),
    "model.net": ("fedpm_lightning.models.MLP", "Logistic"),
    "model.server_optimizer": ("fedpm_lightning.server.adaptive.FedAdam", "FedAdagrad"),
    "model.lr_schedule": ("fedpm_lightning.schedules.Step", "Exponential"),
    "model.loss": ("torch.nn.CrossEntropyLoss", "BCEWithLogitsLoss"),
    "data.partition": ("fedpm_lightning.data.Dirichlet", "DirichletClients"),
    "trainer.logger": ("lightning.pytorch.loggers.WandbLogger", "CSVLogger"),
    "trainer.callbacks": ("fedpm_lightning.callbacks.Dropouts", "Stragglers"),
}


@pytest.mark.parametrize("key", NODES)
def test_another_class_begins_its_branch_anew_whatever_the_key(layers, key):
    branch, name = key.split(".")
    old, new = NODES[key]
    below = {branch: {name: {"class_path": old, "init_args": {}}}}
    shared = next(name for name in arguments(old) or ("name",) if name != "params")
    below[branch][name]["init_args"] = {shared: 0.25}
    assert layers(below)[branch][name]["init_args"] == {shared: 0.25}
    by_option = layers(below, options=[f"--{key}", new])[branch][name]
    by_file = layers(below, {branch: {name: by_option["class_path"]}})[branch][name]
    assert by_option == by_file and "init_args" not in by_option and by_option["class_path"].endswith(f".{new}")


def test_every_class_key_with_choices_is_tried_above():
    """Those within another class, `model.method.preconditioner`, have their own test below."""
    assert set(NODES) == {key for key, spec in CLASSES.items() if spec.modules and key.count(".") == 1}


def test_arguments_alone_lie_over_the_class_that_is_there(layers):
    below = {"model": {"method": node("fedpm_lightning.methods.FedAvg", lr=0.5, momentum=0.9)}}
    found = layers(below, {"model": {"method": {"lr": 0.1}}}, options=["--model.method.weight_decay=1e-3"])
    assert found["model"]["method"]["init_args"] == {"lr": 0.1, "momentum": 0.9, "weight_decay": "1e-3"}


def test_a_class_path_from_before_its_file_moved_is_read_as_the_public_one(layers):
    """So that config.yaml of an older run goes on; a class that no folder exports keeps its path."""
    old = [{"class_path": "fedpm_lightning.callbacks.optimum.Optimum"}, "fedpm_lightning.callbacks.robust.Krum"]
    found = layers({"trainer": {"callbacks": old}, "model": {"method": "fedpm_lightning.methods.fedavg.FedAvg"}})
    public = ["fedpm_lightning.callbacks.Optimum", "fedpm_lightning.callbacks.Krum"]
    assert [one["class_path"] for one in found["trainer"]["callbacks"]] == public
    assert found["model"]["method"]["class_path"] == "fedpm_lightning.methods.FedAvg"
    own = {"trainer": {"callbacks": ["fedpm_lightning.callbacks.base.Diagnostic"]}}
    assert layers(own)["trainer"]["callbacks"] == [node("fedpm_lightning.callbacks.base.Diagnostic")]


def test_a_class_named_again_begins_anew_too(layers):
    """So that a file need only say what departs from the class's defaults."""
    same = node("fedpm_lightning.methods.FedAvg", momentum=0.9)
    found = layers({"model": {"method": node("fedpm_lightning.methods.FedAvg", lr=0.5)}}, {"model": {"method": same}})
    assert found["model"]["method"] == same


def test_classes_inside_of_classes_follow_the_same_rule(layers):
    inner = node("x.Foof", damping=3, ema=0.5)
    below = {"model": {"method": node("x.Newton", preconditioner=inner)}}
    arguments = lambda *options: layers(below, options=options)["model"]["method"]["init_args"]  # noqa: E731
    assert arguments("--model.method.preconditioner.damping=1")["preconditioner"] == node(
        "x.Foof", damping="1", ema=0.5
    )
    other = arguments("--model.method.preconditioner=x.Hessian", "--model.method.preconditioner.damping=1")
    assert other["preconditioner"] == node("x.Hessian", damping="1")
    by_file = layers(below, {"model": {"method": {"preconditioner": node("x.Hessian", damping=2)}}})
    assert by_file["model"]["method"]["init_args"]["preconditioner"] == node("x.Hessian", damping=2)


def test_the_preconditioner_is_named_and_given_arguments_as_any_class(layers):
    """Over a file's Foof: another class begins anew, arguments alone join, and without a class they are Foof's."""
    key, home = "--model.method.preconditioner", "fedpm_lightning.preconditioners"

    def made(*options):
        return layers(options=(*QUICK, *options))["model"]["method"]["init_args"]["preconditioner"]

    assert made(key, "hessian", f"{key}.inv_every=2") == node(f"{home}.Hessian", inv_every="2")
    assert made(f"{key}.damping=3")["class_path"] == f"{home}.Foof"
    assert made("--model.method", "LocalNewton", f"{key}.damping=3") == node(f"{home}.Foof", damping="3")
    with pytest.raises(ConfigurationError, match="no class 'fof'; did you mean Foof"):
        made(key, "fof")


@pytest.mark.parametrize("option", [("--model.method", "scaffold"), ("--config", "configs/method/scaffold.yaml")])
def test_a_method_begins_its_label_and_its_server_optimizer_anew(layers, option):
    fedadam = ("--config", "configs/quickstart.yaml", "--config", "configs/method/fedadam.yaml")
    assert layers(options=fedadam)["label"] == "FedAdam"
    found = layers(options=(*fedadam, *option))
    assert found.get("label") in {None, "SCAFFOLD"} and found["model"].get("server_optimizer") is None
    mine = layers(options=(*fedadam, *option, "--label", "mine", "--model.server_optimizer", "SGD"))
    assert mine["label"] == "mine" and mine["model"]["server_optimizer"] == node("torch.optim.SGD")


def test_lists_of_classes_grow_and_arguments_go_to_the_last(layers):
    below = {"trainer": {"callbacks": [node("a.X"), node("a.Y", at=1)]}}
    found = layers(below, {"trainer": {"callbacks+": [node("a.Z")]}}, options=["--trainer.callbacks.at=3"])
    assert found["trainer"]["callbacks"] == [node("a.X"), node("a.Y", at=1), node("a.Z", at="3")]
    assert layers(below, {"trainer": {"callbacks": [node("a.Z")]}})["trainer"]["callbacks"] == [node("a.Z")]


@pytest.mark.parametrize(
    ("texts", "options", "told"),
    [
        (["rounds: 3\nrounds: 4\n"], (), "a.yaml: line 2: rounds stands in line 1 already"),
        (["data:\n  partition:\n    init_args:\n      alpha: 1\n      alpha: 2\n"], (), "a.yaml: line 5: alpha"),
        (["rounds: 3", "rounds: [3\n"], (), "b.yaml: line 2: this is not YAML"),
        (["- 3"], (), "a.yaml holds"),
        (["rouds: 3"], (), "a.yaml: --rouds is no key; did you mean --rounds?"),
        (["model: {locl_epochs: 3}"], (), "a.yaml: --model.locl_epochs is no key; did you mean --model.local_epochs?"),
        (["model: {method: {class_path: fedpm_lightning.methods.FedAvg, init_args: {dampning: 3}}}"], (),
         "a.yaml: model.method.dampning is not accepted by FedAvg; its keys are lr, momentum, weight_decay"),
        (["model: {method: {class_path: fedpm_lightning.methods.FedPM, init_args: {ema: 0.5, lr: 1.0}}}"], (),
         "a.yaml: model.method.ema is not accepted by FedPM"),
        ([], (*QUICK, "--model.method.damping=3"),
         "; it is an argument of model.method.preconditioner: say model.method.preconditioner.damping"),
        (["model: {method: FedProxx}"], (), "a.yaml: model.method: there is no class 'FedProxx'; did you mean"),
        (["trainer: {max_epochs: 3}"], (), "a.yaml: trainer.max_epochs 3 has no effect: it follows from rounds"),
        (["rounds: 5\ntrainer: {max_epochs: 3}"], (), "it follows from rounds"),
        (["model: {seed: 3}"], (), "a.yaml: model.seed 3 has no effect"),
        (["data: {seed: 3}"], (), "say --seed_everything"),
        (["trainer: {default_root_dir: x}"], (), "say run_dir"),
        ([], ("--trainer.max_epochs=3",), "say --rounds"),
        ([], ("--model.seed=3",), "say --seed_everything"),
        ([], ("--weights_only=false",), "never executes code"),
        (["trainer: {accumulate_grad_batches: 2}"], (), "no effect: a batch is a round: use model.local_epochs"),
        (["trainer: {gradient_clip_val: 1.0}"], (), "no effect: local steps are the method's; NormClipping"),
        (["trainer: {sync_batchnorm: true}"], (), "no effect: clients train apart; model.buffer_policy"),
        ([], ("--trainer.limit_predict_batches=1",), "no effect: nothing is predicted"),
        ([], ("--trainer.enable_checkpointing=false",), "no effect: every run has checkpoints; checkpoint_every"),
        ([], ("--trainer.use_distributed_sampler=true",), "no effect: clients are dealt out over the processes"),
        ([], ("--run_dir", ""), "run_dir is empty"),
        ([], ("--config", "nothere.yaml"), "nothere.yaml cannot be read"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_with_its_file(layers, texts, options, told):
    with pytest.raises(ConfigurationError) as caught:
        layers(*texts, options=options)
    assert told in str(caught.value) and len(str(caught.value).splitlines()) <= 3


def test_a_runs_own_config_may_repeat_what_follows(layers):
    written = {"rounds": 5, "seed_everything": 2, "trainer": {"max_epochs": 5, "default_root_dir": None}}
    found = layers({**written, "model": {"seed": 2}, "data": {"seed": 2}}, options=["--rounds=9"])
    assert found["rounds"] == "9" and "max_epochs" not in found["trainer"] and "seed" not in found["data"]


def test_yaml_numbers_are_numbers_and_dates_are_words():
    assert load("[1e-3, 1.5, .5, -2E+4, 1, 2024-01-01, .inf, 'x']") == [
        0.001,
        1.5,
        0.5,
        -2e4,
        1,
        "2024-01-01",
        float("inf"),
        "x",
    ]
    assert load("a: &x {b: 1}\nc: {<<: *x, b: 2}") == {"a": {"b": 1}, "c": {"b": 2}}


def test_names_are_checked_before_torch_is_loaded(tmp_path, repo):
    """A fresh interpreter, for fit and for partition."""
    code = (
        "import sys; from fedpm_lightning.cli import main\n"
        "assert main(['fit', '--model.net', 'MPL']) == 2 == main(['partition', '--data.num_client', '3'])\n"
        "assert main(['fit', '--model.method', 'FedAvg', '--model.method.mu=3']) == 2\n"
        "assert main(['fit', '--help']) == 0 == main(['partition', '--help', 'FedPM'])\n"
        "sys.exit(any(m in sys.modules for m in ('torch', 'lightning', 'wandb')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (
        "did you mean MLP? Or choose one of BasicBlock, CNN, " in done.stderr
        and "did you mean --data.num_clients?" in done.stderr
    )


def test_names_read_off_the_source_are_those_of_the_classes():
    """The source is only read; here the classes are asked."""
    import inspect
    from importlib import import_module

    for key, spec in CLASSES.items():
        for path in choices(spec.modules, spec.base).values() if spec.modules else ():
            module, _, name = path.rpartition(".")
            given = arguments(path)
            if given is None or key == "trainer.logger":  # loggers need packages that may be missing
                continue
            real = set(inspect.signature(getattr(import_module(module), name)).parameters)
            assert real in (set(given), {"args", "kwargs"}), path  # torch wraps the classes that it gives up
    for branch, path in BRANCHES.items():
        module, _, name = path.rpartition(".")
        cls = getattr(import_module(module), name)
        assert set(arguments(path) or ()) == set(inspect.signature(cls).parameters), branch


def test_who_gave_a_key_follows_the_last_layer(layers, tmp_path):
    layers({"model": {"net": node("MLP", in_features=64)}, "data": {"num_clients": 3}}, {"data": {"num_clients": 4}})
    words = [
        "fit",
        "--config",
        "a.yaml",
        "--config",
        "b.yaml",
        "--model.net",
        "Logistic",
        "--model.net.in_features",
        "2",
    ]
    composed = read(words[:5]).composed
    assert (composed.origin("model.net"), composed.origin("data.num_clients")) == ("a.yaml", "b.yaml")
    assert read(words[:7]).composed.origin("model.net") == "--model.net"
    assert read(words).composed.origin("model.net.in_features") == "--model.net.in_features"


def test_every_key_of_the_table_is_there_and_the_longest_prefix_decides():
    for key in EFFECTS:
        branch, _, name = key.partition(".")
        assert not name or name in (arguments(BRANCHES[branch]) or ()), key
    assert effect("model.method.init_args.lr") is Effect.FIGURES is effect("something.new")
    assert effect("model.executor") is Effect.LAST_BITS and effect("trainer.logger.init_args.project") is Effect.NOTHING


def test_the_readme_says_what_each_key_changes(repo):
    rows = [line.split("|") for line in (repo / "README.md").read_text().splitlines() if line.startswith("| ")]
    starts = {"the figures": Effect.FIGURES, "only last bits": Effect.LAST_BITS, "no figure": Effect.NOTHING}
    for start, kind in starts.items():
        (named,) = [re.findall(r"`([\w.]+)`", row[2]) for row in rows if row[1].strip().startswith(start)]
        assert sorted(named) == sorted(key for key, changes in EFFECTS.items() if changes is kind)


@pytest.mark.parametrize(
    "line", ["model: {method: {init_args: {lr: }}}", "model: {l2: }", "rounds:", "data: {num_clients: }"]
)
def test_an_empty_value_is_refused_with_its_file(fedpm, tmp_path, capsys, line):
    (tmp_path / "empty.yaml").write_text(line)
    assert fedpm("fit", *QUICK, "--config", "empty.yaml").code == 2
    told = capsys.readouterr().err
    assert "empty.yaml: " in told and "is empty (null)" in told
    assert not (tmp_path / "run").exists()


def test_a_class_without_a_required_argument_is_named_with_its_key(fedpm, capsys):
    assert fedpm("fit", *QUICK, "--trainer.logger", "CSVLogger").code == 2
    assert "error: trainer.logger CSVLogger needs --trainer.logger.save_dir\n" in capsys.readouterr().err


def test_null_stays_where_it_means_something(layers):
    from fedpm_lightning.commands.lightning_cli import parse

    words = [
        "fit",
        *QUICK,
        "--model.method.mix_damping=null",
        "--data.batch_size=null",
        "--model.server_optimizer=null",
    ]
    layers()
    settings = parse(words)
    assert settings.model.method.init_args.mix_damping is None and settings.data.batch_size is None
