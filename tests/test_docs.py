"""The README and the pages of docs/: what they say to type is typed, what they link to is there."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import matplotlib
import pytest

from documents import BUILT, KNOWN, PAGES, REPO, blocks, play, slug, unrun
from fedpm_lightning.methods import METHODS
from fedpm_lightning.methods.registry import MIXED, ORDERS

RUN = [page for page in PAGES if any(b.language in ("bash", "python") or b.title for b in blocks(page))]
UNRUN = [(page, line) for page in PAGES for b in blocks(page) if b.language == "sh" for line in b.commands]
READERS = ("compare", "fedpm test", "read_csv")
READS_RUNS = {p for p in PAGES if p != "README.md" and any(word in b.text for b in blocks(p) for word in READERS)}
SMALL = ["--rounds", "1"]
FEW = ["--data.num_clients", "2", "--data.participation", "1.0", "--model.local_epochs", "1"]


def smaller(page: str, words: list[str], images: dict[str, Path], libsvm: Path) -> list[str]:
    """The same command on a budget: a round on few samples; of what other tests run whole, the configuration."""
    words = [str(libsvm) if word == "FOLDER/a9a" else word for word in words]
    if words[0] == "sweep" and "--jobs" in words:
        return [*words, "--dry-run"]
    if words[0] != "fit" or "--print_config" in words:
        return words
    plain = not any(word.startswith("--") and word not in {"--config", "--rounds", "--run_dir"} for word in words)
    image = next((folder for name, folder in images.items() if any(name in word for word in words)), None)
    if "WandbLogger" in words or (plain and (image is not None or page not in READS_RUNS)):
        return [*words, *SMALL, "--print_config"]  # test_wandb_sweep and test_configs run them
    if image is not None:
        return [*words, *SMALL, "--data.source", str(image), "--data.root", str(image), *FEW]
    if str(libsvm) in words:
        return [*words, *SMALL, "--data.num_clients", "4", "--data.partition.clients_size", "15"]
    digits = "quickstart" in words and "--data.source" not in words
    return [*words, *SMALL, *(["--data.limit_train", "200", "--model.local_epochs", "1"] if digits else [])]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder, from which modules are imported: what ships goes by name."""
    matplotlib.use("Agg")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    yield tmp_path
    for name in [n for n in sys.modules if n.startswith("my_")]:
        del sys.modules[name]


@pytest.mark.parametrize("page", RUN)
def test_a_page_does_what_it_says(page, folder, tiny_cifar, tiny_libsvm):
    """In one folder, in the page's order: later commands look at the runs of earlier ones."""
    assert list(play(page, lambda words: smaller(page, words, tiny_cifar, tiny_libsvm))) == []


@pytest.mark.parametrize(("page", "line"), UNRUN)
def test_a_line_that_needs_more_than_a_test_has_names_what_exists(page, line):
    assert unrun(line) is None


@pytest.mark.parametrize("page", PAGES)
def test_links_and_languages(page):
    """Links lead to files and to headings that are there; blocks say what they are."""
    text = re.sub(r"^```.*?^```", "", (REPO / page).read_text(), flags=re.DOTALL | re.MULTILINE)
    assert {block.language for block in blocks(page)} <= KNOWN
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, anchor = target.partition("#")
        file = ((REPO / page).parent / path).resolve() if path else REPO / page
        if "://" in target or file.relative_to(REPO).as_posix() in BUILT:
            continue
        assert file.exists(), f"{page}: no {target}"
        if anchor and file.suffix == ".md" and "." not in anchor:
            headings = re.findall(r"^#+ (.+)$", file.read_text(), flags=re.MULTILINE)
            assert anchor in {slug(heading) for heading in headings}, f"{page}: no heading {target}"


def test_the_site_has_every_page():
    """Those of docs/ stand in the navigation."""
    nav = (REPO / "mkdocs.yml").read_text()
    pages = [page.removeprefix("docs/") for page in PAGES if page.startswith("docs/")]
    assert [page for page in pages if f": {page}\n" not in nav] == []


def test_the_generated_pages_hold_every_key(tmp_path, monkeypatch):
    """Read from the parsers: every key and class has its row, and an explanation."""
    monkeypatch.setattr(sys, "path", [str(REPO / "docs" / "_build"), *sys.path])
    stage = importlib.import_module("stage")
    monkeypatch.setattr(stage, "OUT", tmp_path)
    stage.main()
    made = {f"docs/{path.relative_to(tmp_path).as_posix()}" for path in tmp_path.rglob("*.md")}
    assert made == {page for page in PAGES if page != "README.md"} | BUILT
    text, verbs = ((tmp_path / "reference" / f"{name}.md").read_text() for name in ("configuration", "cli"))
    for key in ("rounds", "data.partition", "model.weighting", "trainer.precision", "damping", "alpha", "every"):
        assert f"| `{key}` |" in text
    ours = [line for line in text.splitlines() if re.match(r"\| `(data|model)\.|\| `\w+` \|", line)]
    assert len(ours) > 150 and [line for line in ours if line.endswith("|  |")] == []
    classes = {entry.label for entry in METHODS if entry.module} | {"Foof", "Dirichlet", "CNN", "Cosine", "ClientDrift"}
    assert [name for name in classes if f"#### {name}\n" not in text] == []
    assert all(f"\n## {verb}" in verbs for verb in ("compare", "sweep", "dashboard"))


def test_the_taxonomy_lists_every_method_in_its_cell():
    text = (REPO / "docs/concepts/taxonomy.md").read_text()
    for order in ORDERS:
        (row,) = re.findall(rf"^\| \*\*{order}\*\* \|(.*)\|$", text, re.MULTILINE)
        for mixed, cell in zip(MIXED, row.split("|"), strict=True):
            wanted = ", ".join(entry.label for entry in METHODS if entry.taxonomy == (order, mixed))
            assert re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", cell).strip() == wanted, f"{order}, {mixed}: {wanted}"


def test_the_site_builds_without_a_warning(tmp_path):
    """As `make docs` does."""
    pytest.importorskip("mkdocstrings", reason="the site needs the docs extra")
    build = tmp_path / "repository"
    build.mkdir()
    for name in ("docs", "src", "mkdocs.yml", "CHANGELOG.md"):
        os.symlink(REPO / name, build / name)
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(build / "src")}
    for words in (["docs/_build/stage.py"], ["-m", "mkdocs", "build", "--strict"]):
        done = subprocess.run([sys.executable, *words], cwd=build, env=quiet, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-2000:]
    assert (build / "site" / "search" / "search_index.json").is_file()
    pages = [page.read_text() for page in (build / "site").rglob("*.html")]
    fetched = re.compile(r"(?:src|href)=\"https?://[^\"]+\.(?:js|css|woff2?)\"")
    assert len(pages) > 35 and [page for page in pages if fetched.search(page)] == []
    assert broken_links(build / "site") == []


class Anchors(HTMLParser):
    """The links of a page, and what of it can be linked to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in {"href", "src"} and value:
                self.links.append(value)
            if name in {"id", "name"} and value:
                self.ids.add(value)


def broken_links(site: Path) -> list[str]:
    """Links of a built site to pages, files or headings of it that are not there."""
    pages = {file: Anchors(file.read_text()) for file in site.rglob("*.html") if file.name != "404.html"}
    broken = []
    for file, page in pages.items():
        for link in page.links:
            path, _, anchor = link.partition("#")
            if re.match(r"\w+:|//", link):
                continue
            target = (file.parent / unquote(path)).resolve() if path else file
            target = target / "index.html" if target.is_dir() else target
            known = pages[target].ids if target in pages else None
            if not target.exists() or (anchor and known is not None and unquote(anchor) not in known):
                broken.append(f"{file.relative_to(site)}: {link}")
    return broken


def test_a_broken_link_is_found(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "index.html").write_text('<a href="sub/#here">x</a><a href="sub/#gone">x</a><img src="no.png">')
    (tmp_path / "sub" / "index.html").write_text(
        '<h1 id="here">x</h1><a href="../">x</a><a href="https://a.b/#c">x</a>'
    )
    assert broken_links(tmp_path) == ["index.html: sub/#gone", "index.html: no.png"]
