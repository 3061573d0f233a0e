"""The communication round as plain objects: it needs no Lightning, and everything else is built around it.

from fedpm_lightning.round import Federation

federation = Federation(MLP(64, [32], 10), FedPM(), local_epochs=1)
for row in federation.train(FederatedData(num_clients=10), rounds=5):
    print(row["train/loss"], row["test/acc"])
"""

from fedpm_lightning.round.aggregation import Aggregation
from fedpm_lightning.round.communication_round import Round
from fedpm_lightning.round.federation import Federation
from fedpm_lightning.round.hooks import Hooks

__all__ = ["Aggregation", "Federation", "Hooks", "Round"]
