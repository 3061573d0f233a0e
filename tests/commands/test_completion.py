"""TAB in a shell, asked as argcomplete's shell function asks: by the environment, without torch."""

from __future__ import annotations

import io
import os
import subprocess
import sys

import pytest

from fedpm_lightning.cli import COMMANDS, main
from fedpm_lightning.commands.completion import complete
from fedpm_lightning.configuration.every_key import every_key

pytest.importorskip("argcomplete", reason="completion needs the completion extra")


@pytest.fixture
def offered(tmp_path, monkeypatch):
    """What is offered at the end of a line, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    # its stream for errors is file descriptor 9, which is a test run's own
    monkeypatch.setattr("argcomplete.finders.CompletionFinder._init_debug_stream", lambda self: None)

    def ask(line: str) -> list[str]:
        asked = {"_ARGCOMPLETE": "1", "_ARGCOMPLETE_IFS": "\n", "_ARGCOMPLETE_SUPPRESS_SPACE": "1"}
        asked |= {"COMP_LINE": line, "COMP_POINT": str(len(line)), "COMP_TYPE": "9"}
        for name, value in asked.items():
            monkeypatch.setenv(name, value)
        answer = io.StringIO()
        with pytest.raises(SystemExit):
            complete(COMMANDS, output_stream=answer, exit_method=sys.exit)
        return answer.getvalue().split("\n")

    return ask


def test_every_command_and_every_key_is_offered(offered):
    assert set(COMMANDS) <= set(offered("fedpm "))
    assert offered("fedpm par") == ["partition"]
    assert {f"--{key}" for key in every_key()} | {"--config", "--help"} <= set(offered("fedpm fit --"))
    assert {"--metric", "--at"} <= set(offered("fedpm compare --"))


@pytest.mark.parametrize(
    ("line", "offers"),
    [
        ("fit --config qui", {"quickstart"}),
        ("fit --config method/fedpac", {"method/fedpac", "method/fedpac_sophia"}),
        ("fit --config=qui", {"--config=quickstart"}),
        ("fit --model.method SCAF", {"SCAFFOLD"}),
        ("fit --model.executor ", {"auto", "sequential", "vectorized"}),
        ("fit --data.drop_last ", {"true", "false"}),
        ("fit --trainer.callbacks+ Dropo", {"Dropouts"}),
        ("fit --help Foo", {"Foof"}),
        ("sweep di", {"digits"}),
        ("configs quick", {"quickstart"}),
    ],
)
def test_names_and_values_are_offered(offered, line, offers):
    assert set(offered(f"fedpm {line}")) == offers


def test_the_keys_of_the_class_that_the_line_or_its_files_choose_are_offered(offered, tmp_path):
    by_file = offered("fedpm fit --config quickstart --model.method.")
    assert "--model.method.mix_damping" in by_file
    by_name = offered("fedpm fit --config quickstart --model.method FedAvg --model.method.")
    assert "--model.method.momentum" in by_name and "--model.method.mix_damping" not in by_name
    assert offered("fedpm fit --data.partition.al") == ["--data.partition.alpha"]
    (tmp_path / "mine.yaml").write_text("model: {method: FedProx}")
    assert "mine.yaml" in offered("fedpm fit --config mi")
    assert offered("fedpm fit --config mine.yaml --model.method.m") == ["--model.method.momentum", "--model.method.mu"]


def test_the_program_answers_the_shell_itself_and_a_bash_loads_the_function(tmp_path):
    """What the documentation says to put into .bashrc, and one TAB, in a real bash."""
    script = (
        'eval "$(register-python-argcomplete fedpm)"\n'
        'COMP_LINE="fedpm fit --config quick"; COMP_POINT=24; COMP_TYPE=9; COMP_WORDS=($COMP_LINE); COMP_CWORD=3\n'
        '_python_argcomplete fedpm; printf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    programs = tmp_path / "fedpm"
    programs.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m fedpm_lightning.cli "$@"\n')
    programs.chmod(0o755)
    path = f"{tmp_path}:{sys.prefix}/bin:/usr/bin:/bin"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env={**os.environ, "PATH": path})
    assert done.stdout.split() == ["quickstart"], done.stderr


def test_without_the_extra_the_shell_gets_nothing_and_no_traceback(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "argcomplete", None)
    monkeypatch.setenv("_ARGCOMPLETE", "1")
    assert main(["fit"]) == 0 and capsys.readouterr() == ("", "")
