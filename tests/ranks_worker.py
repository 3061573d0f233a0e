"""One of several ranks that run a list of experiments one after another: `python ranks_worker.py words.json`.

Importing the stack costs more than a small experiment; a launcher for each would pay it dozens of times.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from fedpm_lightning.cli import main

if __name__ == "__main__":
    for words in json.loads(Path(sys.argv[1]).read_text()):
        code = main(words)
        if code:
            sys.exit(f"{words} ended with code {code}")
