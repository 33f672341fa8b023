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
    if shape[2] == 0:
        return v, state
    K = k.shape[1]  # heads that share a key are an axis of their own
    split = len(v), K, v.shape[1] // K
    v, g, state = (x.reshape(*split, *x.shape[2:]) for x in (v, decay, state))
    q, k = q[:, :, None], k[:, :, None]
    g = g if decay.dim() == 4 else g[..., None]
    factors = torch.stack((q, k) if beta is not None else (q,))
    decayed = _of_heads if g.shape[-1] == 1 else _of_channels
    products, since, until, keep = decayed(factors, k, g)
    if document is not None:
        d = document[:, None, None, :, None]  # (B, 1, 1, T, 1)
        products, since = products * (d == d.mT), since * (d == 0)
        last = d[..., -1:, :]
        until, keep = until * (d == last), keep * (last == 0)
    u = v
    if beta is not None:
        b = beta.reshape(*split, beta.shape[2], 1)
        u = torch.linalg.solve_triangular(
            b * products[1],  # of it, what stands below the diagonal is read
            b * (v - since[1] @ state),
            upper=False,
            unitriangular=True,
        )
    out = _plus_product(since[0] @ state, products[0], u)
    state = _plus_product(keep.mT * state, until.mT, u)
    return out.reshape(shape), state.flatten(1, 2)


def _of_heads(x: Tensor, k: Tensor, g: Tensor) -> tuple[Tensor, ...]:
    """Products of each token's `x` with keys up to it, under the decay between.

    Returned with them are `x` decayed since the beginning, `k` decayed until
    the end, and the decay of all tokens. The decay between two tokens is the
    sum of what lies between them: the difference of two sums from the beginning
    would lose the digits that both have in common.
    """
    T = g.shape[-2]
    between = g.expand(*g.shape[:-1], T).tril(-1).cumsum(dim=-2)  # (..., T, T)
    decays, past = between.exp().tril(), g.cumsum(dim=-2).exp()
    until = decays[..., -1:, :].mT * k
    return (x @ k.mT) * decays, past * x, until, past[..., -1:, :]


def _of_channels(x: Tensor, k: Tensor, g: Tensor) -> tuple[Tensor, ...]:
    """The same for decays of channels, which stand inside the sum over them.

    Blocks of 1, 2, 4, ... tokens are joined in pairs: each `x` of the second
    and each key of the first have decayed to where they meet.
    """
    T, size = g.shape[-2], 16
    while size < T:  # a power of 2; a compiler makes a program for each
        size *= 2
    padding = (0, 0, 0, size - T)
    x, k, g = (F.pad(t, padding)[..., None, :] for t in (x, k.expand_as(g), g))
    products = (x * k).sum(dim=-1, keepdim=True)  # (..., blocks, 1, 1)
    keep = g.exp()
    x = x * keep
    while x.shape[-3] > 1:
        halves = (
            t.reshape(*t.shape[:-3], -1, 2, *t.shape[-2:])
            for t in (products, x, k, keep)
        )
        (p1, p2), (x1, x2), (k1, k2), (a1, a2) = (t.unbind(-3) for t in halves)
        first = F.pad(p1, (0, p1.shape[-1]))
        second = torch.cat((x2 @ k1.mT, p2), dim=-1)
        products = torch.cat((first, second), dim=-2)
        x, k = torch.cat((x1, x2 * a1), -2), torch.cat((k1 * a2, k2), -2)
        keep = a1 * a2
    x, k = (t[..., 0, :T, :] for t in (x, k))
    return products[..., 0, :T, :T], x, k, keep[..., 0, :, :]


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
    if getattr(torch.compiler, "is_exporting", bool)():
        return _exported(q, k, v, decay, state, beta, document, chunk)
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


def _exported(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    state: Tensor,
    beta: Tensor | None,
    document: Tensor | None,
    chunk: int,
) -> tuple[Tensor, Tensor]:
    """The same for `torch.export`: one operation for any number of chunks.

    A last chunk, or more of it, holds tokens that change nothing: a number of
    chunks that may be 1 would bind the program to it.
    """
    from torch._higher_order_ops.scan import scan as over_chunks

    T, device = q.shape[2], q.device
    n = (T - 1) // chunk + 2
    places = torch.arange(n, device=device)[:, None] * chunk
    places = (places + torch.arange(chunk, device=device)).clamp(max=T)
    parts = {"q": q, "k": k, "v": v, "decay": decay}
    if beta is not None:
        parts["beta"] = beta
    for name, x in parts.items():
        x = F.pad(x, (0, 0) * (x.dim() - 3) + (0, 1))  # a token of zeros
        parts[name] = x[:, :, places].movedim(2, 0)
    if document is not None:
        number = document[:, places.clamp(max=T - 1)]
        last = places[:, :1] - 1  # of the chunk before
        before = document[:, last.clamp(min=0)].where(last >= 0, 0)
        parts["document"] = (number - before).movedim(1, 0)

    def step(state: Tensor, part: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        out, state = quadratic(**part, state=state)
        return state, out

    state, outs = over_chunks(step, state, parts)
    t = torch.arange(T, device=device)
    return outs.movedim(0, 2)[:, :, t // chunk, t % chunk], state


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
