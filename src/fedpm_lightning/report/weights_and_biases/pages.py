"""A comparison as a W&B report or workspace, built with W&B's own library; nothing here speaks to a server.

Runs are grouped by the group that their logger wrote, one for each setting: its seeds become one line with a band.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from typing import Any

from fedpm_lightning.report.plots.style import panel_title, style
from fedpm_lightning.report.tables.statistic import COLUMN_OF, SCALE_OF
from fedpm_lightning.report.weights_and_biases.panels import Bar, Curve, Section, sections_for
from fedpm_lightning.report.weights_and_biases.scope import Scope, tag_filters

TABLE = ("summary:final/test/acc", "summary:best/test/acc", "summary:final/test/loss", "tags:__ALL__")
"""Columns of the table of runs, beside the name of the setting."""

_FINISHED = "SummaryMetric('finished') == True"
_INTRODUCTION = (
    "Every line and bar is one setting: the mean over its seeds, with a band of one standard deviation. Settings that "
    "differ in more than the seed are never averaged. Runs that did not finish are left out. Accuracies are shares of "
    "1."
)
_ACROSS, _WIDE, _HIGH = 3, 8, 6  # W&B's grid is 24 wide


def build_report(project: str, title: str, scope: Scope) -> Any:
    """Build a report: a heading, a run set and the panels for each data set and split.

    Args:
        project: `entity/project`, of the runs and of the report.
        title: The report's heading.
        scope: What is compared; without columns all runs come under one heading.

    Raises:
        RuntimeError: If wandb-workspaces is not installed.
    """
    reports, _ = load_library()
    entity, name = project.split("/")
    blocks: list[Any] = [reports.P(_INTRODUCTION), reports.TableOfContents()]
    columns = {panel_title(column): tags for column, tags in scope.columns.items()} or {"All runs": ()}
    for heading, tags in columns.items():
        blocks.append(reports.H1(heading))
        for section in sections_for(scope.measured):
            run_set = _run_set(reports, f"{heading}: {section.name}", [[tag] for tag in tags])
            blocks += [reports.H2(section.name), _grid(reports, run_set, section, scope)]
    return reports.Report(project=name, entity=entity, title=title, blocks=blocks, width="fluid")


def build_workspace(project: str, title: str, scope: Scope) -> Any:
    """Build a saved view of the project's workspace: the same panels over one run set, unfinished runs with it.

    Args:
        project: `entity/project`.
        title: The view's name.
        scope: What is compared; one run set holds all of it.

    Raises:
        RuntimeError: If wandb-workspaces is not installed.
    """
    reports, workspaces = load_library()
    entity, name = project.split("/")
    sections = [
        workspaces.Section(name=section.name, panels=_panels(reports, section), is_open=number < _ACROSS)
        for number, section in enumerate(sections_for(scope.measured))
    ]
    run_set = workspaces.RunsetSettings(
        filters=_filter(tag_filters(scope)),
        groupby=[workspaces.Metric("Group")],
        group_colors={group: style(method)["color"] for group, method in scope.methods.items()},
        pinned_columns=["run:displayName", *TABLE],
    )
    settings = workspaces.WorkspaceSettings(x_axis="round", max_runs=100)
    return workspaces.Workspace(
        entity=entity, project=name, name=title, sections=sections, runset_settings=run_set, settings=settings
    )


def spec_of(page: Any) -> dict[str, Any]:
    """Return what would be sent to W&B, as JSON values."""
    return page._to_model().model_dump(mode="json", by_alias=True, exclude_none=True)


def load_library() -> tuple[Any, Any]:
    """Return wandb-workspaces' modules of reports and of workspaces.

    Raises:
        RuntimeError: If it is not installed.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # its own use of pydantic
        try:
            import wandb_workspaces.reports.v2 as reports
            import wandb_workspaces.workspaces as workspaces
        except ImportError:
            raise RuntimeError("W&B reports need wandb-workspaces: pip install 'fedpm-lightning[reports]'") from None
    return reports, workspaces


def _run_set(reports: Any, name: str, tags: Sequence[Sequence[str]]) -> Any:
    """Return the finished runs with these tags, grouped by setting.

    It names no project: the report's own is meant, and W&B need not be asked for its number.
    """
    shown = ["run:displayName", *TABLE]
    conditions = _filter(tags, _FINISHED)
    return reports.Runset(name=name, filters=conditions, groupby=["group"], visible_columns=shown, column_order=shown)


def _filter(tags: Sequence[Sequence[str]], *further: str) -> str:
    """Write a filter: one tag of each list, and further conditions."""
    filters = [f"Tags() in [{', '.join(map(_quoted, some))}]" for some in tags]
    return " and ".join([*filters, *further])


def _quoted(tag: str) -> str:
    """Write a tag in quotes, its operators as escapes: the library takes the = in 'alpha=0.1' for one of its own."""
    return "'" + re.sub(r"[=<>!'\\]", lambda found: f"\\x{ord(found[0]):02x}", tag) + "'"


def _grid(reports: Any, run_set: Any, section: Section, scope: Scope) -> Any:
    """Return a section's panels, three in a row, every setting in the colour of its method."""

    def settings_of(group: str) -> Any:
        return reports.RunsetGroup(run_set.name, (reports.RunsetGroupKey(reports.Metric("Group"), group),))

    colours = {settings_of(group): style(method)["color"] for group, method in scope.methods.items()}
    return reports.PanelGrid(runsets=[run_set], panels=_panels(reports, section), custom_run_colors=colours)


def _panels(reports: Any, section: Section) -> list[Any]:
    made: list[Any] = []
    for number, panel in enumerate(section.panels):
        down, right = divmod(number, _ACROSS)
        layout = reports.Layout(x=right * _WIDE, y=down * _HIGH, w=_WIDE, h=_HIGH)
        made.append(_curve(reports, panel, layout) if isinstance(panel, Curve) else _bar(reports, panel, layout))
    return made


def _curve(reports: Any, panel: Curve, layout: Any) -> Any:
    column, scale = COLUMN_OF[panel.axis], SCALE_OF[panel.axis]
    return reports.LinePlot(
        title=panel.title,
        x=column,
        xaxis_expression=None if scale == 1 else f"${{{column}}} / {1 / scale:.0f}",
        y=[panel.metric],
        title_x=panel.x_title,
        log_y=panel.log_y or None,
        groupby_aggfunc="mean",
        groupby_rangefunc="stddev",
        smoothing_type="none",
        max_runs_to_show=100,
        layout=layout,
    )


def _bar(reports: Any, panel: Bar, layout: Any) -> Any:
    return reports.BarPlot(
        title=panel.title,
        metrics=[reports.SummaryMetric(panel.key)],
        groupby_aggfunc="mean",
        groupby_rangefunc="stddev",
        max_bars_to_show=50,
        layout=layout,
    )
