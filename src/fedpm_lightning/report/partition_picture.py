"""The picture of a partition: a heat map and bubbles of client x class, with the clients' sizes above."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from fedpm_lightning.report.heterogeneity import heterogeneity_of

Kind: TypeAlias = Literal["heatmap", "bubbles"]
KINDS: tuple[Kind, ...] = ("heatmap", "bubbles")


def draw_partition(partition: dict[str, Any], title: str, folder: Path) -> list[Path]:
    """Write `partition-heatmap` and `partition-bubbles` as PDF and PNG.

    Args:
        partition: What partition.json holds; `histogram` [N][C] must not be empty.
        title: The figure's title.
        folder: Made if need be.

    Returns:
        The files; none where the data have no classes to count.

    Raises:
        RuntimeError: If matplotlib is not installed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files: list[Path] = []
    for kind in KINDS if has_histogram(partition) else ():
        figure = partition_figure(partition, title, kind)
        for suffix in (".pdf", ".png"):
            files.append(folder / f"partition-{kind}{suffix}")
            figure.savefig(files[-1], dpi=160)
    return files


def partition_title(data: str, partition: dict[str, Any]) -> str:
    """Write `digits, Dirichlet(alpha=0.1), seed 0`; arguments that are null are left out."""
    spec = partition.get("partition") or {}
    arguments = ", ".join(f"{key}={value}" for key, value in spec.get("arguments", {}).items() if value is not None)
    return f"{data}, {spec.get('kind', 'partition')}({arguments}), seed {partition.get('seed')}"


def has_histogram(partition: dict[str, Any]) -> bool:
    """Tell whether there is anything to draw."""
    histogram = partition.get("histogram") or []
    return bool(histogram and histogram[0])


def partition_figure(partition: dict[str, Any], title: str, kind: Kind) -> Any:
    """Return a matplotlib figure: clients to the right, classes upwards, sizes in bars above.

    Raises:
        RuntimeError: If matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure  # without pyplot: no window system, nothing to close
    except ImportError:
        raise RuntimeError("plots need matplotlib: pip install 'fedpm-lightning[plots]'") from None
    counts = np.asarray(partition["histogram"], dtype=np.float64)
    clients, classes = counts.shape
    size = (min(14.0, 3.4 + 0.16 * max(clients, 20)), min(10.0, 2.9 + 0.16 * max(classes, 10)))
    figure = Figure(figsize=size)
    # Margins in inches: matplotlib's own layouts draw everything several times, and every run draws this once.
    left, right, low, high = 0.6 / size[0], 1 - 0.9 / size[0], 0.75 / size[1], 1 - 0.35 / size[1]
    figure.subplots_adjust(left, low, right, high, hspace=0.9 / size[1])
    above, panel = figure.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": [1, size[1] - 2.1]})
    if clients <= 200:
        above.bar(range(clients), partition["sizes"], width=0.8, color="#56B4E9")
    else:  # thousands of bars take seconds
        above.fill_between(range(clients), partition["sizes"], step="mid", color="#56B4E9", linewidth=0)
    above.set(ylabel="samples", title=title)
    above.spines[["top", "right"]].set_visible(False)
    (_heatmap if kind == "heatmap" else _bubbles)(figure, panel, counts)
    panel.set(xlabel="client", ylabel="class", xlim=(-0.6, clients - 0.4))
    panel.set_yticks(range(0, classes, max(1, -(-classes // 20))))
    if clients <= 20:
        panel.set_xticks(range(clients))
    figure.text(0.5, 0.1 / size[1], _caption(partition), fontsize=7.5, color="#555555", ha="center")
    return figure


def _heatmap(figure: Any, panel: Any, counts: Any) -> None:
    """Colour by the share of the client's samples, so that small clients show their skew as well."""
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    image = panel.imshow(shares.T, aspect="auto", origin="lower", cmap="cividis", vmin=0)
    box = panel.get_position()
    bar = figure.add_axes((box.x1 + 0.1 / figure.get_figwidth(), box.y0, 0.12 / figure.get_figwidth(), box.height))
    figure.colorbar(image, cax=bar, label="share of the client")


def _bubbles(figure: Any, panel: Any, counts: Any) -> None:
    """Make a bubble's area the number of samples."""
    clients, classes = np.nonzero(counts)
    held = counts[clients, classes]
    widest = min(220.0, 9000.0 / len(counts))
    panel.scatter(clients, classes, s=widest * held / held.max(initial=1), color="#0072B2", alpha=0.75, linewidths=0)
    panel.set_ylim(-0.8, counts.shape[1] - 0.2)
    panel.grid(alpha=0.2)
    panel.set_title(f"area: samples of the class, the largest {held.max(initial=0):.0f}", fontsize=8, loc="right")


def _caption(partition: dict[str, Any]) -> str:
    found = heterogeneity_of(partition)
    return (
        f"TV to pooled {found['tv_mean']:.3f}, JS distance {found['js_mean']:.3f} (base 2), effective classes "
        f"{found['effective_classes_mean']:.2f} (means over clients); Gini of sizes {found['size_gini']:.3f}"
        if "tv_mean" in found
        else f"Gini of sizes {found['size_gini']:.3f}"
    )
