"""Power-of-choice: of a round's candidates, those with the greatest loss at theta take part.

Cho, Wang, Joshi: Client Selection in Federated Learning: Convergence Analysis and Power-of-Choice Selection Strategies
(arXiv:2010.01243), pi_pow-d. The candidates are drawn by size, get theta, and answer with F_k(theta) over their whole
local data, without augmentation, in evaluation mode. Ties go to the smaller id.

What it costs beside the round: theta for every candidate that is skipped, 8 bytes up for each candidate, and a
forward pass over its data. The chosen ones hold theta already.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from fedpm_lightning.client.local_model import LocalModel
from fedpm_lightning.nested import wire_bytes
from fedpm_lightning.ranks import all_items
from fedpm_lightning.types import ClientData

if TYPE_CHECKING:
    from fedpm_lightning.round.communication_round import Round


def choose_by_loss(round: Round, keep: int) -> None:
    """Keep the `keep` clients of the cohort with the greatest losses; the others count as not sampled.

    Candidates that a hook has taken out, and those without samples, do not answer.
    """
    own, model = round.own_clients(), round.federation.scratch
    model.load(round.broadcast.params, round.broadcast.buffers)
    losses = dict(all_items([(data.client, local_loss(model, data)) for data in own]))
    chosen = set(sorted(losses, key=lambda client: (-losses[client], client))[:keep])
    if not chosen:
        return  # an empty round, of those who were sampled
    theta = replace(round.broadcast, extra={}).wire_bytes
    passed_over = sum(data.client not in chosen for data in own)
    round.extra_bytes = [wire_bytes(0.0) * len(own), theta * passed_over]
    round.candidates = [data for data in round.cohort.clients if data.client in losses]
    round.cohort.clients = [data for data in round.cohort.clients if data.client in chosen]
    round.sampled = list(round.cohort.clients)


def local_loss(model: LocalModel, data: ClientData) -> float:
    """Return F_k at the model's parameters, l2 term included; minus infinity for NaN, which no order has."""
    total = sum(len(batch[1]) * model.value(batch) for batch in data.everything())
    return -math.inf if math.isnan(total) else total / data.num_samples
