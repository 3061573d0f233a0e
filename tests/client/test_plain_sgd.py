"""Plain SGD's quick step: the bits of torch.optim.SGD, and only where that is all it would do."""

import pytest
import torch
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import LambdaLR
from torch.optim.optimizer import register_optimizer_step_post_hook

from fedpm_lightning.client.plain_sgd import quick_step


def leaves(dtype=torch.float32):
    torch.manual_seed(0)
    p = [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in ((5, 3), (2, 4, 3), (7,))]
    for one in p[:2]:  # the last one has no gradient
        one.grad = torch.randn_like(one)
    return p


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_step_has_the_bits_of_sgd(dtype):
    own, theirs = leaves(dtype), leaves(dtype)
    quick, reference = SGD(own, lr=0.3), SGD(theirs, lr=0.3)
    step = quick_step(quick)
    assert step.__name__ == "step" and not hasattr(step, "__self__")
    for _ in range(3):
        step()
        reference.step()
        for optimizer in (quick, reference):
            optimizer.param_groups[0]["lr"] *= 0.9
    assert all(torch.equal(a, b) for a, b in zip(own, theirs, strict=True))


class Own(SGD):
    """An optimizer of somebody else."""


OTHERS = [
    lambda p: SGD(p, lr=0.3, momentum=0.9),
    lambda p: SGD(p, lr=0.3, weight_decay=0.1),
    lambda p: SGD(p, lr=0.3, maximize=True),
    lambda p: SGD(p, lr=torch.tensor(0.3)),
    lambda p: SGD([{"params": p[:1]}, {"params": p[1:], "lr": 0.1}], lr=0.3),
    lambda p: Own(p, lr=0.3),
    Adam,
]


@pytest.mark.parametrize("make", OTHERS)
def test_every_other_optimizer_steps_by_itself(make):
    optimizer = make(leaves())
    assert quick_step(optimizer) == optimizer.step


def test_hooks_of_a_step_are_called():
    optimizer, called = SGD(leaves(), lr=0.3), []
    optimizer.register_step_pre_hook(lambda *_: called.append("own"))
    quick_step(optimizer)()
    handle = register_optimizer_step_post_hook(lambda *_: called.append("all"))
    try:
        quick_step(SGD(leaves(), lr=0.3))()
    finally:
        handle.remove()
    assert called == ["own", "all"]


def test_a_step_that_a_scheduler_has_wrapped_is_called():
    optimizer = SGD(leaves(), lr=0.3)
    LambdaLR(optimizer, lambda _: 1.0)
    assert quick_step(optimizer) == optimizer.step
