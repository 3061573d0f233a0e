"""A small vision Transformer (Dosovitskiy et al. 2021) for CIFAR, with a mean over patches instead of a class token.

Deviations: the head reads the mean of the last tokens, as Beyer et al. (2022) do; sizes are for a CPU.
"""

from __future__ import annotations

from torch import Tensor, nn

from fedpm_lightning.models.transformer import Positions, TransformerBlock


class ViT(nn.Module):
    """Patches, one Linear layer on each, learned positions, pre-norm blocks, and a head on their mean.

    With the defaults on CIFAR-10: 141,898 parameters, 64 patches.

    Args:
        num_classes: Outputs.
        image_size: Height and width in pixels.
        patch: Height and width of a patch, a divisor of `image_size`.
        width: Numbers of a token.
        depth: Blocks.
        heads: A divisor of `width`.
        mlp_width: Hidden units of a block's perceptron.
        dropout: Of what each path of a block adds, in [0, 1); with dropout, clients cannot be stacked.
        in_channels: 1 for grey, 3 for RGB.

    Raises:
        ValueError: If `patch` does not divide `image_size`, or `heads` not `width`.
    """

    def __init__(
        self,
        num_classes: int = 10,
        image_size: int = 32,
        patch: int = 4,
        width: int = 64,
        depth: int = 4,
        heads: int = 4,
        mlp_width: int = 128,
        dropout: float = 0.0,
        in_channels: int = 3,
    ) -> None:
        if patch < 1 or image_size % patch:
            raise ValueError(f"patch must be a divisor of image_size, got {patch} for {image_size} pixels")
        super().__init__()
        self.patch = patch
        self.embed = nn.Linear(in_channels * patch**2, width)
        self.positions = Positions((image_size // patch) ** 2, width)
        self.blocks = nn.Sequential(*(TransformerBlock(width, heads, mlp_width, dropout=dropout) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Map images [b, in_channels, image_size, image_size] to logits [b, num_classes]."""
        tokens = self.blocks(self.positions(self.embed(self.patches(x))))
        return self.head(self.norm(tokens).mean(1))

    def patches(self, x: Tensor) -> Tensor:
        """Cut images into patches [b, t, in_channels * patch^2], row by row, ordered (channel, row, column)."""
        x = x.unflatten(3, (-1, self.patch)).unflatten(2, (-1, self.patch))  # b, channel, rows, row, columns, column
        return x.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)
