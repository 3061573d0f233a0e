"""One environment for each peer, that borrows torch and what else is installed here.

    python -m benchmarks.peers.setup
    python -m benchmarks.peers.setup --peers FedLab Flower

An environment sees this one's packages behind its own through a .pth file, and pip installs into it only what is
missing or too new for the peer. The versions of torch and torchvision are held: all contestants run the same kernels.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import sysconfig
import tempfile
import venv
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

VENVS = Path(__file__).resolve().parent / ".venvs"
REQUIREMENTS = {
    "pfl-research": ["pfl==0.6.0"],
    "FedLab": ["fedlab==1.3.0"],
    "fluke": ["fluke-fl==0.8.1"],
    "Flower": ["flwr[simulation]==1.42.0"],
    "BlazeFL": ["blazefl==3.0.0"],
}
HELD = ("torch", "torchvision")


def folder(peer: str) -> Path:
    """Return where a peer's environment is."""
    return VENVS / peer.lower()


def python(peer: str) -> Path:
    """Return a peer's interpreter; it need not exist."""
    return folder(peer) / "bin" / "python"


def note(peer: str) -> Path:
    """Return the file that says how a peer's installation ended."""
    return folder(peer) / "installed.json"


def trouble(peer: str) -> str | None:
    """Return in words why a peer cannot run; None if it can."""
    if not note(peer).is_file():
        return "not installed: python -m benchmarks.peers.setup"
    return json.loads(note(peer).read_text())["trouble"]


def install(peer: str) -> str | None:
    """Make a peer's environment; return what went wrong, in a line, or None."""
    venv.create(folder(peer), clear=True, with_pip=False)
    inside = f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages/behind_its_own.pth"
    (folder(peer) / inside).write_text(sysconfig.get_paths()["purelib"] + "\n")
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as held:
        held.writelines(f"{package}=={version(package)}\n" for package in HELD)
        held.flush()
        pip = [sys.executable, "-m", "pip", "--python", str(python(peer)), "install", "--quiet"]
        words = [*pip, "--constraint", held.name, *REQUIREMENTS[peer]]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    wrong = None if done.returncode == 0 else reason(done.stderr, REQUIREMENTS[peer][0])
    note(peer).write_text(json.dumps({"requirements": REQUIREMENTS[peer], "trouble": wrong}, indent=1) + "\n")
    return wrong


def reason(stderr: str, requirement: str) -> str:
    """Return in one line why pip failed: the Python that the asked version needs, or else its first error."""
    needs = re.search(rf"[ ;]{re.escape(requirement.rpartition('==')[2])} Requires-Python ([^;\s]+)", stderr)
    if needs:
        running = ".".join(map(str, sys.version_info[:3]))
        return f"{requirement} cannot be installed: it needs Python {needs[1]}, and this is {running}"
    lines = [line for line in stderr.splitlines() if line.startswith("ERROR:")] or stderr.splitlines() or ["unknown"]
    return f"{requirement} cannot be installed: {lines[0].removeprefix('ERROR: ')[:150]}"


def main(argv: Sequence[str] | None = None) -> int:
    """Make the environments asked for; return 0, since a peer that cannot be had is a line in the table."""
    parser = argparse.ArgumentParser("python -m benchmarks.peers.setup", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--peers", nargs="+", choices=list(REQUIREMENTS), default=list(REQUIREMENTS))
    for peer in parser.parse_args(argv).peers:
        print(f"{peer}: {install(peer) or 'installed'}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
