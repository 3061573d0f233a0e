"""The command `fedpm dashboard`: an HTML file over runs, or the same page served while they go on."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from fedpm_lightning.report.dashboard.collect import collect
from fedpm_lightning.report.dashboard.page import build_page, plotly_js
from fedpm_lightning.report.dashboard.serve import Live, make_server, title_of
from fedpm_lightning.report.metrics_csv import write_atomically
from fedpm_lightning.report.records import RunError
from fedpm_lightning.report.runs import find_runs


def make_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = argparse.ArgumentParser(
        prog="fedpm dashboard",
        allow_abbrev=False,
        description="Write one HTML file over runs: a table of settings, curves, and a page for every run. "
        "It opens without a network. With --serve the same page follows runs that are still going.",
    )
    parser.add_argument("paths", nargs="+", metavar="PATH", help="a run's folder, or one above runs")
    parser.add_argument("--output", type=Path, default=Path("dashboard.html"), metavar="FILE", help="(%(default)s)")
    parser.add_argument("--title", help="the page's heading")
    parser.add_argument("--serve", action="store_true", help="serve the page instead of writing a file")
    parser.add_argument("--host", default="127.0.0.1", help="address to serve on; this machine alone by default")
    parser.add_argument("--port", type=int, default=8265, help="port to serve on, 0 for any free one (%(default)s)")
    parser.add_argument("--refresh", type=float, default=5.0, metavar="S", help="seconds between looks (%(default)s)")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Write or serve the dashboard.

    Args:
        argv: The arguments after `fedpm dashboard`; default: the command line.

    Returns:
        The exit code: 0 with a page, 2 if the request cannot be met.
    """
    args = make_parser().parse_args(argv)
    try:
        if not 0 <= args.port <= 65535:
            raise RunError(f"--port must be in 0..65535, got {args.port}")
        if not args.refresh >= 0.2:
            raise RunError(f"--refresh must be at least 0.2 seconds, got {args.refresh}")
        return serve(args) if args.serve else write(args)
    except (RunError, RuntimeError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def write(args: argparse.Namespace) -> int:
    """Write the file and say what is in it."""
    plotly_js()  # before the work, if it is missing
    runs = find_runs(args.paths)
    data = collect(runs)
    write_atomically(args.output, build_page(data, args.title or title_of(args.paths)))
    size = args.output.stat().st_size / 1e6
    print(f"{len(runs)} runs in {len(data.manifest['settings'])} settings: {args.output} ({size:.1f} MB)")
    return 0


def serve(args: argparse.Namespace) -> int:
    """Serve until Ctrl-C."""
    plotly_js()
    server = make_server(Live(args.paths, args.refresh), args.host, args.port)
    host = f"[{args.host}]" if ":" in args.host else args.host
    print(f"http://{host}:{server.server_port}/ (Ctrl-C ends it)", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        server.server_close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
