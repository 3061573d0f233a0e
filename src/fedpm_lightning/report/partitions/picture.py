"""The picture of a partition: a heat map and bubbles of client x class, with the clients' sizes above."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedpm_lightning.report.partitions.heterogeneity import client_heterogeneity, heterogeneity_of
from fedpm_lightning.report.plots.style import STYLE
from fedpm_lightning.report.records import Partition

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Counts: TypeAlias = NDArray[np.float64]
Kind: TypeAlias = Literal["heatmap", "bubbles", "bars", "distributions"]
_MOST_CLIENTS, _MOST_CLASSES, _MOST_COLOURS = 100, 30, 20  # above these no client or class can be made out
_BLUE = "#0072B2"


def kinds_for(partition: Partition) -> tuple[Kind, ...]:
    """Return the kinds of picture that can be read, the best first; none where the data have no classes to count.

    Each client and class is shown where there are few of them, else how the clients are distributed.
    """
    if not has_histogram(partition):
        return ()
    histogram = partition.get("histogram", [])
    clients, classes = len(histogram), len(histogram[0])
    if clients > _MOST_CLIENTS or classes > _MOST_CLASSES:
        return ("distributions",)
    return ("heatmap", "bubbles", "bars") if classes <= _MOST_COLOURS else ("heatmap", "bubbles")


def draw_partition(partition: Partition, title: str, folder: Path) -> list[Path]:
    """Write `partition-KIND` as PDF and PNG for each kind of picture that can be read.

    Args:
        partition: What partition.json holds.
        title: The figure's title.
        folder: Made if need be.

    Returns:
        The files; none where the data have no classes to count.

    Raises:
        RuntimeError: If matplotlib is not installed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files: list[Path] = []
    for kind in kinds_for(partition):
        figure = partition_figure(partition, title, kind)
        for suffix in (".pdf", ".png"):
            files.append(folder / f"partition-{kind}{suffix}")
            save_picture(figure, files[-1])
    return files


def save_picture(figure: Figure, file: Path) -> None:
    """Write a figure; letters stay letters in a PDF (no Type 3 fonts), and the same split gives the same file."""
    from matplotlib import rc_context

    with rc_context({"pdf.fonttype": STYLE["pdf.fonttype"]}):
        figure.savefig(file, dpi=160, metadata={"CreationDate": None} if file.suffix == ".pdf" else None)


def partition_title(data: str, partition: Partition) -> str:
    """Write `digits, Dirichlet(alpha=0.1), seed 0`; arguments that are null are left out."""
    spec = partition.get("partition") or {}
    arguments = ", ".join(f"{key}={value}" for key, value in spec.get("arguments", {}).items() if value is not None)
    return f"{data}, {spec.get('kind', 'partition')}({arguments}), seed {partition.get('seed')}"


def has_histogram(partition: Partition) -> bool:
    """Tell whether there is anything to draw."""
    histogram = partition.get("histogram") or []
    return bool(histogram and histogram[0])


def partition_figure(partition: Partition, title: str, kind: Kind) -> Figure:
    """Return a matplotlib figure of one kind.

    heatmap: client x class, the colour the share of the client, with the clients' sizes in bars above. bubbles: the
    same with the number of samples as the area. bars: a bar a client, its classes stacked. distributions: how many
    clients have which size, how many effective classes, and which distance from the pooled labels.

    Raises:
        RuntimeError: If matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure  # without pyplot: no window system, nothing to close
    except ImportError:
        raise RuntimeError("plots need matplotlib: pip install 'fedpm-lightning[plots]'") from None
    counts = np.asarray(partition.get("histogram", []), dtype=np.float64)
    sizes = partition.get("sizes", [])
    clients, classes = counts.shape
    size = (min(14.0, 3.4 + 0.16 * max(clients, 20)), min(10.0, 2.9 + 0.16 * max(classes, 10)))
    size = (8.0, 3.0) if kind == "distributions" else size
    figure = Figure(figsize=size)
    # Margins in inches: matplotlib's own layouts draw everything several times, and every run draws this once.
    left, right, low, high = 0.7 / size[0], 1 - 0.9 / size[0], 0.75 / size[1], 1 - 0.35 / size[1]
    figure.subplots_adjust(left, low, right, high, hspace=0.9 / size[1], wspace=0.3)
    if kind == "distributions":
        _distributions(figure, counts, sizes, title)
    elif kind == "bars":
        _bars(figure, counts, title)
    else:
        above, panel = figure.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": [1, size[1] - 2.1]})
        above.bar(range(clients), sizes, width=0.8, color="#56B4E9")
        above.set(ylabel="samples", title=title)
        above.spines[["top", "right"]].set_visible(False)
        (_heatmap if kind == "heatmap" else _bubbles)(figure, panel, counts)
        panel.set(xlabel="client", ylabel="class", xlim=(-0.6, clients - 0.4))
        panel.set_yticks(range(0, classes, max(1, -(-classes // 20))))
        if clients <= 20:
            panel.set_xticks(range(clients))
    figure.text(0.5, 0.1 / size[1], _caption(partition), fontsize=7.5, color="#555555", ha="center")
    return figure


def _heatmap(figure: Figure, panel: Axes, counts: Counts) -> None:
    """Colour by the share of the client's samples, so that small clients show their skew as well; no share is white."""
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    image = panel.imshow(shares.T, aspect="auto", origin="lower", cmap="Blues", vmin=0)
    panel.set_xticks(np.arange(len(counts) - 1) + 0.5, minor=True)
    panel.set_yticks(np.arange(counts.shape[1] - 1) + 0.5, minor=True)
    panel.grid(which="minor", color="#DDDDDD", linewidth=0.4)
    panel.tick_params(which="minor", length=0)
    box = panel.get_position()
    bar = figure.add_axes((box.x1 + 0.1 / figure.get_figwidth(), box.y0, 0.12 / figure.get_figwidth(), box.height))
    figure.colorbar(image, cax=bar, label="share of the client")


def _bubbles(figure: Figure, panel: Axes, counts: Counts) -> None:
    """Make a bubble's area the number of samples."""
    clients, classes = np.nonzero(counts)
    held = counts[clients, classes]
    widest = min(220.0, 9000.0 / len(counts))
    panel.scatter(clients, classes, s=widest * held / held.max(initial=1), color=_BLUE, alpha=0.75, linewidths=0)
    panel.set_ylim(-0.8, counts.shape[1] - 0.2)
    panel.grid(alpha=0.2)
    panel.set_title(f"area: samples of the class, the largest {held.max(initial=0):.0f}", fontsize=8, loc="right")


def _bars(figure: Figure, counts: Counts, title: str) -> None:
    """Stack each client's classes, one on the other."""
    panel, clients = figure.subplots(), range(len(counts))
    from matplotlib import colormaps

    colours = colormaps["tab10" if counts.shape[1] <= 10 else "tab20"]
    below = np.zeros(len(counts))
    for c, held in enumerate(counts.T):
        panel.bar(clients, held, bottom=below, width=0.85, color=colours(c), label=str(c))
        below += held
    panel.set(xlabel="client", ylabel="samples", title=title, xlim=(-0.6, len(counts) - 0.4))
    panel.spines[["top", "right"]].set_visible(False)
    if len(counts) <= 20:
        panel.set_xticks(clients)
    panel.legend(title="class", loc="center left", bbox_to_anchor=(1, 0.5), frameon=False, fontsize=7, reverse=True)


def _distributions(figure: Figure, counts: Counts, sizes: Sequence[int], title: str) -> None:
    """Show how many clients have which size, effective number of classes and distance from the pooled labels."""
    classes, distance = client_heterogeneity(counts)
    shown = {
        "samples": sizes,
        f"effective classes of {counts.shape[1]}": classes,
        "total variation to pooled": distance,
    }
    panels = figure.subplots(1, 3, sharey=True)
    for panel, (name, values) in zip(panels, shown.items(), strict=True):
        within = (0, 1) if values is distance else None
        panel.hist(values, bins=min(30, max(5, len(counts) // 5)), range=within, color=_BLUE)
        panel.set(xlabel=name)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set(ylabel="clients")
    panels[1].set(title=title)
    panels[2].set(xlim=(0, 1))


def _caption(partition: Partition) -> str:
    found = heterogeneity_of(partition)
    return (
        f"TV to pooled {found['tv_mean']:.3f}, JS distance {found['js_mean']:.3f} (base 2), effective classes "
        f"{found['effective_classes_mean']:.2f} (means over clients); Gini of sizes {found['size_gini']:.3f}"
        if "tv_mean" in found
        else f"Gini of sizes {found['size_gini']:.3f}"
    )
