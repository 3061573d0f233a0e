"""Simulated secure aggregation, chosen in YAML instead of the plain aggregation: docs/privacy.md.

fedpm fit ... --trainer.callbacks SecureAggregation
"""

from __future__ import annotations

from lightning.pytorch import LightningModule, Trainer

from fedpm_lightning.callbacks.base import Aggregation, check_buffers, federation_of
from fedpm_lightning.callbacks.trainer_access import data_of
from fedpm_lightning.checks import at_least
from fedpm_lightning.errors import AggregationError
from fedpm_lightning.round import Federation, Round
from fedpm_lightning.server.aggregator import Aggregator
from fedpm_lightning.server.secure import FixedPoint, PairwiseMasks, SecureAggregator
from fedpm_lightning.types import ClientUpdate, Params


class SecureAggregation(Aggregation):
    """Adds up what clients contribute as masked fixed-point integers: the server opens nothing but the sum.

    It serves every method, since all of them add up tensors; the sums are exact up to 2^-(fraction_bits + 1) a client.
    A client draws one mask with each other one: work and time grow with the square of the cohort.

    Args:
        bits: b of the integers modulo 2^b, 8 to 62. A client uploads b bits for each number of the method's sums.
        fraction_bits: Bits behind the point, below `bits`.
        least: Fewest clients whose sum may be opened, at least 2; fewer end the run.

    Raises:
        ValueError: If a value is outside its range.
    """

    records = ("train/loss", "clients/returned", "clients/dropped")

    def __init__(self, bits: int = 48, fraction_bits: int = 20, least: int = 3) -> None:
        super().__init__()
        if not 8 <= bits <= 62:
            raise ValueError(f"bits must be in 8..62, got {bits}")
        if not 0 <= fraction_bits < bits:
            raise ValueError(f"fraction_bits must be in 0..{bits - 1} (below bits), got {fraction_bits}")
        self.number, self.least = FixedPoint(bits, fraction_bits), int(at_least("least", least, 2))

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Refuse what would go to the server in the clear, before anything runs.

        Raises:
            ValueError: If the method, the buffers or the size of cohorts does not allow it.
        """
        federation, size = federation_of(pl_module), data_of(trainer).cohort_size
        check(federation)
        if size < self.least:
            raise ValueError(
                f"SecureAggregation hides a client among at least {self.least}, and a round has {size}: raise "
                "data.clients_per_round, or lower least"
            )
        number = self.number
        federation.print(
            f"SecureAggregation: {number.bits} bits, resolution {2.0**-number.fraction_bits:.3g}, up to "
            f"{number.range(size):.4g} for each of {size} clients"
        )

    def make_aggregator(self, round: Round) -> Aggregator:
        """Return the masked sums of this round."""
        check(round.federation)

        def make() -> Aggregator:
            return super(SecureAggregation, self).make_aggregator(round)

        def cohort() -> list[int]:
            return [data.client for data in round.cohort.clients if data.num_samples]

        masks = PairwiseMasks(round.federation.seed, round.number, self.number.bits)
        return SecureAggregator(make, cohort, self.number, masks, self.least)

    def receive(self, round: Round, update: ClientUpdate) -> None:
        """Take an update, and count its masked integers instead of the plain upload."""
        super().receive(round, update)
        sums = self.aggregator
        assert isinstance(sums, SecureAggregator)
        round.extra_bytes[0] += -(-sums.length * self.number.bits // 8) - update.wire_bytes

    def finish(self, round: Round, aggregator: Aggregator) -> Params:
        """Unmask the sum; an error names the round."""
        try:
            return super().finish(round, aggregator)
        except AggregationError as cause:
            raise AggregationError(f"round {round.number + 1}: {cause}") from None


def check(federation: Federation) -> None:
    """Check that everything that clients send is in the method's sums.

    Raises:
        ValueError: If something is not.
    """
    if federation.method.needs_preparation:
        name = type(federation.method).__name__
        raise ValueError(f"SecureAggregation does not mask the first pass of {name}: set correction none")
    if federation.message is not None and federation.message.packs_uploads:
        raise ValueError(
            "SecureAggregation sends integers of its own width, whatever the form of an upload: leave out model.message"
            ", or all of it but broadcast_factors"
        )
    check_buffers(federation, "SecureAggregation masks the method's sums only")
