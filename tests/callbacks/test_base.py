"""Who hears a hook: whoever does something there, whatever class it is of."""

from __future__ import annotations

from lightning.pytorch.callbacks import Callback

from fedpm_lightning.callbacks.base import FederatedCallback, listeners


class Hears(FederatedCallback):
    def on_client_end(self, trainer, module, update):
        pass


class Inherits(Hears):
    pass


class Foreign(Callback):
    def on_client_end(self, trainer, module, update):
        pass


def test_only_who_does_something_is_called():
    hears, inherits, foreign, given = Hears(), Inherits(), Foreign(), FederatedCallback()
    given.on_client_end = print
    callbacks = [FederatedCallback(), Callback(), hears, inherits, foreign, given]
    assert listeners(callbacks, "on_client_end") == [
        hears.on_client_end,
        inherits.on_client_end,
        foreign.on_client_end,
        print,
    ]
    assert listeners(callbacks, "on_round_start") == []
