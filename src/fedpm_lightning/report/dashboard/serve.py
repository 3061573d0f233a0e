"""Serves the dashboard on this machine and reads the runs again when their files changed."""

from __future__ import annotations

import hashlib
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from fedpm_lightning.report.dashboard.collect import PageData, collect
from fedpm_lightning.report.dashboard.page import build_page, script_json
from fedpm_lightning.report.dashboard.run_entry import STILL_GOING_S
from fedpm_lightning.report.records import RunError
from fedpm_lightning.report.runs import find_runs

LOOPBACK = {"127.0.0.1", "::1", "localhost"}
_WATCHED = {"summary.json", "metrics.csv", "partition.json"}


class Live:
    """The runs below some paths, read again when a file of theirs changed.

    Args:
        paths: What `find_runs` takes.
        refresh_s: Seconds between two looks of a page.
    """

    def __init__(self, paths: Sequence[str], refresh_s: float) -> None:
        self.paths, self.refresh_s = list(paths), refresh_s
        self._lock = threading.Lock()
        self._warned: set[str] = set()
        self._seen = self._stamp()
        self._data = collect(find_runs(self.paths, self._print_once))
        self._looked_at = time.monotonic()

    def data(self) -> tuple[PageData, str]:
        """Return the data and a tag that changes with them; a run that cannot be read leaves the last ones."""
        with self._lock:
            if time.monotonic() - self._looked_at >= self.refresh_s / 2:
                self._refresh_if_changed()
            return self._data, self._seen

    def page(self) -> bytes:
        """Return the page as it stands now."""
        data, tag = self.data()
        tagged = PageData({**data.manifest, "tag": tag}, data.arrays)
        return build_page(tagged, title_of(self.paths), self.refresh_s).encode()

    def refresh(self) -> tuple[bytes, str]:
        """Return the answer to a page's question for news, and its tag."""
        data, tag = self.data()
        body = {"manifest": {**data.manifest, "refresh_s": self.refresh_s}, "arrays": data.arrays}
        return script_json(body).encode(), tag

    def _refresh_if_changed(self) -> None:
        stamp = self._stamp()
        if stamp != self._seen:
            try:
                self._data, self._seen = collect(find_runs(self.paths, self._print_once)), stamp
            except (RunError, ValueError, OSError) as error:
                print(f"the runs could not be read, the last state stays: {error}", file=sys.stderr)
        self._looked_at = time.monotonic()

    def _print_once(self, line: str) -> None:
        """Print a line once, not at every refresh."""
        if line not in self._warned:
            self._warned.add(line)
            print(line, file=sys.stderr)

    def _stamp(self) -> str:
        """Digest names, sizes and times of the runs' files, and which runs have just fallen silent."""
        digest = hashlib.sha256()
        for path in self.paths:
            for folder, below, names in os.walk(path):
                below.sort()
                if "checkpoints" in below:
                    below.remove("checkpoints")
                for name in sorted(_WATCHED.intersection(names)):
                    digest.update(_stat(os.path.join(folder, name)))
        return digest.hexdigest()


def _stat(file: str) -> bytes:
    try:
        found = os.stat(file)
    except OSError:  # replaced at this moment
        return b""
    going = time.time() - found.st_mtime < STILL_GOING_S
    return f"{file}\0{found.st_size}\0{found.st_mtime_ns}\0{going}\n".encode()


class Handler(BaseHTTPRequestHandler):
    """Serves the page at `/` and changes at `/data.json`."""

    def __init__(self, live: Live, hosts: set[str] | None, *args: object) -> None:
        self.live, self.hosts = live, hosts
        super().__init__(*args)  # pyright: ignore[reportArgumentType]

    def do_GET(self) -> None:
        """Handle a request."""
        if self.hosts is not None and host_of(self.headers.get("Host") or "") not in self.hosts:
            # A page elsewhere may have its own name point to this machine.
            self.send_error(HTTPStatus.FORBIDDEN, "this dashboard answers to localhost only")
        elif self.path == "/":
            self._send(self.live.page(), "text/html; charset=utf-8")
        elif self.path == "/data.json":
            body, tag = self.live.refresh()
            if self.headers.get("If-None-Match") == f'"{tag}"':
                self.send_response(HTTPStatus.NOT_MODIFIED)
                self.end_headers()
            else:
                self._send(body, "application/json", tag)
        else:
            self.send_error(HTTPStatus.NOT_FOUND)

    def _send(self, body: bytes, kind: str, tag: str | None = None) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        if tag is not None:
            self.send_header("ETag", f'"{tag}"')
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Stay silent: a line every few seconds tells nobody anything."""


def host_of(address: str) -> str | None:
    """Return the host of `host:port` or `[host]:port`; None where it is none."""
    try:
        return urlsplit(f"//{address}").hostname
    except ValueError:
        return None


class Server(ThreadingHTTPServer):
    """Listens on an address of either version of IP, and is silent about pages that are closed while they load."""

    def __init__(self, host: str, port: int, handler: Callable[..., Handler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), handler)  # pyright: ignore[reportArgumentType]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print the error of a request."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


def make_server(live: Live, host: str, port: int) -> ThreadingHTTPServer:
    """Return a server that is bound but not yet running; port 0 takes a free one.

    Raises:
        OSError: If the port is taken.
    """
    return Server(host, port, partial(Handler, live, LOOPBACK if host in LOOPBACK else None))


def title_of(paths: Sequence[str]) -> str:
    """Name a page by what it shows."""
    return "Runs in " + ", ".join(paths)
