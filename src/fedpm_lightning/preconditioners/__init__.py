"""Preconditioners of local steps: the argument `preconditioner` of LocalNewton and FedPM."""

from fedpm_lightning.preconditioners.base import LocalPreconditioner
from fedpm_lightning.preconditioners.foof import Foof
from fedpm_lightning.preconditioners.hessian import Diagonal, Hessian
from fedpm_lightning.preconditioners.kfac import Kfac

__all__ = ["Diagonal", "Foof", "Hessian", "Kfac", "LocalPreconditioner"]
