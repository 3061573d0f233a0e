"""What is known of a column of metrics.csv: its name, its unit, which way is better, and what it means.

Everything that shows a figure reads it here: tables, plots, the dashboard, W&B pages. docs/metrics.md has the formulas.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple, TypeAlias

Mode: TypeAlias = Literal["max", "min"]


class Metric(NamedTuple):
    """One column.

    Attributes:
        name: Its name on an axis or as a heading.
        unit: Its unit; empty for a pure number. Figures of one unit may share an axis.
        better: Whether more or less of it is better; None where neither is (a cosine, a count, a diagnostic).
        meaning: A sentence for readers who meet it for the first time; empty where the name says it all.
        by_magnitude: Whether it falls or rises by orders of magnitude, so that an axis is logarithmic from the start.
    """

    name: str
    unit: str = ""
    better: Mode | None = None
    meaning: str = ""
    by_magnitude: bool = False


_LOSS, _SHARE, _SECONDS = "loss", "share of 1", "s"

METRICS: dict[str, Metric] = {
    "round": Metric("Round"),
    "test/acc": Metric("Test accuracy", _SHARE, "max"),
    "val/acc": Metric("Validation accuracy", _SHARE, "max"),
    "test/loss": Metric("Test loss", _LOSS, "min"),
    "val/loss": Metric("Validation loss", _LOSS, "min"),
    "test/perplexity": Metric("Test perplexity", "perplexity", "min", "exp of the loss: 1 is certainty, C a guess."),
    "val/perplexity": Metric("Validation perplexity", "perplexity", "min", "exp of the loss."),
    "train/loss": Metric("Training loss", _LOSS, "min", "As clients saw it while they trained."),
    "opt/gap": Metric("Gap f(θ) - f(θ*)", "loss gap", "min", "Training objective above its optimum.", True),
    "opt/distance": Metric(
        "Distance to the optimum ‖θ - θ*‖", "distance", "min", "Of the parameters, Euclidean.", True
    ),
    "opt/grad_norm": Metric("Gradient norm ‖∇f(θ)‖", "gradient", "min", "0 at the optimum.", True),
    "clients/returned": Metric("Clients that returned", "clients", None, "Clients whose update was aggregated."),
    "clients/dropped": Metric("Clients that were lost", "clients", None, "Sampled clients whose update was not used."),
    "comm/up_bytes": Metric("Sent up by all clients", "bytes", "min", "Sum since round 1, in the form really sent."),
    "comm/down_bytes": Metric("Sent down to all clients", "bytes", "min", "Sum since round 1."),
    "time/round_s": Metric("Time of a round", _SECONDS, "min", "Clients, aggregation and server step."),
    "time/eval_s": Metric("Time of an evaluation", _SECONDS, "min"),
    "time/total_s": Metric("Time since round 1", _SECONDS, "min", "Rounds and evaluations, over resumes."),
    "time/simulated_s": Metric("Simulated time since round 1", _SECONDS, "min", "Over clients' own connections."),
    "time/local_s": Metric("Time in local steps", _SECONDS, "min", "At the clients, without curvature."),
    "time/factors_s": Metric("Time in curvature", _SECONDS, "min", "At the clients: observing, factorising, solving."),
    "time/mixing_s": Metric("Time in mixing", _SECONDS, "min", "At the server: sums, mixing and the server's step."),
    "time/local_share": Metric("Share of time in local steps", _SHARE),
    "time/factors_share": Metric("Share of time in factors", _SHARE),
    "time/mixing_share": Metric("Share of time in mixing", _SHARE),
    "time/eval_share": Metric("Share of time in evaluation", _SHARE),
    "drift/norm_mean": Metric("Client drift, mean ‖θ_i - θ‖", "distance", None, "How far clients move in a round."),
    "drift/norm_max": Metric("Client drift, largest ‖θ_i - θ‖", "distance", None, "The client that moved farthest."),
    "drift/direction_mean": Metric(
        "Length of what clients send, mean", "upload", None, "For methods that upload a gradient or a step."
    ),
    "drift/direction_max": Metric("Length of what clients send, largest", "upload"),
    "drift/cosine": Metric(
        "Mean cosine of clients' updates", "cosine", None, "1: clients agree; below 0: they work against each other."
    ),
    "precond/drift": Metric(
        "Preconditioner drift", "relative distance", None, "How unlike the P_i are; 0: mixing is the weighted mean."
    ),
    "precond/condition": Metric(
        "Condition number of the mixed P", "condition", None, "Largest over smallest eigenvalue of mean P.", True
    ),
    "damping/factorised": Metric("Factorisations", "count", None, "Cholesky factorisations by clients in the round."),
    "damping/raised": Metric(
        "Factorisations that needed more damping", "count", None, "They failed with the damping asked for."
    ),
    "damping/delta_max": Metric("Greatest damping used", "curvature", None, "By any client's factorisation.", True),
    "damping/raised_server": Metric("Layers that the server had to damp", "count", None, "In the mixing solve."),
    "clients_acc/mean": Metric(
        "Accuracy by client, mean", _SHARE, "max", "Of the global model under each client's label mix."
    ),
    "clients_acc/worst_tenth": Metric("Accuracy of the worst tenth of the clients", _SHARE, "max"),
    "clients_acc/min": Metric("Accuracy of the worst client", _SHARE, "max"),
    "clients_acc/std": Metric("Accuracy by client, standard deviation", _SHARE, "min"),
    "personal_acc/mean": Metric(
        "Accuracy of personal models, mean", _SHARE, "max", "Fine-tuned from the global one on a client's own data."
    ),
    "personal_acc/worst_tenth": Metric("Accuracy of personal models, worst tenth", _SHARE, "max"),
    "personal_acc/min": Metric("Accuracy of the worst personal model", _SHARE, "max"),
    "personal_acc/std": Metric("Accuracy of personal models, standard deviation", _SHARE, "min"),
    "personal_acc/gain": Metric("Personal over global model, mean accuracy", _SHARE, "max"),
    "privacy/epsilon": Metric("Privacy loss ε", "epsilon", "min", "Client-level, of all rounds so far."),
    "privacy/delta": Metric("δ of the privacy loss", "probability"),
    "privacy/clipped": Metric("Clients that were clipped", _SHARE, None, "Of those that returned."),
    "privacy/clipped_factors": Metric("Clients whose preconditioners were clipped", _SHARE),
    "diverged": Metric("Diverged", "flag"),
    "partition/tv_mean": Metric("Total variation of a client's labels from all, mean", _SHARE),
    "partition/js_mean": Metric("Jensen-Shannon distance of a client's labels from all, mean", _SHARE),
    "partition/effective_classes_mean": Metric("Effective classes a client, mean", "classes"),
    "partition/size_gini": Metric("Gini coefficient of the clients' sizes"),
}
_BY_LAYER = ("precond/drift/", "precond/condition/")
_HIGHER = ("acc", "accuracy", "auc", "auroc", "f1", "precision", "recall")
_LOWER = ("loss", "error", "err", "gap", "distance", "perplexity", "nll", "mse", "mae", "rmse", "bytes")


def find_metric(metric: str) -> Metric:
    """Return what is known of a column; one of your own has its key as name, and a direction if its name has one."""
    if metric in METRICS:
        return METRICS[metric]
    for prefix in _BY_LAYER:
        if metric.startswith(prefix):
            whole, layer = METRICS[prefix[:-1]], metric.removeprefix(prefix)
            return whole._replace(name=f"{whole.name}, {layer}", meaning="")
    words = re.split(r"[^a-z0-9]+", metric.lower())
    better = "max" if not set(words).isdisjoint(_HIGHER) else None if set(words).isdisjoint(_LOWER) else "min"
    # Figures of one's own share an axis with those of the same first word: `probe/norm_mean`, `probe/norm_max`.
    group, _, name = metric.rpartition("/")
    family = f"{group}/{name.split('_')[0]}" if group else name.split("_")[0]
    return Metric(metric, _SHARE if is_share(metric) else family, better)


def is_share(metric: str) -> bool:
    """Tell whether a metric is an accuracy, which tables and plots show in percent."""
    return metric.rsplit("/", 1)[-1].startswith("acc")


def default_metric(measured: set[str]) -> str | None:
    """Return what a comparison shows where nobody says: test accuracy, the gap, a validation figure, a loss."""
    order = ("test/acc", "opt/gap", "val/acc", "test/loss", "val/loss", "train/loss")
    return next((metric for metric in order if metric in measured), None)
