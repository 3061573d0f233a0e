"""A small causal Transformer that predicts the next character: the network of the Shakespeare task."""

from __future__ import annotations

from torch import Tensor, nn

from fedpm_lightning.models.transformer import Positions, TransformerBlock


class CharTransformer(nn.Module):
    """Embedded characters, learned positions, causal pre-norm blocks, and a head on the last position.

    One prediction a window, as LEAF has it, not one a position: a sample is a window and its class the character after
    it. The last block therefore works for the last position alone, which gives the same logits in less time; the
    training signal of the other positions is not used. With the defaults: 82,641 parameters.

    Args:
        num_classes: Characters, those that go in and those that come out.
        length: Most characters of a window.
        width: Numbers of a token.
        depth: Blocks, at least 1.
        heads: A divisor of `width`.
        mlp_width: Hidden units of a block's perceptron.
        dropout: Of what each path of a block adds, in [0, 1); with dropout, clients cannot be stacked.

    Raises:
        ValueError: If `heads` does not divide `width`, or there is no block.
    """

    def __init__(
        self,
        num_classes: int = 81,
        length: int = 80,
        width: int = 64,
        depth: int = 2,
        heads: int = 4,
        mlp_width: int = 128,
        dropout: float = 0.0,
    ) -> None:
        if depth < 1:
            raise ValueError(f"depth must be at least 1 block, got {depth}")
        super().__init__()
        self.embed = nn.Embedding(num_classes, width)
        nn.init.normal_(self.embed.weight, std=0.02)
        self.positions = Positions(length, width)
        self.blocks = nn.ModuleList(
            TransformerBlock(width, heads, mlp_width, causal=True, dropout=dropout) for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Map character numbers [b, t], t being at most `length`, to logits [b, num_classes] of the next character."""
        tokens = self.positions(self.embed(x))
        for block in self.blocks[:-1]:
            tokens = block(tokens)
        return self.head(self.norm(self.blocks[-1](tokens, queries=1)[:, -1]))
