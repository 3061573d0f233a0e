"""The README's commands are typed as they stand, only made smaller: fewer rounds, and tiny images for CIFAR."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from fedpm_lightning.cli import main

REPO = Path(__file__).resolve().parent.parent
TEXT = (REPO / "README.md").read_text()
BLOCKS = re.findall(r"```bash\n(.*?)```", TEXT, flags=re.DOTALL)
COMMANDS = [line.split(" #")[0].strip() for block in BLOCKS for line in block.splitlines()]
COMMANDS = [line for line in COMMANDS if line and not line.startswith("#")]
FEDPM = [line for line in COMMANDS if line.startswith("fedpm ")]


def smaller(words: list[str], images: dict[str, Path]) -> list[str]:
    """The same command on a budget: a round; of a sweep, its command lines."""
    if words[0] == "sweep" and "--jobs" in words:
        return [*words, "--dry-run"]
    if words[0] != "fit":
        return words
    words = [*words, "--rounds", "1"]
    files_alone = not any(word.startswith("--") and word not in {"--config", "--rounds"} for word in words)
    if files_alone or "WandbLogger" in words:  # test_configs and test_wandb_sweep run them
        return [*words, "--print_config"]
    if "FOLDER/a9a" in words:
        words[words.index("FOLDER/a9a")] = str(images["a9a"])
        words += ["--data.num_clients", "4", "--data.partition.clients_size", "15"]
    for name, folder in images.items():
        if name != "a9a" and any(name in word for word in words):
            words += [
                "--data.source",
                str(folder),
                "--data.root",
                str(folder),
                "--data.num_clients",
                "2",
                "--data.participation",
                "1.0",
                "--model.local_epochs",
                "1",
            ]
            words += ["--model.net.width", "8"] if name == "cifar100" else []
    return words


def test_the_first_two_commands_are_make_targets():
    assert COMMANDS[0] == "make quickstart" and COMMANDS[1] == "make test"
    targets = re.findall(r"^([\w-]+):", (REPO / "Makefile").read_text(), flags=re.MULTILINE)
    assert {line.split()[1] for line in COMMANDS if line.startswith("make ")} <= set(targets)


def test_every_command_runs(fedpm, tiny_cifar, tiny_libsvm):
    """In one folder, in the README's order: later commands look at the runs of earlier ones."""
    assert len(FEDPM) >= 10
    for line in FEDPM:
        words = smaller(shlex.split(line)[1:], {**tiny_cifar, "a9a": tiny_libsvm})
        assert main(words) == 0, line


@pytest.mark.parametrize("path", sorted(set(re.findall(r"\]\(([\w./-]+)\)", TEXT))))
def test_links_lead_somewhere(path):
    assert (REPO / path).exists()
