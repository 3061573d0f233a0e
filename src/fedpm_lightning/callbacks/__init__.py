"""The callbacks of a federated run; YAML finds each under `fedpm_lightning.callbacks`.

They are imported at first use, so that a report that needs one file of this folder does not wait for the others.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedpm_lightning.callbacks.attacks import LabelFlip, SignFlip
    from fedpm_lightning.callbacks.base import Aggregation, FederatedCallback
    from fedpm_lightning.callbacks.client_accuracy import ClientAccuracy
    from fedpm_lightning.callbacks.communication import Communication
    from fedpm_lightning.callbacks.confusion import ConfusionMatrix
    from fedpm_lightning.callbacks.damping import Damping
    from fedpm_lightning.callbacks.drift import ClientDrift
    from fedpm_lightning.callbacks.dropouts import Dropouts, Stragglers
    from fedpm_lightning.callbacks.network import SimulatedNetwork
    from fedpm_lightning.callbacks.optimum import Optimum
    from fedpm_lightning.callbacks.personal_accuracy import PersonalAccuracy
    from fedpm_lightning.callbacks.preconditioners import ConditionNumber, PreconditionerDrift
    from fedpm_lightning.callbacks.privacy import DifferentialPrivacy
    from fedpm_lightning.callbacks.progress import RoundProgress
    from fedpm_lightning.callbacks.robust import CoordinateMedian, Krum, NormClipping, TrimmedMean
    from fedpm_lightning.callbacks.run_files import RunFiles
    from fedpm_lightning.callbacks.secure import SecureAggregation
    from fedpm_lightning.callbacks.timing import TimeShares, Timing
    from fedpm_lightning.callbacks.wandb_run import WandbRun

_HOME = {
    "Aggregation": "base",
    "ClientAccuracy": "client_accuracy",
    "ClientDrift": "drift",
    "Communication": "communication",
    "ConditionNumber": "preconditioners",
    "ConfusionMatrix": "confusion",
    "CoordinateMedian": "robust",
    "Damping": "damping",
    "DifferentialPrivacy": "privacy",
    "Dropouts": "dropouts",
    "FederatedCallback": "base",
    "Krum": "robust",
    "LabelFlip": "attacks",
    "NormClipping": "robust",
    "Optimum": "optimum",
    "PersonalAccuracy": "personal_accuracy",
    "PreconditionerDrift": "preconditioners",
    "RoundProgress": "progress",
    "RunFiles": "run_files",
    "SecureAggregation": "secure",
    "SignFlip": "attacks",
    "SimulatedNetwork": "network",
    "Stragglers": "dropouts",
    "TimeShares": "timing",
    "Timing": "timing",
    "TrimmedMean": "robust",
    "WandbRun": "wandb_run",
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
