"""The diagrams of the pages, as SVG from numbers and words: `python docs/_build/diagrams.py` writes docs/figures/*.svg."""

from __future__ import annotations

import math
from pathlib import Path

FIGURES = Path(__file__).resolve().parents[1] / "figures"
STYLE = """<style>
text { font: 14px system-ui, sans-serif; fill: #222; text-anchor: middle } .small { font-size: 12px; fill: #555 }
.box { fill: #eef3fb; stroke: #0072B2; stroke-width: 1.5 } .data { fill: #fdf3e1; stroke: #E69F00; stroke-width: 1.5 }
.line { fill: none; stroke: #555; stroke-width: 1.5 } .a { stroke: #0072B2; fill: none } .b { stroke: #D55E00; fill: none }
@media (prefers-color-scheme: dark) { text { fill: #eee } .small { fill: #bbb } .box { fill: #1d2a3a } .data { fill: #3a2f1a }
.line { stroke: #bbb } }
</style>
<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">
<path d="M0 0L8 4L0 8z" fill="#888"/></marker></defs>"""


def svg(width: int, height: int, title: str, parts: list[str]) -> str:
    """Return a picture."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="{title}">'
    return "\n".join([head, f"<title>{title}</title>", STYLE, *parts, "</svg>\n"])


def box(x: int, y: int, width: int, lines: list[str], kind: str = "box") -> str:
    """Return a box with lines of text; the first one is its name."""
    height = 20 + 18 * len(lines)
    style = ["", *[' class="small"'] * len(lines)]
    text = [f'<text x="{x + width // 2}" y="{y + 24 + 18 * i}"{style[i]}>{line}</text>' for i, line in enumerate(lines)]
    return f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="6"/>' + "".join(text)


def arrow(x1: int, y1: int, x2: int, y2: int, label: str = "", shift: int = 0) -> str:
    """Return an arrow with a label beside its middle."""
    text = f'<text class="small" x="{(x1 + x2) // 2 + shift}" y="{(y1 + y2) // 2 + 4}">{label}</text>' if label else ""
    return f'<line class="line" marker-end="url(#tip)" x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"/>' + text


def round_picture() -> str:
    """Return the picture of one round."""
    parts = [box(220, 10, 280, ["server: theta", "the method's state, the server optimizer"])]
    for i, x in enumerate((20, 270, 520)):
        name = ("client 1", "client 2", "client |S|")[i]
        parts += [box(x, 160, 180, [name, "theta_i = theta", "K steps on its own data", "theta_i, P_i"], "data")]
        parts += [arrow(330 + 30 * i - 30, 68, x + 80, 158, "theta" if i == 0 else "", -24)]
        parts += [arrow(x + 100, 252, 330 + 30 * i - 20, 318, "theta_i, P_i" if i == 0 else "", -44)]
    parts += [box(175, 320, 370, ["aggregation", "sum w_i P_i and sum w_i P_i theta_i, as updates arrive"])]
    parts += [
        '<path class="line" marker-end="url(#tip)" d="M545 350 H715 V40 H502"/>',
        '<text class="small" x="655" y="372">server step, evaluation</text>',
    ]
    return svg(740, 390, "One round", parts)


def mixing_picture() -> str:
    """Return the picture of two quadratic losses, their mean and their preconditioned mean."""
    H, minima = ((10.0, 1.0), (1.0, 10.0)), ((-1.0, 1.0), (1.0, -1.0))
    mixed = [sum(h[k] * m[k] for h, m in zip(H, minima, strict=True)) / sum(h[k] for h in H) for k in (0, 1)]

    def at(point: tuple[float, ...] | list[float]) -> tuple[float, float]:
        return 220 + 90 * point[0], 230 - 90 * point[1]

    parts: list[str] = []
    for name, h, m in zip("ab", H, minima, strict=True):
        x, y = at(m)
        for level in (0.1, 0.4, 0.9):
            rx, ry = (90 * math.sqrt(2 * level / k) for k in h)
            parts.append(f'<ellipse class="{name}" cx="{x:.1f}" cy="{y:.1f}" rx="{rx:.1f}" ry="{ry:.1f}"/>')
        parts.append(f'<circle class="{name}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>')
    mean, best = at((0.0, 0.0)), at(mixed)
    parts += [
        f'<circle cx="{mean[0]}" cy="{mean[1]}" r="6" fill="#999"/><text x="{mean[0] + 60}" y="{mean[1] + 5}">mean</text>',
        f'<rect x="{best[0] - 6:.1f}" y="{best[1] - 6:.1f}" width="12" height="12" fill="#009E73"/>',
        f'<text x="{best[0] - 10:.1f}" y="{best[1] + 28:.1f}">preconditioned mean</text>',
    ]
    return svg(440, 460, "Mean and preconditioned mean of two clients", parts)


if __name__ == "__main__":
    (FIGURES / "round.svg").write_text(round_picture())
    (FIGURES / "mixing.svg").write_text(mixing_picture())
