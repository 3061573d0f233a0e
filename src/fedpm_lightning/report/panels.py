"""The panels of a comparison on a W&B page, as data: which metric, against what, under which heading.

Nothing here knows W&B's library; `wandb_report` turns the sections into its objects.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from fedpm_lightning.report.looks import AXIS_NAMES, plain_name
from fedpm_lightning.report.moment import COLUMN_OF, Axis

AXES: tuple[Axis, ...] = tuple(COLUMN_OF)
_AGAINST: dict[Axis, str] = {"rounds": "rounds", "megabytes": "megabytes sent up", "seconds": "seconds"}
_LOGARITHMIC = ("opt/", "precond/condition")  # these fall or rise by orders of magnitude
_NAMES = {
    "opt/gap": "Gap f(θ) - f(θ*)",
    "opt/distance": "Distance to the optimum ‖θ - θ*‖",
    "opt/grad_norm": "Gradient norm ‖∇f(θ)‖",
    "drift/norm_mean": "Client drift, mean ‖θ_i - θ‖",
    "drift/norm_max": "Client drift, largest ‖θ_i - θ‖",
    "drift/direction_mean": "Length of what clients send, mean",
    "drift/cosine": "Mean cosine between clients' updates",
    "precond/drift": "Preconditioner drift",
    "precond/condition": "Condition number of the mixed preconditioner",
    "damping/raised": "Factorisations that needed more damping",
    "damping/delta_max": "Greatest damping used",
    "clients_acc/mean": "Accuracy by client, mean",
    "clients_acc/worst_tenth": "Accuracy of the worst tenth of the clients",
    "clients_acc/std": "Accuracy by client, standard deviation",
    "time/local_share": "Share of time in local steps",
    "time/factors_share": "Share of time in factors",
    "time/mixing_share": "Share of time in mixing",
    "time/eval_share": "Share of time in evaluation",
    "partition/tv_mean": "Total variation of a client's labels from all, mean",
    "partition/js_mean": "Jensen-Shannon distance of a client's labels from all, mean",
    "partition/effective_classes_mean": "Effective classes a client, mean",
    "partition/size_gini": "Gini coefficient of the clients' sizes",
}


class Curve(NamedTuple):
    """A metric against an axis: a line a setting, the mean over seeds with a band of one standard deviation."""

    metric: str
    axis: Axis

    @property
    def title(self) -> str:
        """The panel's heading."""
        return f"{name_of(self.metric)} against {_AGAINST[self.axis]}"

    @property
    def x_title(self) -> str:
        """The axis with its unit."""
        return AXIS_NAMES[self.axis]

    @property
    def log_y(self) -> bool:
        """Whether the metric is drawn on a logarithmic axis."""
        return self.metric.startswith(_LOGARITHMIC)


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
        return name_of(self.metric) + when.get(self.key.split("/")[0], "")


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
    Section("Heterogeneity", tuple(Bar(key) for key in _NAMES if key.startswith("partition/"))),
    Section(
        "Diagnostics",
        _curves([key for key in _NAMES if not key.startswith(("opt/", "partition/"))], ("rounds",)),
    ),
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


def name_of(metric: str) -> str:
    """Return a metric's name in words; W&B shows accuracies as shares of 1 and no LaTeX."""
    return _NAMES.get(metric) or plain_name(metric)
