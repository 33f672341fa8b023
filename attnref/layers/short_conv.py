"""A short convolution between two gates: a layer that sees a few tokens."""

from torch import Tensor, nn

from attnref.caches.kv_cache import Cache
from attnref.caches.state import InOrder
from attnref.core.checks import check_input, check_sizes
from attnref.core.masks import Rule


class ShortConvolution(nn.Module):
    """The short convolution of LFM2: its only state is its last inputs.

    Each token multiplies two projections of itself; a convolution mixes each
    channel with its last `conv_kernel` products; a third projection gates the
    result. Parameters are named as in Hugging Face checkpoints.

    Examples:
        >>> import torch
        >>> layer = ShortConvolution(d_model=64)
        >>> layer(torch.randn(2, 5, 64)).shape
        torch.Size([2, 5, 64])
    """

    needs = "state"

    def __init__(
        self,
        *,
        d_model: int,
        conv_kernel: int = 3,
        bias: bool = False,
        causal: bool | Rule = True,
    ) -> None:
        super().__init__()
        self.causal = causal
        check_sizes(d_model=d_model, conv_kernel=conv_kernel)
        self.d_model = E = d_model
        self.in_proj = nn.Linear(E, 3 * E, bias=bias)
        self.conv = nn.Conv1d(E, E, conv_kernel, groups=E, bias=bias)
        self.out_proj = nn.Linear(E, E, bias=bias)

    def forward(
        self,
        x: Tensor,
        *,
        mask: Tensor | None = None,
        cache: Cache | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """Read `x` `(B, T, E)` in order; returns `(B, T, E)`.

        `mask`, `cache` and `positions` are as in `GatedDeltaNet`.
        """
        check_input("x", x.shape, self.d_model)
        if x.shape[1] == 0:
            return x
        new = InOrder(self, x, cache=cache, mask=mask, positions=positions)
        before, after, x = self.in_proj(new.x).chunk(3, dim=-1)
        mixed, past = before * x, self.conv.kernel_size[0] - 1
        shape = len(x), self.d_model, past
        (inputs,) = new.state((shape, mixed.dtype))
        mixed, inputs = new.convolved(self.conv, mixed, inputs)
        return new.end(self.out_proj(after * mixed), inputs)
