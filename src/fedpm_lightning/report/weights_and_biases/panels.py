"""The panels of a comparison on a W&B page, as data: which metric, against what, under which heading.

Nothing here knows W&B's library; `wandb_report` turns the sections into its objects.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from fedpm_lightning.report.metrics import find_metric
from fedpm_lightning.report.plots.style import AXIS_NAMES
from fedpm_lightning.report.tables.statistic import AXES, Axis

_AGAINST: dict[Axis, str] = {
    "rounds": "rounds", "megabytes": "megabytes sent up", "seconds": "seconds", "simulated": "simulated seconds"
}  # fmt: skip
_DIAGNOSTICS = (
    "drift/norm_mean", "drift/norm_max", "drift/direction_mean", "drift/cosine", "precond/drift", "precond/condition",
    "damping/raised", "damping/delta_max", "clients_acc/mean", "clients_acc/worst_tenth", "clients_acc/std",
    "time/local_share", "time/factors_share", "time/mixing_share", "time/eval_share",
)  # fmt: skip
_HETEROGENEITY = ("tv_mean", "js_mean", "effective_classes_mean", "size_gini")


class Curve(NamedTuple):
    """A metric against an axis: a line a setting, the mean over seeds with a band of one standard deviation."""

    metric: str
    axis: Axis

    @property
    def title(self) -> str:
        """The panel's heading."""
        return f"{find_metric(self.metric).name} against {_AGAINST[self.axis]}"

    @property
    def x_title(self) -> str:
        """The axis with its unit."""
        return AXIS_NAMES[self.axis]

    @property
    def log_y(self) -> bool:
        """Whether the metric is drawn on a logarithmic axis."""
        return find_metric(self.metric).by_magnitude


class Bar(NamedTuple):
    """A figure of a run's summary: a bar a setting, the mean over seeds."""

    key: str

    @property
    def metric(self) -> str:
        """The column that the figure was read from."""
        return self.key.removeprefix("final/").removeprefix("best/")

    @property
    def title(self) -> str:
        """The panel's heading."""
        when = {"final": " at the final round", "best": " at the best round by the run's monitor"}
        return find_metric(self.metric).name + when.get(self.key.split("/")[0], "")


class Section(NamedTuple):
    """Panels under one heading."""

    name: str
    panels: tuple[Curve | Bar, ...]
    always: bool = False
    """Whether every run has these figures, so that they are shown where nobody knows what was measured."""


def _curves(metrics: Sequence[str], axes: Sequence[Axis] = AXES) -> tuple[Curve, ...]:
    return tuple(Curve(metric, axis) for metric in metrics for axis in axes)


SECTIONS: tuple[Section, ...] = (
    Section("Final and best", tuple(map(Bar, ("final/test/acc", "best/test/acc", "final/test/loss"))), always=True),
    Section("Accuracy", _curves(("test/acc", "val/acc")), always=True),
    Section("Loss", _curves(("test/loss", "train/loss")), always=True),
    Section("Optimum", _curves(("opt/gap", "opt/distance", "opt/grad_norm"))),
    Section("Heterogeneity", tuple(Bar(f"partition/{key}") for key in _HETEROGENEITY)),
    Section("Diagnostics", _curves(_DIAGNOSTICS, ("rounds",))),
)
"""Every panel there is, in the order of the page."""


def sections_for(measured: Collection[str] | None) -> list[Section]:
    """Return the sections with the panels that have something to show.

    Args:
        measured: The columns and `partition/...` figures of the runs; None where nobody knows.
    """
    if measured is None:
        return [section for section in SECTIONS if section.always]
    found = [
        section._replace(panels=tuple(panel for panel in section.panels if panel.metric in measured))
        for section in SECTIONS
    ]
    return [section for section in found if section.panels]
