"""Puts the page together: one HTML file that holds its style, its scripts, its data and the plotting library."""

from __future__ import annotations

import html
import json
from datetime import datetime
from importlib.resources import files

from fedpm_lightning.report.dashboard.collect import PageData
from fedpm_lightning.report.dashboard.run_entry import packed

SCRIPTS = ("data.js", "state.js", "format.js", "table.js", "charts.js", "curves.js", "partition.js", "run.js", "app.js")
_ASSETS = files("fedpm_lightning.report.dashboard") / "assets"


def build_page(data: PageData, title: str, refresh_s: float | None = None) -> str:
    """Return the page.

    Args:
        data: What it shows.
        title: Its heading.
        refresh_s: Seconds between two looks at `data.json`; None for a file that stands alone.

    Raises:
        RuntimeError: If plotly is not installed.
    """
    made = datetime.now().astimezone().isoformat(timespec="seconds")
    parts = {
        "title": html.escape(title),
        "connect": "'none'" if refresh_s is None else "'self'",
        "style": asset("style.css"),
        "manifest": script_json({**data.manifest, "title": title, "made": made, "refresh_s": refresh_s}),
        "scripts": "\n".join(asset(name) for name in SCRIPTS),
        "arrays": data.arrays,
        "plotly": packed(plotly_js().encode()),
    }
    page = asset("page.html")
    # From the end, so that what is filled in is never searched for further places.
    places = sorted(((page.index("{{" + name + "}}"), name) for name in parts if name != "title"), reverse=True)
    for place, name in places:
        page = page[:place] + parts[name] + page[place + len(name) + 4 :]
    head, rest = page.split("</head>", 1)
    return head.replace("{{title}}", parts["title"], 1) + "</head>" + rest


def asset(name: str) -> str:
    """Read one of the page's files."""
    return (_ASSETS / name).read_text(encoding="utf-8")


def script_json(value: object) -> str:
    """Write JSON that may stand in a script element: no text of a run folder can end it or open a comment."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def plotly_js() -> str:
    """Return plotly's script.

    Raises:
        RuntimeError: If plotly is not installed.
    """
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise RuntimeError("the dashboard needs plotly: pip install 'fedpm-lightning[dashboard]'") from None
    return get_plotlyjs()
