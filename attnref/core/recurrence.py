"""A state that is written and read: one recurrence in three equal forms."""

# --8<-- [start:imports]
import torch
import torch.nn.functional as F
from torch import Tensor

# --8<-- [end:imports]


# --8<-- [start:units]
def units(x: Tensor) -> Tensor:
    """Vectors of length 1, as the delta rule needs its keys."""
    return x * (x.square().sum(dim=-1, keepdim=True) + 1e-6).rsqrt()


# --8<-- [end:units]


# --8<-- [start:scan]
def _plus_product(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """`x + a @ b`, without storing the product: a step of decoding needs it."""
    three = (t.flatten(0, -3) for t in (x, a, b))
    return torch.baddbmm(*three).view(x.shape)


def scan(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    state: Tensor,
    *,
    beta: Tensor | None = None,
    document: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Write one token after the other into the state, and read it.

    `S_t = diag(e^g_t) S_{t-1} + k_t u_t^T`, and then `q_t` reads `S_t`. `u_t`
    is `v_t` or, with `beta`, by the delta rule
    `beta_t (v_t - (diag(e^g_t) S_{t-1})^T k_t)`: what is stored at `k_t` moves
    towards `v_t`.

    `v` is `(B, H, T, Dv)`, `q` and `k` are `(B, K, T, D)`, and `K` divides `H`:
    heads that follow each other share a key. `decay`, the `g`, at most 0, is
    `(B, H, T)` or, for a decay per channel of the key, `(B, H, T, D)`; `beta`
    is `(B, H, T)`. Returned are the reads `(B, H, T, Dv)` and the state
    `(B, H, D, Dv)` after the last token.

    Where documents are packed, `document` `(B, T)` numbers them: 0 is the
    document of the state before. Nothing passes from one to the next.
    """
    groups = state.shape[1] // k.shape[1]
    q, k = (x.repeat_interleave(groups, dim=1) for x in (q, k))
    g = decay if decay.dim() == 4 else decay[..., None]
    outs = []
    for t in range(q.shape[2]):
        now = slice(t, t + 1)
        keep = g[:, :, now].mT.exp()  # of each channel, or of all of them
        if document is not None:
            same = document == F.pad(document, (1, -1))  # as the token before
            keep = keep * same[:, now, None, None]
        state, u = keep * state, v[:, :, now]
        if beta is not None:
            u = beta[:, :, now, None] * (u - k[:, :, now] @ state)
        state = _plus_product(state, k[:, :, now].mT, u)  # (B, H, D, Dv)
        outs.append(q[:, :, now] @ state)  # after the write
    return torch.cat(outs, dim=2) if outs else v, state


# --8<-- [end:scan]


# --8<-- [start:quadratic]
_BLOCK = 16  # tokens between which decays are taken channel by channel


def quadratic(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    state: Tensor,
    *,
    beta: Tensor | None = None,
    document: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """What `scan` returns, from products of all queries with all keys.

    It is attention without softmax, under the decay between two tokens. With
    the delta rule, all `u` together solve one triangular system.
    """
    shape = v.shape
    K = k.shape[1]  # heads that share a key are an axis of their own
    split = len(v), K, v.shape[1] // K
    v, g, state = (x.reshape(*split, *x.shape[2:]) for x in (v, decay, state))
    q, k = q[:, :, None], k[:, :, None]
    g = (g if decay.dim() == 4 else g[..., None]).cumsum(dim=3)
    past = g.exp()  # what is left of the state before
    left = (g[..., -1:, :] - g).exp()  # and, at the end, of each token
    keep = past[..., -1:, :].mT
    both = torch.stack((q, k) if beta is not None else (q,))
    products = _decayed_products(both, k, g)  # (..., T, T)
    if document is not None:
        d = document[:, None, None, :, None]  # (B, 1, 1, T, 1)
        products = products * (d == d.mT)
        past = past * (d == 0)
        left, keep = left * (d == d[..., -1:, :]), keep * (d[..., -1:, :] == 0)
    u = v
    if beta is not None:
        b = beta.reshape(*split, beta.shape[2], 1)
        u = torch.linalg.solve_triangular(
            b * products[1],  # of it, what stands below the diagonal is read
            b * (v - (past * k) @ state),
            upper=False,
            unitriangular=True,
        )
    out = _plus_product((past * q) @ state, products[0], u)
    state = _plus_product(keep * state, (left * k).mT, u)
    return out.reshape(shape), state.flatten(1, 2)


def _decayed_products(x: Tensor, k: Tensor, g: Tensor) -> Tensor:
    """Products of each token's `x` with keys up to it, under the decay between.

    Always of the difference of two sums: `e^g` apart from `e^-g` would
    overflow. Decays of channels stand inside the sum over channels. There, a
    block of tokens meets all earlier ones at its beginning: the decay until
    then and the decay from then on are both at most 1.
    """
    if g.shape[-1] == 1:
        return (x @ k.mT) * (g - g.mT).tril().exp().tril()
    rows, n, T = [], 0, g.shape[-2]
    while n < T:
        now = slice(n, n + _BLOCK)
        x_n, k_n, g_n = x[..., now, :], k[..., now, :], g[..., now, :]
        between = (g_n[..., None, :] - g_n[..., None, :, :]).clamp(max=0).exp()
        within = (between * k_n[..., None, :, :]) @ x_n[..., None]
        parts = [within[..., 0].tril()]
        if n:
            start = g[..., n - 1 : n, :]
            earlier = k[..., :n, :] * (start - g[..., :n, :]).exp()
            parts.insert(0, (x_n * (g_n - start).exp()) @ earlier.mT)
        row = torch.cat(parts, dim=-1)
        rows.append(F.pad(row, (0, T - row.shape[-1])))
        n += _BLOCK
    return torch.cat(rows, dim=-2)


# --8<-- [end:quadratic]


# --8<-- [start:chunked]
def chunked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    state: Tensor,
    *,
    beta: Tensor | None = None,
    document: Tensor | None = None,
    chunk: int = 64,
) -> tuple[Tensor, Tensor]:
    """What `scan` returns: `quadratic` in a chunk, the state between them."""
    form = scan if q.shape[2] == 1 else quadratic
    outs: list[Tensor] = []
    n, before = 0, 0 if document is None else document[:, :1] * 0
    while n < q.shape[2]:  # `range` would bind a compiler to this length
        part = slice(n, n + chunk)
        n += chunk
        d = None
        if document is not None:
            d = document[:, part] - before
            before = document[:, part][:, -1:]
        q_n, k_n, v_n, g_n = (x[:, :, part] for x in (q, k, v, decay))
        b = None if beta is None else beta[:, :, part]
        out, state = form(q_n, k_n, v_n, g_n, state, beta=b, document=d)
        outs.append(out)
    return torch.cat(outs, dim=2) if outs else v, state


# --8<-- [end:chunked]


# --8<-- [start:drift]
@torch.no_grad()
def drift(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    *,
    beta: Tensor | None = None,
    dtype: torch.dtype = torch.bfloat16,
) -> Tensor:
    """The errors of reads, `(T,)`, if the state is stored in `dtype`.

    Each is relative to the largest element that is read at that token. The
    arguments are those of `scan`, from an empty state.
    """
    B, H, T, Dv = v.shape
    exact = rounded = q.new_zeros(B, H, q.shape[3], Dv)
    errors = []
    for t in range(T):
        now = slice(t, t + 1)
        q_t, k_t, v_t, g_t = (x[:, :, now] for x in (q, k, v, decay))
        b = None if beta is None else beta[:, :, now]
        want, exact = scan(q_t, k_t, v_t, g_t, exact, beta=b)
        got, rounded = scan(q_t, k_t, v_t, g_t, rounded, beta=b)
        rounded = rounded.to(dtype).to(q.dtype)
        errors.append((got - want).abs().max() / want.abs().max())
    return torch.stack(errors)


# --8<-- [end:drift]
