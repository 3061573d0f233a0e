"""What is printed at the start of a run: which rule each parameter gets, a preconditioner's or plain."""

from __future__ import annotations

from torch import nn

from fedpm_lightning.curvature.layers import ELSEWHERE, Rules, find_rules


def rules(net: nn.Module, found: Rules | None = None, title: str = "FOOF") -> dict[str, str]:
    """Say which rule each parameter gets: that of `title` (preconditioned) or "plain" (SGD and weighted mean)."""
    found = found or find_rules(net)
    return {name: "plain" if name in found.plain else title for name, _ in net.named_parameters()}


def rules_table(net: nn.Module, found: Rules | None = None, title: str = "FOOF") -> list[str]:
    """Return `rules` as lines to print: parameter, shape, rule, and the size of A or the reason."""
    found = found or find_rules(net)
    size = {name: layer.size for layer in found.layers for name in layer.params}
    lines: list[str] = []
    for name, parameter in net.named_parameters():
        note = f"{title:<6} {size[name]}" if name in size else f"plain  ({found.plain[name]})"
        lines.append(f"{name:<40} {'x'.join(map(str, parameter.shape)) or 'scalar':<16} {note}")
    return lines


def rules_summary(net: nn.Module, found: Rules | None = None, title: str = "FOOF") -> str:
    """Count `rules` in a line: `FOOF for 20 of 62 tensors (11,164,352 of 11,173,962 numbers), plain for the others`.

    It names the weights that would have a factor, had the network not used them in another way as well.
    """
    found = found or find_rules(net)
    named = dict(net.named_parameters())
    factored = [parameter for name, parameter in named.items() if name not in found.plain]
    numbers, every = sum(p.numel() for p in factored), sum(p.numel() for p in named.values())
    rest = ", plain for the others" if len(factored) < len(named) else ""
    line = f"{title} for {len(factored)} of {len(named)} tensors ({numbers:,} of {every:,} numbers){rest}"
    used = [name for name, reason in found.plain.items() if reason == ELSEWHERE]
    return f"{line}; {ELSEWHERE}: {', '.join(used)}" if used else line
