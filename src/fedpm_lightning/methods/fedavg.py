"""FedAvg: local SGD and a weighted mean of the parameters.

McMahan, Moore, Ramage, Hampson, Aguera y Arcas: Communication-Efficient Learning of Deep Networks from Decentralized
Data (AISTATS 2017), Algorithm 1. FedAvgM, FedAdam, FedYogi and FedAdagrad are this method with another
`model.server_optimizer`.

Deviations: local momentum and weight decay are offered (both 0 in the paper), and any torch optimizer in the place of
the local SGD: local AdamW is this method with another `local_optimizer`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from fedpm_lightning.checks import at_least, fraction, positive
from fedpm_lightning.client.client import Client
from fedpm_lightning.methods.base import Method
from fedpm_lightning.server.optimizers import check_steps
from fedpm_lightning.types import ClientUpdate


class FedAvg(Method):
    """E epochs (or K steps) of SGD on each client, then theta <- sum w_i theta_i.

    Args:
        lr: eta > 0, multiplied by the schedule's factor of the round.
        momentum: Local momentum in [0, 1); its buffer starts empty in each round.
        weight_decay: Local L2 decay, at least 0.
        local_optimizer: A torch optimizer in place of SGD, a new one each round; its rate is `lr`, everything else
            its own argument. null: SGD with `momentum` and `weight_decay`.

    Raises:
        ValueError: If a value is outside its range.
    """

    taxonomy = "first order", "parameters"
    look = "#0072B2", "s"
    stackable = "any"

    def __init__(
        self,
        lr: float = 0.1,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        local_optimizer: Callable[[Iterable], Optimizer] | None = None,  # pyright: ignore[reportMissingTypeArgument]
    ) -> None:
        self.lr = positive("lr", lr)
        self.momentum = fraction("momentum", momentum)
        self.weight_decay = at_least("weight_decay", weight_decay, 0.0)
        if local_optimizer is not None and (momentum or weight_decay):
            raise ValueError(
                f"momentum {momentum:g} and weight_decay {weight_decay:g} are those of SGD: set them to 0, and give "
                "local_optimizer its own"
            )
        self.local_optimizer: Callable[[Iterable[Tensor]], Optimizer] | None = local_optimizer

    def setup(self, net: nn.Module) -> list[str]:
        """Try a step of the local optimizer, where it is not SGD.

        Raises:
            ValueError: If it needs more than a gradient.
        """
        if self.local_optimizer is not None:
            check_steps(
                self.local_optimizer, dict(net.named_parameters()), "model.method.local_optimizer", "a gradient"
            )
        return []

    def optimizer(self, client: Client) -> Optimizer:
        """Return this round's local optimizer over the scratch network's leaves."""
        if self.local_optimizer is not None:
            optimizer = self.local_optimizer(client.model.params.values())
            for group in optimizer.param_groups:
                group["lr"] = self.lr * client.lr_factor
            return optimizer
        return SGD(
            client.model.params.values(),
            lr=self.lr * client.lr_factor,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
        )

    def client_update(self, client: Client) -> ClientUpdate:
        """Train locally and upload theta_i."""
        return client.upload(client.train(self.optimizer(client)))
