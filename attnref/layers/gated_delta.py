"""Gated DeltaNet: a recurrent layer, whose state has a fixed size."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnref.caches.kv_cache import Cache
from attnref.caches.past import view_of
from attnref.caches.state import state_of
from attnref.core.checks import check_input, check_sizes
from attnref.core.heads import RMSNorm, merge_heads, split_heads
from attnref.core.masks import Rule


def gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    beta: Tensor,
    state: Tensor,
    *,
    document: Tensor | None = None,
    chunk: int = 64,
) -> tuple[Tensor, Tensor]:
    """Write each token into the state, and read it: `(B, H, T, Dv)` of reads.

    `S_t = e^g_t S_{t-1} + k_t u_t^T`, with
    `u_t = beta_t (v_t - e^g_t S_{t-1}^T k_t)`: what is stored at `k_t` moves
    towards `v_t`, and then `q_t` reads. All `u` of a chunk solve one triangular
    system. `q` and `k` are `(B, H, T, D)`, `v` is `(B, H, T, Dv)`; `decay`, the
    `g`, at most 0, and `beta` are `(B, H, T)`. Returned with the reads is the
    state `(B, H, D, Dv)` after the last token.

    Where documents are packed, `document` `(B, T)` numbers them, from that of
    the state before, 0: nothing passes from one to the next.
    """
    outs: list[Tensor] = []
    n, before = 0, beta[:, 0, :1] * 0  # the document of the state
    while n < q.shape[2]:  # `range` would bind a compiler to this length
        part = slice(n, n + chunk)
        n += chunk
        q_c, k_c, v_c = (x[:, :, part] for x in (q, k, v))
        g, b = decay[:, :, part].cumsum(dim=-1), beta[:, :, part, None]
        past = g.exp()[..., None]  # of the state before this chunk
        # Of the difference: `e^g` apart from `e^-g` would overflow.
        between = (g[..., None] - g[..., None, :]).tril().exp().tril()
        left = (g[..., -1:] - g).exp()[..., None]  # at the end of the chunk
        if document is not None:
            d = document[:, None, part]  # (B, 1, T)
            past = past * (d == before[:, None])[..., None]
            between = between * (d[..., None] == d[..., None, :])
            left = left * (d == d[..., -1:])[..., None]
            before = d[:, 0, -1:]
        written = (b * between * (k_c @ k_c.mT)).tril(-1)
        u = torch.linalg.solve_triangular(
            written,
            b * (v_c - past * (k_c @ state)),
            upper=False,
            unitriangular=True,
        )
        outs.append(past * (q_c @ state) + (between * (q_c @ k_c.mT)) @ u)
        state = past[..., -1:, :] * state + (left * k_c).mT @ u
    return torch.cat(outs, dim=2) if outs else v, state


def _units(x: Tensor, groups: int) -> Tensor:
    """Vectors of length 1, of each head for its `groups` value heads."""
    x = x * (x.square().sum(dim=-1, keepdim=True) + 1e-6).rsqrt()
    return x.repeat_interleave(groups, dim=1)


class GatedDeltaNet(nn.Module):
    """Gated DeltaNet of Qwen3-Next and Qwen3.5: a matrix per head, written.

    The state of each of the `n_v_heads` value heads maps keys of width
    `key_dim` to values of width `value_dim`. `n_heads` heads of queries and
    keys are shared by groups of them. A convolution mixes each channel with its
    last `conv_kernel` inputs. Parameters are named as in Hugging Face
    checkpoints of Qwen3.5.

    Examples:
        >>> layer = GatedDeltaNet(
        ...     d_model=64, n_heads=2, n_v_heads=4, key_dim=8, value_dim=12
        ... )
        >>> layer(torch.randn(2, 5, 64)).shape
        torch.Size([2, 5, 64])
    """

    needs = "state"

    def __init__(
        self,
        *,
        d_model: int,
        n_heads: int,
        n_v_heads: int,
        key_dim: int,
        value_dim: int,
        conv_kernel: int = 4,
        eps: float = 1e-6,
        causal: bool | Rule = True,
    ) -> None:
        super().__init__()
        self.causal = causal
        check_sizes(
            d_model=d_model,
            n_heads=n_heads,
            n_v_heads=n_v_heads,
            key_dim=key_dim,
            value_dim=value_dim,
            conv_kernel=conv_kernel,
        )
        if n_v_heads % n_heads:
            raise ValueError(f"{n_heads=} does not divide {n_v_heads=}")
        self.d_model, self.n_heads, self.n_v_heads = d_model, n_heads, n_v_heads
        self.key_dim, self.value_dim = key_dim, value_dim
        inner = n_v_heads * value_dim
        C = 2 * n_heads * key_dim + inner
        self.in_proj_qkv = nn.Linear(d_model, C, bias=False)
        self.in_proj_z = nn.Linear(d_model, inner, bias=False)
        self.in_proj_b = nn.Linear(d_model, n_v_heads, bias=False)
        self.in_proj_a = nn.Linear(d_model, n_v_heads, bias=False)
        self.conv1d = nn.Conv1d(C, C, conv_kernel, groups=C, bias=False)
        self.A_log = nn.Parameter(torch.empty(n_v_heads).uniform_(1, 16).log())
        self.dt_bias = nn.Parameter(torch.ones(n_v_heads))
        self.norm = RMSNorm(value_dim, eps=eps)
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

        `mask` is the padding mask of all tokens so far, `(B, 1, 1, S)`, True =
        a real token; a pad changes neither the state nor what other tokens
        get. `positions` are accepted, as other layers of a model read them,
        and change nothing.
        """
        check_input("x", x.shape, self.d_model)
        B, T, E = x.shape
        view = view_of(self, cache, x, mask=mask, positions=positions)
        if T == 0:
            return x
        real, order = view.real(), None
        document = view.documents(self.causal)
        if real is not None:  # as if all pads of this call came last
            order = (~real).int().argsort(dim=1, stable=True)[..., None]
            x = x.gather(1, order.expand(-1, -1, E))  # (B, T, E)
            real = torch.arange(T, device=x.device) < real.sum(1, keepdim=True)
            x = x.where(real[..., None], 0)  # (B, T, E)
            if document is not None:  # pads are of the last
                document = document.gather(1, order[..., 0]).cummax(1).values
        mixed = self.in_proj_qkv(x).mT  # (B, C, T)
        wide = torch.promote_types(mixed.dtype, torch.float32)
        C, past = mixed.shape[1], self.conv1d.kernel_size[0] - 1
        D, Dv, H = self.key_dim, self.value_dim, self.n_v_heads
        state, inputs = state_of(
            cache,
            x.device,
            ((B, H, D, Dv), wide),
            ((B, C, past), mixed.dtype),
        )
        mixed = torch.cat((inputs, mixed), dim=-1)  # (B, C, past + T)
        last = torch.arange(past, device=x.device).expand(B, -1)
        last = last + (T if real is None else real.sum(1)[:, None])
        inputs = mixed.gather(2, last[:, None].expand(-1, C, -1))
        if document is None:
            mixed = self.conv1d(mixed)  # (B, C, T)
        else:  # inputs of another document count as zeros
            number = F.pad(document, (past, 0))  # (B, past + T)
            same = number.unfold(1, past + 1, 1) == document[..., None]
            mixed = mixed.unfold(2, past + 1, 1) * same[:, None]
            mixed = (mixed * self.conv1d.weight).sum(dim=-1)  # (B, C, T)
            same = number.gather(1, last) == document[:, -1:]
            inputs = inputs * same[:, None]  # (B, C, past)
        mixed = F.silu(mixed).mT  # (B, T, C)
        keys = self.n_heads * D
        q, k, v = mixed.to(wide).tensor_split((keys, 2 * keys), dim=-1)
        q, k = (split_heads(t, self.n_heads) for t in (q, k))
        q, k = (_units(t, H // self.n_heads) for t in (q, k))
        v = split_heads(v, H)  # (B, H, T, Dv)
        beta = self.in_proj_b(x).to(wide).sigmoid().mT  # (B, H, T)
        step = F.softplus(self.in_proj_a(x).to(wide) + self.dt_bias)
        decay = (-self.A_log.to(wide).exp() * step).mT  # (B, H, T)
        if real is not None:  # a pad writes nothing and lets nothing decay
            beta, decay = (t * real[:, None] for t in (beta, decay))
        kind = "cpu" if x.device.type == "meta" else x.device.type
        with torch.autocast(kind, enabled=False):  # a state in float32
            heads, state = gated_delta_rule(
                q * D**-0.5, k, v, decay, beta, state, document=document
            )
        if cache is not None:
            cache.update(T, state, inputs)
        z = split_heads(self.in_proj_z(x), H)  # (B, H, T, Dv)
        heads = self.norm(heads.to(z.dtype)) * F.silu(z)  # (B, H, T, Dv)
        out: Tensor = self.out_proj(merge_heads(heads))
        if order is not None:  # the pads where they stood
            out = out.gather(1, order.argsort(dim=1).expand(-1, -1, E))
        return out  # (B, T, E)
