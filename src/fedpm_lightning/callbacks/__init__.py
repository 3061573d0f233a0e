"""The callbacks of a federated run; YAML finds each under `fedpm_lightning.callbacks`.

They are imported at first use, so that a report that needs one file of this folder does not wait for the others.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedpm_lightning.callbacks.aggregation.differential_privacy import DifferentialPrivacy
    from fedpm_lightning.callbacks.aggregation.robust import CoordinateMedian, Krum, NormClipping, TrimmedMean
    from fedpm_lightning.callbacks.aggregation.secure import SecureAggregation
    from fedpm_lightning.callbacks.base import Aggregation, FederatedCallback
    from fedpm_lightning.callbacks.metrics.client_accuracy import ClientAccuracy
    from fedpm_lightning.callbacks.metrics.communication import Communication
    from fedpm_lightning.callbacks.metrics.confusion import ConfusionMatrix
    from fedpm_lightning.callbacks.metrics.damping import Damping
    from fedpm_lightning.callbacks.metrics.drift import ClientDrift
    from fedpm_lightning.callbacks.metrics.optimum import Optimum
    from fedpm_lightning.callbacks.metrics.personal_accuracy import PersonalAccuracy
    from fedpm_lightning.callbacks.metrics.preconditioners import ConditionNumber, PreconditionerDrift
    from fedpm_lightning.callbacks.metrics.timing import TimeShares, Timing
    from fedpm_lightning.callbacks.run.files import RunFiles
    from fedpm_lightning.callbacks.run.progress import RoundProgress
    from fedpm_lightning.callbacks.run.weights_and_biases import WandbRun
    from fedpm_lightning.callbacks.simulation.attacks import LabelFlip, SignFlip
    from fedpm_lightning.callbacks.simulation.dropouts import Dropouts, Stragglers
    from fedpm_lightning.callbacks.simulation.network import SimulatedNetwork

_HOME = {
    "Aggregation": "base",
    "ClientAccuracy": "metrics.client_accuracy",
    "ClientDrift": "metrics.drift",
    "Communication": "metrics.communication",
    "ConditionNumber": "metrics.preconditioners",
    "ConfusionMatrix": "metrics.confusion",
    "CoordinateMedian": "aggregation.robust",
    "Damping": "metrics.damping",
    "DifferentialPrivacy": "aggregation.differential_privacy",
    "Dropouts": "simulation.dropouts",
    "FederatedCallback": "base",
    "Krum": "aggregation.robust",
    "LabelFlip": "simulation.attacks",
    "NormClipping": "aggregation.robust",
    "Optimum": "metrics.optimum",
    "PersonalAccuracy": "metrics.personal_accuracy",
    "PreconditionerDrift": "metrics.preconditioners",
    "RoundProgress": "run.progress",
    "RunFiles": "run.files",
    "SecureAggregation": "aggregation.secure",
    "SignFlip": "simulation.attacks",
    "SimulatedNetwork": "simulation.network",
    "Stragglers": "simulation.dropouts",
    "TimeShares": "metrics.timing",
    "Timing": "metrics.timing",
    "TrimmedMean": "aggregation.robust",
    "WandbRun": "run.weights_and_biases",
}

__all__ = [
    "Aggregation",
    "ClientAccuracy",
    "ClientDrift",
    "Communication",
    "ConditionNumber",
    "ConfusionMatrix",
    "CoordinateMedian",
    "Damping",
    "DifferentialPrivacy",
    "Dropouts",
    "FederatedCallback",
    "Krum",
    "LabelFlip",
    "NormClipping",
    "Optimum",
    "PersonalAccuracy",
    "PreconditionerDrift",
    "RoundProgress",
    "RunFiles",
    "SecureAggregation",
    "SignFlip",
    "SimulatedNetwork",
    "Stragglers",
    "TimeShares",
    "Timing",
    "TrimmedMean",
    "WandbRun",
]


def __getattr__(name: str) -> Any:
    """Import a callback at its first use."""
    if name in _HOME:
        return getattr(import_module(f"fedpm_lightning.callbacks.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
