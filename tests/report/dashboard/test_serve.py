"""The served page follows the runs' files, on this machine alone."""

from __future__ import annotations

import http.client
import json
import threading
from contextlib import contextmanager

import pytest

from fedpm_lightning.report.dashboard.serve import Live, make_server
from fedpm_lightning.report.metrics_csv import MetricsCsv


@contextmanager
def serving(folder, refresh_s=0.2, host="127.0.0.1"):
    live = Live([str(folder)], refresh_s)
    live.refresh_s = 0.0  # every question looks at the files
    server = make_server(live, host, 0)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()

    def ask(path, **headers):
        connection = http.client.HTTPConnection(host, server.server_port, timeout=30)
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        found = answer.status, dict(answer.getheaders()), answer.read()
        connection.close()
        return found

    try:
        yield ask
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_news_only_when_there_is_some(few):
    with serving(few) as ask:
        status, headers, body = ask("/data.json")
        manifest = json.loads(body)["manifest"]
        assert status == 200 and len(manifest["runs"]) == 11
        assert ask("/data.json", **{"If-None-Match": headers["ETag"]})[0] == 304
        table = MetricsCsv(few / "going" / "metrics.csv")
        table.begin(1)
        table.write({"round": 2, "val/acc": 0.45})
        status, changed, body = ask("/data.json", **{"If-None-Match": headers["ETag"]})
        going = next(run for run in json.loads(body)["manifest"]["runs"] if run["name"] == "going")
        assert status == 200 and changed["ETag"] != headers["ETag"] and going["final"]["val/acc"] == 0.45


def test_a_run_that_cannot_be_read_costs_one_line_and_none_leaves_the_last_state(few, capsys):
    with serving(few) as ask:
        (few / "lost" / "summary.json").write_text("{")
        for _ in range(3):
            assert len(json.loads(ask("/data.json")[2])["manifest"]["runs"]) == 10
            (few / "going" / "metrics.csv").touch()
        assert capsys.readouterr().err.count("lost/summary.json is not JSON") == 1
        for file in few.glob("*/summary.json"):
            file.write_text("{")
        assert len(json.loads(ask("/data.json")[2])["manifest"]["runs"]) == 10
    assert "the last state stays" in capsys.readouterr().err


def test_the_page_and_its_manners(few):
    with serving(few) as ask:
        status, headers, body = ask("/")
        assert status == 200 and headers["Content-Type"].startswith("text/html")
        assert b"connect-src 'self'" in body and b'"tag":"' in body
        assert ask("/../etc/passwd")[0] == 404
        assert ask("/", Host="evil.example:80")[0] == 403, "another name that points here"
        assert ask("/", Host="localhost:80")[0] == 200


def test_the_other_loopback_address_is_this_machine_alone_too(few):
    with serving(few, host="::1") as ask:
        assert ask("/data.json")[0] == ask("/data.json", Host="[::1]")[0] == 200
        assert ask("/", Host="evil.example:80")[0] == ask("/", Host="[evil")[0] == 403


def test_a_page_closed_while_it_loads_is_no_error(few, capsys):
    server = make_server(Live([str(few)], 5), "127.0.0.1", 0)
    for error in (BrokenPipeError(), ConnectionResetError(), KeyError("a mistake")):
        try:
            raise error
        except Exception:
            server.handle_error(None, None)
    server.server_close()
    told = capsys.readouterr().err
    assert told.count("Traceback") == 1 and "a mistake" in told


def test_a_taken_port(few):
    server = make_server(Live([str(few)], 5), "127.0.0.1", 0)
    with pytest.raises(OSError):
        make_server(Live([str(few)], 5), "127.0.0.1", server.server_port)
    server.server_close()
