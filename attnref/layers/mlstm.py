"""mLSTM: a recurrent layer whose input gate is an exponential."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnref.caches.kv_cache import Cache
from attnref.caches.state import InOrder
from attnref.core.checks import check_input, check_sizes
from attnref.core.heads import merge_heads, split_heads
from attnref.core.masks import Rule


class MLSTM(nn.Module):
    """mLSTM, the matrix memory of xLSTM: an exponential gate, and its sum.

    Each token writes its value, of width `value_dim`, at `e^i` times its key,
    of width `key_dim`, into a state per head, which decays by `sigmoid(f)`. One
    more column of the state is the sum of these keys: what a query reads in
    the others is divided by the size of what it reads there, or by 1 if that
    is more. `i` and `f` are gates of the token, kept softly between `-gate_cap`
    and `gate_cap`. float32 holds sums of `e^40`, so that the running maximum
    that the paper stores beside its state is not needed. Parameters are named
    as in Hugging Face's xLSTM and start as there: little is written, and heads
    forget at different rates.

    Examples:
        >>> layer = MLSTM(d_model=64, n_heads=4, key_dim=8, value_dim=16)
        >>> layer(torch.randn(2, 5, 64)).shape
        torch.Size([2, 5, 64])
    """

    needs = "state"

    def __init__(
        self,
        *,
        d_model: int,
        n_heads: int,
        key_dim: int,
        value_dim: int,
        gate_cap: float = 15.0,
        eps: float = 1e-6,
        causal: bool | Rule = True,
    ) -> None:
        super().__init__()
        self.causal = causal
        check_sizes(
            d_model=d_model,
            n_heads=n_heads,
            key_dim=key_dim,
            value_dim=value_dim,
        )
        if not 0 < gate_cap <= 40:
            raise ValueError(f"{gate_cap=} is not above 0 and at most 40")
        self.d_model, self.n_heads = d_model, n_heads
        self.key_dim, self.value_dim = key_dim, value_dim
        self.gate_cap = gate_cap
        inner = n_heads * value_dim
        self.q = nn.Linear(d_model, n_heads * key_dim, bias=False)
        self.k = nn.Linear(d_model, n_heads * key_dim, bias=False)
        self.v = nn.Linear(d_model, inner, bias=False)
        self.ogate_preact = nn.Linear(d_model, inner, bias=False)
        self.igate_preact = nn.Linear(d_model, n_heads)
        self.fgate_preact = nn.Linear(d_model, n_heads)
        for gate in (self.igate_preact, self.fgate_preact):
            nn.init.zeros_(gate.weight)
        nn.init.constant_(self.igate_preact.bias, -10.0)
        self.fgate_preact.bias = nn.Parameter(torch.linspace(3.0, 6.0, n_heads))
        self.multihead_norm = nn.LayerNorm(inner, eps, bias=False)
        self.out_proj = nn.Linear(inner, d_model, bias=False)

    def forward(
        self,
        x: Tensor,
        *,
        mask: Tensor | None = None,
        cache: Cache | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """Read `x` `(B, T, E)` in order; returns `(B, T, E)`.

        `mask`, `cache` and `positions` are as in `LightningAttention`.
        """
        check_input("x", x.shape, self.d_model)
        if x.shape[1] == 0:
            return x
        new = InOrder(self, x, cache=cache, mask=mask, positions=positions)
        x, wide = new.x, new.wide
        B, H, D = len(x), self.n_heads, self.key_dim
        (state,) = new.state(((B, H, D, self.value_dim + 1), wide))
        q, k, v = (
            split_heads(project(x).to(wide), H)
            for project in (self.q, self.k, self.v)
        )  # q, k (B, H, T, D), v (B, H, T, Dv)
        write, keep = (
            self.gate_cap * (gate(x).to(wide) / self.gate_cap).tanh().mT
            for gate in (self.igate_preact, self.fgate_preact)
        )  # both (B, H, T)
        k = write.exp()[..., None] * k  # (B, H, T, D)
        v = F.pad(v, (0, 1), value=1.0)  # (B, H, T, Dv + 1)
        heads, state = new.read(q * D**-0.5, k, v, F.logsigmoid(keep), state)
        total = heads[..., -1:].abs().clamp(min=1)  # (B, H, T, 1)
        heads = heads[..., :-1] / total  # (B, H, T, Dv)
        # A norm over each head; where little is read, its eps decides.
        norm = self.multihead_norm
        heads = F.layer_norm(heads, heads.shape[-1:], eps=norm.eps)
        heads = merge_heads(heads) * norm.weight  # (B, T, H * Dv)
        gate = self.ogate_preact(x).sigmoid()
        return new.end(self.out_proj(gate * heads.to(gate.dtype)), state)
