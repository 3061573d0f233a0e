"""The page in a real Chromium: opened, filtered, sorted, switched, a run read, the theme turned, news taken."""

from __future__ import annotations

import json
import threading
import time

import pytest

from fedpm_lightning.report.dashboard.collect import collect
from fedpm_lightning.report.dashboard.page import build_page
from fedpm_lightning.report.dashboard.serve import Live, make_server
from fedpm_lightning.report.metrics_csv import MetricsCsv
from many_runs import make_runs


class Reader:
    """What a reader does with the page, and what they see."""

    def __init__(self, driver, address: str) -> None:
        self.driver = driver
        for log in ("browser", "performance"):
            driver.get_log(log)
        driver.get("about:blank")
        driver.get(address)
        self.until("return performance.getEntriesByName('curves').length > 0")

    def js(self, code: str, *arguments):
        return self.driver.execute_script(code, *arguments)

    def until(self, code: str, seconds: float = 60):
        end = time.monotonic() + seconds
        while not (found := self.js(code)):
            assert time.monotonic() < end, f"never: {code}; console: {self.driver.get_log('browser')}"
            time.sleep(0.05)
        return found

    def choose(self, name: str, value: str) -> None:
        """Set a control and wait for the curves that follow 150 ms later."""
        self.js(
            "const n = document.getElementById(arguments[0]); n.value = arguments[1];"
            "n.dispatchEvent(new Event('input', {bubbles: true}))",
            name,
            value,
        )
        time.sleep(0.3)

    def click(self, selector: str) -> None:
        self.js("document.querySelector(arguments[0]).click()", selector)
        time.sleep(0.3)

    @property
    def rows(self) -> list[str]:
        return self.js("return [...document.querySelectorAll('#rows th .label')].map((n) => n.textContent)")

    @property
    def curves(self) -> list[dict]:
        """The lines drawn, without bands."""
        code = "return JSON.stringify((document.getElementById('curves').data || []).filter((t) => t.meta))"
        return json.loads(self.js(code))

    def text(self, name: str) -> str:
        return self.js("return document.getElementById(arguments[0]).textContent", name)

    def complaints(self) -> list:
        return self.driver.get_log("browser")

    def asked(self) -> set[str]:
        """Addresses that the page asked for, without those that hold their own content and the browser's own."""
        events = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        sent = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
        return {url for url in sent if not url.startswith(("data:", "blob:", "about:", "chrome"))}


@pytest.fixture
def reader(few, page, chromium):
    return Reader(chromium, page().file.as_uri())


def test_the_whole_page(reader, page):
    """One visit, since opening takes seconds: what is shown, filters, sorting, axes, selection, a run, the theme."""
    assert reader.text("count") == "6 settings, 11 runs"
    assert len(reader.curves) == 6 and "6 curves" in reader.text("curves-note")
    assert reader.js("return document.querySelectorAll('#rows td.best').length") == 2, "one a panel"

    # the figures of a curve are those of metrics.csv
    line = next(t for t in reader.curves if t["name"] == "FedAvg" and t["xaxis"] == "x2")
    assert line["x"] == [0, 1, 2] or line["x"] == [1, 2]
    assert line["y"][-1] == pytest.approx((0.5 + 0.1 + 0.5 + 0.1 + 0.02) / 2 - 0.1, abs=1e-6)  # test/acc is 0.1 less
    line = next(t for t in reader.curves if t["name"] == "FedPM" and t["xaxis"] == "x")
    assert line["y"] == pytest.approx([(0.51 + 0.52 + 0.5) / 3 - 0.1, (0.71 + 0.73 + 0.75) / 3 - 0.1], abs=1e-6)
    bands = json.loads(reader.js("return JSON.stringify(document.getElementById('curves').data.filter((t) => t.band))"))
    band = next(t for t in bands if t["band"] == line["meta"])
    assert band["y"][1] - line["y"][1] == pytest.approx(0.02, abs=1e-6), "the sample standard deviation of 3 seeds"
    reader.click("[name=axis][value=megabytes]")
    assert next(t for t in reader.curves if t["name"] == "FedAvg")["x"][-1] == pytest.approx(2.0)
    reader.click("[name=axis][value=seconds]")
    assert next(t for t in reader.curves if t["name"] == "FedAvg")["x"][-1] == pytest.approx(5.0)

    # filters
    reader.choose("split", "alpha=1")
    assert sorted(reader.rows) == ["FedAvg", "FedPM"] and len(reader.curves) == 2
    assert reader.text("count") == "2 of 6 settings, 4 runs"
    reader.click("#reset")
    reader.choose("status", "diverged")
    assert reader.rows == ["SCAFFOLD"]
    reader.click("#reset")
    reader.choose("text", "fedprox going")
    assert reader.rows == ["FedProx"]
    reader.click("#reset")
    reader.click("#methods input[value=FedPM]")
    assert "FedPM" not in reader.rows and len(reader.rows) == 4
    reader.click("#reset")

    # sorting: the best first, then by name, down and up
    assert reader.rows[0] == "FedPM"
    assert reader.js("return document.querySelector('[data-sort=figure]').closest('th').ariaSort") == "descending"
    reader.click("[data-sort=label]")
    assert reader.rows == sorted(reader.rows)
    reader.click("[data-sort=label]")
    assert reader.rows == sorted(reader.rows, reverse=True)
    assert reader.js("return document.activeElement.dataset.sort") == "label", "the focus stays"
    reader.click("[data-sort=figure]")

    # another metric; its unit; the other moment
    reader.choose("metric", "train/loss")
    assert reader.text("caption").startswith("train/loss at the final round")
    reader.choose("metric", "test/acc")
    reader.click("[name=at][value=best]")
    assert "at the best round" in reader.text("caption")

    # selected rows are what is drawn
    reader.click("#rows tr input")
    assert len(reader.curves) == 1 and reader.text("count").endswith("1 selected")
    reader.click("#rows tr input")
    assert len(reader.curves) == 6

    # the page of a run, and back with the focus on the table
    run = page().run("FedPM-0.1-0")["id"]
    reader.click(f"a[href='#run={run}']")
    reader.until("return document.querySelectorAll('#run .js-plotly-plot').length > 3")
    kinds = reader.js("return [...document.querySelectorAll('#run h3')].map((n) => n.textContent)")
    assert kinds == [
        "Accuracy",
        "Loss",
        "Diagnostics: drift (cosine)",
        "Diagnostics: drift/norm",
        "Cost: comm",
        "Cost: time",
    ]
    assert reader.js("return document.activeElement.id") == "run-heading"
    heat = json.loads(reader.js("return JSON.stringify(document.getElementById('partition-plot').data[0].customdata)"))
    assert heat == [[2, 0], [0, 2]]
    assert "0.500" in reader.text("run") and "data.name" in reader.text("run")
    reader.click("#theme")
    dark = reader.js("return [document.documentElement.dataset.theme, getComputedStyle(document.body).backgroundColor]")
    assert dark == ["dark", "rgb(18, 20, 26)"] and reader.text("theme") == "Light"
    reader.click("#back")
    reader.until("return document.activeElement.id === 'settings-heading'")
    assert len(reader.curves) == 6
    reader.click("#theme")

    assert reader.complaints() == []
    assert reader.asked() == {reader.driver.current_url.split("#")[0]}, "nothing but the file itself"


def test_names_and_landmarks(reader):
    """What a screen reader needs: every control has a name, the table its headers, the page its landmarks."""
    nameless = """return [...document.querySelectorAll('input, select, button, a')].filter((n) => n.offsetParent
        && !(n.labels && n.labels.length) && !n.ariaLabel && !n.textContent.trim()).map((n) => n.outerHTML)"""
    assert reader.js(nameless) == []
    assert reader.js("return [...document.querySelectorAll('main')].filter((n) => !n.hidden).length") == 1
    assert reader.js("return document.querySelectorAll('#heads th:not([scope=col])').length") == 0
    assert reader.js("return document.querySelectorAll('#rows tr').length") == 6
    assert reader.js("return document.querySelectorAll('#rows th[scope=row]').length") == 6
    ids = reader.js("return [...document.querySelectorAll('[id]')].map((n) => n.id)")
    assert len(ids) == len(set(ids))
    # the keyboard: / goes to the search, Tab reaches the first filter after the skip link and the theme
    from selenium.webdriver.common.keys import Keys

    body = reader.driver.find_element("tag name", "body")
    body.send_keys("/")
    assert reader.js("return document.activeElement.id") == "text"
    reader.driver.switch_to.active_element.send_keys(Keys.TAB)
    assert reader.js("return document.activeElement.id") == "data"
    assert reader.js("return getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_figures_of_one_unit_share_a_plot_and_are_explained(tmp_path, write_run, page, chromium):
    folder = write_run(tmp_path / "runs" / "a", acc=[0.5])
    keys = ("precond/drift", "precond/drift/0", "precond/condition", "drift/norm_mean", "drift/cosine", "opt/gap")
    keys += ("clients_acc/mean", "clients_acc/std", "time/local_s", "time/local_share", "opt/distance", "my/probe")
    lines = (folder / "metrics.csv").read_text().splitlines()
    numbers = (0.5, 0.6, 1e6, 30, -0.1, 1e-3, 0.8, 0.1, 2, 0.7, 0.1, 7)
    (folder / "metrics.csv").write_text(f"{lines[0]},{','.join(keys)}\n{lines[1]},{','.join(map(str, numbers))}\n")
    reader = Reader(chromium, page().file.as_uri())
    reader.click(".seeds a")
    reader.until("return document.querySelectorAll('#run .js-plotly-plot').length > 6")
    plots = reader.js("""return [...document.querySelectorAll('#run .small')].map((n) => [
        n.parentNode.querySelector('h3').textContent, n.data.map((t) => t.name), n.layout.yaxis.title?.text ?? ''])""")
    assert plots == [
        ["Accuracy", ["test/acc", "val/acc"], ""],
        ["Loss", ["test/loss", "train/loss"], "loss"],
        ["Optimum (distance)", ["opt/distance"], "distance"],
        ["Optimum (loss gap)", ["opt/gap"], "loss gap"],
        ["Diagnostics: clients_acc", ["clients_acc/mean", "clients_acc/std"], "share of 1"],
        ["Diagnostics: drift (cosine)", ["drift/cosine"], "cosine"],
        ["Diagnostics: drift (distance)", ["drift/norm_mean"], "distance"],
        ["Diagnostics: my", ["my/probe"], ""],
        ["Diagnostics: precond (condition)", ["precond/condition"], "condition"],
        ["Diagnostics: precond (relative distance)", ["precond/drift", "precond/drift/0"], "relative distance"],
        ["Cost: comm", ["comm/up_bytes"], "MB"],
        ["Cost: time (s)", ["time/local_s", "time/total_s"], "s"],
        ["Cost: time (share of 1)", ["time/local_share"], "share of 1"],
    ]
    said = reader.js("return [...document.querySelectorAll('.about li')].map((n) => n.textContent)")
    assert (
        "drift/cosine Mean cosine of clients' updates: 1: clients agree; below 0: they work against each other." in said
    )
    assert not [line for line in said if line.startswith(("my/probe", "precond/drift/0"))]
    sent = reader.js("return [...document.querySelectorAll('#run .small')].at(-3).data[0].y")
    assert sent == [1.0], "1,000,000 bytes"
    assert reader.complaints() == []


@pytest.mark.parametrize("width", [390, 768, 1400])
def test_nothing_is_cut_and_the_page_does_not_pan(tmp_path, write_run, page, chromium, width):
    for ema in (0, 0.5, 0.9, 0.99):
        method = {"ema": ema, "cov_every": int(10 * ema), "inv_every": int(10 * ema), "max_rows": None}
        for seed in range(6):
            write_run(tmp_path / "runs" / f"{ema}-{seed}", "FedPM with a long label", seed, method=method)
    reader = Reader(chromium, page().file.as_uri())
    metrics = {"width": width, "height": 1200, "deviceScaleFactor": 1, "mobile": False}
    chromium.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        reader.until(f"return innerWidth === {width}")
        time.sleep(0.4)
        assert reader.js("return document.documentElement.scrollWidth") <= width
        outside = """const box = document.querySelector('.scroll').getBoundingClientRect();
            return [...document.querySelectorAll('#rows .label, #rows .badge')].filter((n) =>
              n.getBoundingClientRect().right > box.right || n.clientWidth && n.scrollWidth > n.clientWidth + 1
            ).map((n) => n.textContent)"""
        assert reader.js(outside) == []
        caption = reader.js("return document.getElementById('caption').getBoundingClientRect().toJSON()")
        assert caption["right"] <= width and caption["width"] > 0.8 * min(width, 1400) - 40
    finally:
        chromium.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_what_the_command_line_calls_it_is_found(tmp_path, write_run, page, chromium):
    write_run(tmp_path / "runs" / "a", "FedPM", method={"lr": 0.1})
    write_run(tmp_path / "runs" / "b", "FedAvg", method={"lr": 0.25})
    reader = Reader(chromium, page().file.as_uri())
    asked = (
        "--model.method.lr 0.25",
        "--model.method.lr=0.25",
        "model.method.lr=0.25",
        "model.method.init_args.lr=0.25",
    )
    for text in (*asked, "--model.method.lr 0.25 --model.local_epochs 5", "FedAvg --model.method.lr 0.25"):
        reader.choose("text", text)
        assert reader.rows == ["FedAvg"], text
    for text in ("--model.method.lr 0.1 --model.local_epochs 4", "--model.method FedProx"):
        reader.choose("text", text)
        assert reader.rows == [], text
    reader.choose("text", "")
    reader.click(".seeds a")
    reader.choose("config-text", "--model.method.lr")
    assert reader.js("return document.querySelector('.config tbody').textContent") in (
        "model.method.init_args.lr0.1",
        "model.method.init_args.lr0.25",
    )


def test_a_running_run_shows_its_figures_and_nothing_is_best_of_other_rounds(tmp_path, write_run, page, chromium):
    runs = tmp_path / "runs"
    write_run(runs / "a", "FedAvg", acc=[0.5, 0.6], rounds=2)
    write_run(runs / "b", "FedPM", acc=[0.5, 0.7], rounds=2)
    write_run(runs / "c", "FedProx", acc=[0.5] * 9 + [0.99], rounds=10)
    write_run(runs / "d", "SCAFFOLD", acc=[0.8], rounds=10, finished=False)
    reader = Reader(chromium, page().file.as_uri())

    def shown():
        code = """return [...document.querySelectorAll('#rows tr')].map(({ cells }) => [
            cells[1].querySelector('.label').textContent, cells[4].firstChild.textContent,
            cells[4].classList.contains('best'), cells[6].textContent])"""
        return {label: tuple(rest) for label, *rest in reader.js(code)}

    assert shown() == {
        "FedProx": ("89.00", True, "10"),
        "FedPM": ("60.00", True, "2"),
        "FedAvg": ("50.00", False, "2"),
        "SCAFFOLD": ("70.00 so far", False, "1 of 10"),
    }
    assert "with as many rounds" in reader.text("caption")
    reader.choose("metric", "comm/up_bytes")
    assert shown()["SCAFFOLD"][0] == "1 so far" and "in MB" in reader.text("caption")
    assert reader.js("return document.getElementById('curves').layout.yaxis.title.text") == "comm/up_bytes (MB)"
    assert next(line for line in reader.curves if line["name"] == "FedPM")["y"] == [1, 2]


def test_pictures_of_a_partition(tmp_path, write_run, page, chromium):
    for name, (clients, classes) in {"few": (3, 2), "many": (3, 40)}.items():
        folder = write_run(tmp_path / "runs" / name, name)
        histogram = [[4 if c == k else 2 * (k == 2 and c < 2) for c in range(classes)] for k in range(clients)]
        found = {"partition": {"kind": "IID"}, "sizes": [sum(h) for h in histogram], "histogram": histogram}
        (folder / "partition.json").write_text(json.dumps(found))
    written = page()
    reader = Reader(chromium, written.file.as_uri())

    def open_run(name):
        reader.js("location.hash = '#run=' + arguments[0]", written.run(name)["id"])
        reader.until("return document.querySelector('#partition-plot.js-plotly-plot')")
        return reader.js("return document.querySelector('[name=picture]:checked').value")

    def traces(kind):
        reader.click(f"[name=picture][value={kind}]")
        code = "return JSON.stringify(document.getElementById('partition-plot').data.map((t) => [t.type, t.y ?? t.x]))"
        return json.loads(reader.js(code))

    assert open_run("few") == "heatmap"
    scale = reader.js("return document.getElementById('partition-plot').data[0].colorscale[0][1]")
    assert scale == "#ffffff", "no share is the colour of the card"
    assert traces("bars") == [["bar", [4, 0, 2]], ["bar", [0, 4, 2]]]
    kinds, values = zip(*traces("distributions"), strict=True)
    assert kinds == ("histogram",) * 3
    assert values == ([4, 4, 4], pytest.approx([1, 1, 2]), pytest.approx([0.5, 0.5, 0]))
    reader.click("#back")
    assert open_run("many") == "distributions"
    assert reader.complaints() == []


def test_text_from_runs_is_only_text(tmp_path, write_run, page, chromium):
    evil = "</script><img src=x onerror=\"document.title='owned'\"><b>x</b>"
    write_run(tmp_path / "runs" / "evil", label=evil, data=evil, error=evil)
    reader = Reader(chromium, page().file.as_uri())
    reader.click(".seeds a")
    reader.until("return document.getElementById('run-heading')")
    assert evil in reader.text("run") and reader.driver.title.startswith("Runs in")
    assert reader.js("return document.querySelectorAll('img[src=x]').length") == 0
    assert reader.complaints() == []


def test_a_running_run_moves(few, chromium):
    live = Live([str(few)], 0.3)
    server = make_server(live, "127.0.0.1", 0)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        address = f"http://127.0.0.1:{server.server_port}/"
        reader = Reader(chromium, address)
        reader.choose("metric", "val/acc")
        reader.choose("text", "fedprox")
        assert [t["y"][-1] for t in reader.curves] == [pytest.approx(0.4)]
        table = MetricsCsv(few / "going" / "metrics.csv")
        table.write({**table.begin(1)[0], "round": 2.0, "val/acc": 0.6})
        reader.until("return document.getElementById('curves').data[0].y.at(-1) > 0.59")
        assert reader.rows == ["FedProx"], "the filter stays"
        reader.js("document.querySelector('#rows .seeds a').focus()")
        table.write({"round": 3.0, "val/acc": 0.7})
        reader.until("return document.getElementById('curves').data[0].y.at(-1) > 0.69")
        assert reader.js("return document.activeElement.matches('#rows .seeds a')"), "the focus stays"
        reader.click("#rows .seeds a")
        reader.until("return document.querySelectorAll('#run-plots .js-plotly-plot').length")
        reader.js("const n = document.getElementById('config-text'); n.value = 'lr'; n.focus()")
        table.write({"round": 4.0, "val/acc": 0.8})
        reader.until("return document.getElementById('run-facts').textContent.includes('80.00 %')")
        assert reader.js("return document.activeElement.id + document.activeElement.value") == "config-textlr"
        assert reader.text("live-text").startswith("live")
        assert reader.asked() == {address, f"{address}data.json"} and reader.complaints() == []
        reader.driver.get("about:blank")
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.slow
def test_a_thousand_runs_are_painted_within_two_seconds(tmp_path, chromium, record_property):
    file = tmp_path / "many.html"
    file.write_text(build_page(collect(make_runs(tmp_path / "runs", 1000)), "a thousand runs"), encoding="utf-8")
    assert file.stat().st_size < 15e6
    reader = Reader(chromium, file.as_uri())
    times = reader.js(
        "return Object.fromEntries([...performance.getEntriesByType('paint'), ...performance.getEntriesByType('mark')]"
        ".map((entry) => [entry.name, entry.startTime]))"
    )
    print(f"{file.stat().st_size / 1e6:.1f} MB, milliseconds: {times}")
    record_property("milliseconds", times)
    assert reader.text("count") == "334 settings, 1,000 runs" and len(reader.rows) == 334
    assert times["first-contentful-paint"] < 2000 and times["table"] < 2000
    assert reader.complaints() == []
