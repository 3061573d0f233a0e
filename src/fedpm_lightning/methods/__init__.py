"""The methods, in the order of the paper's taxonomy. One file is one paper."""

from fedpm_lightning.methods.base import Method
from fedpm_lightning.methods.fedavg import FedAvg
from fedpm_lightning.methods.fedpm import FedPM
from fedpm_lightning.methods.local_newton import LocalNewton

__all__ = ["FedAvg", "FedPM", "LocalNewton", "Method"]
