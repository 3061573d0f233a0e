"""The command `fedpm report`: writes the comparison as a W&B report or workspace."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Sequence
from typing import Any

from fedpm_lightning.report.records import RunError
from fedpm_lightning.report.runs import find_runs
from fedpm_lightning.report.weights_and_biases.pages import build_report, build_workspace, spec_of
from fedpm_lightning.report.weights_and_biases.scope import Scope, scope_of, scope_of_project

_LONGEST = 128  # of a title that W&B takes
_OFFLINE = {"offline", "dryrun", "disabled"}


def make_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = argparse.ArgumentParser(
        prog="fedpm report",
        allow_abbrev=False,
        description="Build the comparison as a page of a W&B project: accuracy and loss against rounds, megabytes and "
        "seconds, final and best, diagnostics; a run set for each data set and split, seeds averaged with bands.",
    )
    parser.add_argument("--wandb", required=True, metavar="ENTITY/PROJECT", help="where the runs are and the page goes")
    paths = "folders of the same runs: what is compared is read there instead of from the server"
    parser.add_argument("paths", nargs="*", metavar="PATH", help=paths)
    kinds = "a report, or a saved view of the project's workspace (%(default)s)"
    parser.add_argument("--kind", choices=("report", "workspace"), default="report", help=kinds)
    parser.add_argument("--title", help="default: Comparison of PROJECT")
    parser.add_argument(
        "--data", action="append", default=[], metavar="NAME", help="only this data set; may be given again"
    )
    alpha = "only this alpha of a Dirichlet split; may be given again"
    parser.add_argument("--alpha", action="append", default=[], type=_alpha, metavar="A", help=alpha)
    state = parser.add_mutually_exclusive_group()
    state.add_argument("--draft", action="store_true", help="save a report as a draft that only you see (default)")
    state.add_argument("--publish", action="store_true", help="save a report for everybody who sees the project")
    parser.add_argument("--dry-run", action="store_true", help="print what would be sent as JSON; needs no login")
    return parser


def _alpha(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is no alpha; give a number above 0, such as 0.1")
    return value


def main(argv: Sequence[str] | None = None) -> int:
    """Save the page, or print it.

    Args:
        argv: The arguments after `fedpm report`; default: the command line.

    Returns:
        The exit code: 0 with a page, 2 if the request cannot be met.
    """
    args = make_parser().parse_args(argv)
    try:
        check(args)
        if not args.dry_run:
            _log_in()
        page = build(args, _scope(args).only(args.data, args.alpha))
        if args.dry_run:
            json.dump(spec_of(page), sys.stdout, indent=2, ensure_ascii=False)
            print()
        else:
            print(save(page, args))
    except (RunError, RuntimeError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def check(args: argparse.Namespace) -> None:
    """Reject invalid combinations of options.

    Raises:
        RunError: If the project is not entity/project, the title is too long, or a workspace is to be a draft.
    """
    if args.wandb.count("/") != 1 or not all(args.wandb.split("/")):
        raise RunError(f"--wandb {args.wandb} names no project: write --wandb ENTITY/PROJECT")
    if args.kind == "workspace" and (args.draft or args.publish):
        raise RunError("a workspace is a saved view and never a draft: leave out --draft and --publish")
    if args.title is not None and not 1 <= len(args.title) <= _LONGEST:
        raise RunError(f"--title must have 1 to {_LONGEST} characters, got {len(args.title)}")


def _log_in() -> None:
    """Use the login there is, before any work; W&B would stop and ask for one half way through.

    Raises:
        RunError: If there is none, or W&B is told to stay offline.
    """
    import wandb

    mode = os.environ.get("WANDB_MODE", "online")
    if mode in _OFFLINE:
        raise RunError(f"WANDB_MODE={mode} keeps W&B from its server: unset it, or see the page with --dry-run")
    try:
        there = wandb.login(prompt=False)
        reason = "nobody is logged in to W&B"
    except Exception as cause:  # a key of the wrong form, or a server that does not answer
        there, reason = False, _first_line(cause)
    if not there:
        raise RunError(f"{reason}: log in with `wandb login` or set WANDB_API_KEY, or see the page with --dry-run")


def _first_line(cause: Exception) -> str:
    return (str(cause) or type(cause).__name__).splitlines()[0]


def _scope(args: argparse.Namespace) -> Scope:
    """Find out what is compared: from folders, else from the server; a dry run without folders asks nobody."""
    if args.paths:
        return scope_of(find_runs(args.paths))
    if not args.dry_run:
        return scope_of_project(args.wandb)
    if not args.data and not args.alpha:
        print("all runs in one run set: give folders of runs, or --data and --alpha, to split them", file=sys.stderr)
    return Scope()


def build(args: argparse.Namespace, scope: Scope) -> Any:
    """Build the page.

    Raises:
        RunError: If W&B's library rejects the title.
        RuntimeError: If it is not installed.
    """
    title = args.title or f"Comparison of {args.wandb.split('/')[1]}"
    try:
        return (build_report if args.kind == "report" else build_workspace)(args.wandb, title, scope)
    except ValueError:  # pydantic's, several lines long
        raise RunError(
            f"W&B takes no {args.kind} titled {title!r}: give a --title of letters, digits and plain punctuation"
        ) from None


def save(page: Any, args: argparse.Namespace) -> str:
    """Send the page to W&B and return its address.

    Raises:
        RunError: If W&B does not take it.
    """
    try:
        saved = page.save(draft=not args.publish) if args.kind == "report" else page.save()
        return str(saved.url)
    except Exception as cause:  # wandb has its own, requests' and graphql's errors
        raise RunError(
            f"the {args.kind} was not saved in {args.wandb} ({_first_line(cause)}): check the name and that you may "
            "write there, or look at it with --dry-run"
        ) from None
