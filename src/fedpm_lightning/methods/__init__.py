"""The methods, in the order of the paper's taxonomy. One file is one paper."""

from fedpm_lightning.methods.base import Method
from fedpm_lightning.methods.fedavg import FedAvg
from fedpm_lightning.methods.feddyn import FedDyn
from fedpm_lightning.methods.fedexp import FedExP
from fedpm_lightning.methods.fednew import FedNew
from fedpm_lightning.methods.fednl import FedNL
from fedpm_lightning.methods.fednova import FedNova
from fedpm_lightning.methods.fedns import FedNS
from fedpm_lightning.methods.fedpm import FedPM
from fedpm_lightning.methods.fedprox import FedProx
from fedpm_lightning.methods.fedsam import FedSAM
from fedpm_lightning.methods.fedsophia import FedSophia
from fedpm_lightning.methods.local_newton import LocalNewton
from fedpm_lightning.methods.ltda import LTDA
from fedpm_lightning.methods.psgd import PSGD
from fedpm_lightning.methods.scaffold import SCAFFOLD

__all__ = [  # noqa: RUF022 (the taxonomy's order)
    "PSGD",
    "FedAvg",
    "FedProx",
    "SCAFFOLD",
    "FedDyn",
    "FedNova",
    "FedExP",
    "FedSAM",
    "FedNL",
    "FedNew",
    "FedNS",
    "LocalNewton",
    "LTDA",
    "FedSophia",
    "FedPM",
    "Method",
]
