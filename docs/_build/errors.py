"""The page of errors by exit code, read from the classes that carry them."""

from __future__ import annotations

import inspect

from fedpm_lightning import errors

HEAD = """# Errors by exit code

An error is printed in one to three lines that name the value, what is allowed, and the way out; a traceback is never what you see. The
exit code says what a script or a scheduler needs to know.

| code | meaning | what to do |
|---|---|---|
| 0 | finished | |
| 1 | the run failed, or a value is out of its range | read the message; a run that had begun goes on with the same `--run_dir` |
| 2 | the command line is wrong: a key, a name, a value of the wrong type | the message lists what there is, and what may have been meant |
| 3 | the model diverged: NaN, Inf, or a loss above `model.max_loss` | lower `lr` or raise `damping`; `summary.json` says `diverged: true` |
| 128 + n | signal n ended the run in good order (130: Ctrl-C, 143: SIGTERM, a scheduler) | start the same command again: it goes on after the last round that was saved |

## The classes

What a callback or a program can catch, from `fedpm_lightning.errors`:

| class | is a | code | when |
|---|---|---|---|
"""


def page() -> str:
    """Return the page as Markdown."""
    classes = [c for c in vars(errors).values() if inspect.isclass(c) and c.__module__ == errors.__name__]
    return HEAD + "\n".join(row(c) for c in classes) + "\n"


def row(cls: type) -> str:
    """Return one class as a row."""
    code = "128 + n" if not issubclass(cls, Exception) else "3" if issubclass(cls, errors.DivergedError) else "1"
    bases = ", ".join(f"`{base.__name__}`" for base in cls.__bases__)
    return f"| `{cls.__name__}` | {bases} | {code} | {(inspect.getdoc(cls) or '').splitlines()[0]} |"
