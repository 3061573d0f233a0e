"""Files that other programs read: containers, issue forms and the citation name what exists."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from pathlib import Path

import pytest
import yaml

REPO = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
FORMS = sorted((REPO / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
INSTRUCTIONS = {"FROM", "RUN", "COPY", "ENV", "WORKDIR", "ENTRYPOINT", "CMD"}


def extras_of(text: str) -> set[str]:
    return {extra for group in re.findall(r"(?:\.whl\)|\.)\[([\w,]+)\]", text) for extra in group.split(",")}


def instructions() -> list[tuple[str, str]]:
    """(INSTRUCTION, the rest) of the Dockerfile, continued lines joined."""
    text = re.sub(r"^#.*\n", "", (REPO / "Dockerfile").read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [tuple(line.split(maxsplit=1)) for line in text.splitlines() if line.strip()]


def test_the_dockerfile_names_stages_files_and_extras_that_there_are():
    stages: list[str] = []
    for word, rest in instructions():
        assert word in INSTRUCTIONS, word
        if word == "FROM":
            image, _, name = rest.split()
            assert image in stages or image.startswith("python:3.12")
            stages.append(name)
        for used in re.findall(r"--(?:mount=)?from=(\w+)", rest):
            assert used in stages, used
        if word == "COPY":
            *sources, _ = [part for part in rest.split() if not part.startswith("--")]
            assert all((REPO / source).exists() for source in sources)
        if word in ("ENTRYPOINT", "CMD"):
            assert json.loads(rest)[0] in {"fedpm", "--help"}
        if word == "RUN":
            shlex.split(rest)
    assert stages == ["wheel", "base", "cpu", "cuda"] and "fedpm" in PROJECT["scripts"]
    extras = extras_of((REPO / "Dockerfile").read_text())
    assert extras and extras <= set(PROJECT["optional-dependencies"])
    head = (REPO / "Dockerfile").read_text().partition("FROM")[0]
    assert set(re.findall(r"--target (\w+)", head)) == {"cpu", "cuda"}
    assert all((REPO / "configs" / f"{name}.yaml").is_file() for name in re.findall(r"--config (\w+)", head))


def test_what_builds_the_wheel_is_not_kept_out_of_the_image():
    ignored = {line.strip("*/") for line in (REPO / ".dockerignore").read_text().splitlines() if line[:1] not in "#"}
    assert not ignored & {"src", "configs", "sweeps", "setup.py", "pyproject.toml", "README.md", "LICENSE", ".git"}


def test_the_devcontainer_installs_what_the_tests_need():
    container = json.loads((REPO / ".devcontainer" / "devcontainer.json").read_text())
    assert container["image"].endswith("python:3.12") and PROJECT["requires-python"] == ">=3.11"
    assert extras_of(container["postCreateCommand"]) == {"dev"}
    assert "chromium" in container["onCreateCommand"]


@pytest.mark.parametrize("file", [form for form in FORMS if form.name != "config.yml"], ids=lambda file: file.stem)
def test_an_issue_form_is_one(file):
    form = yaml.safe_load(file.read_text())
    assert {"name", "description", "body"} <= form.keys() <= {"name", "description", "body", "labels", "title"}
    ids = [field["id"] for field in form["body"] if field["type"] != "markdown"]
    assert len(ids) == len(set(ids))
    for field in form["body"]:
        assert field["type"] in {"input", "textarea", "dropdown", "checkboxes", "markdown"}
        assert field["attributes"]["label"]


def test_the_citation_is_of_this_version():
    citation = yaml.safe_load((REPO / "CITATION.cff").read_text())
    assert citation["version"] == PROJECT["version"] and citation["license"] == PROJECT["license"]
    assert citation["preferred-citation"]["title"].startswith("FedPM")
