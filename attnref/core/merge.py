"""Attention over parts of the keys, merged into attention over all of them."""

# --8<-- [start:imports]
from collections.abc import Sequence
from functools import reduce

import torch
from torch import Tensor

from attnref.core.biases import Bias, place
from attnref.core.checks import check_sizes
from attnref.core.flash import flash_lse, parts
from attnref.core.inputs import check_attention
from attnref.core.masks import Causal, Mask, Window, part_of
from attnref.core.sinks import add_sinks

# --8<-- [end:imports]


# --8<-- [start:merge]
def merge(
    outs: Sequence[Tensor], lses: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """Merge outputs and log-sum-exps over parts of the keys into one of each.

    Each part has its output `(B, H, T, Dv)` and the log-sum-exp of its scores
    `(B, H, T)`. Each key belongs to one part. A part in which a query sees no
    key has the log-sum-exp -inf and does not count for this query.

    Examples:
        >>> outs = torch.zeros(1, 1, 1, 2), torch.ones(1, 1, 1, 2)
        >>> lses = torch.zeros(1, 1, 1), torch.ones(1, 1, 1)
        >>> merge(outs, lses)[0]
        tensor([[[[0.7311, 0.7311]]]])
    """
    if not outs or len(outs) != len(lses):
        raise ValueError(f"{len(outs)} outputs, {len(lses)} log-sum-exps")
    for out, lse in zip(outs, lses, strict=True):
        if out.shape[:-1] != lse.shape or out.shape != outs[0].shape:
            raise ValueError(
                f"an output of shape {tuple(out.shape)} with a log-sum-exp of "
                f"shape {tuple(lse.shape)}; the first output has shape "
                f"{tuple(outs[0].shape)}"
            )
    stacked = torch.stack([*lses])  # (..., B, H, T)
    peak = stacked.detach().amax(dim=0)  # (B, H, T)
    base = peak.clamp(min=torch.finfo(peak.dtype).min)
    exponentials = (stacked - base).exp()  # (..., B, H, T)
    # Part after part: `sum` would choose its order by the shape of the batch.
    total = reduce(torch.add, exponentials.unbind())  # (B, H, T)
    # A query that sees no key at all: zeros, and -inf, without NaN gradients.
    empty = total == 0
    total = total.clamp(min=1)  # it is below 1 there alone
    weights = (exponentials / total).unsqueeze(-1)  # (..., B, H, T, 1)
    # What does not count is left out: 0 * NaN would be NaN.
    absent = (stacked == -torch.inf).unsqueeze(-1)  # (..., B, H, T, 1)
    counted = torch.stack([*outs]).masked_fill(absent, 0)
    mixed = reduce(torch.add, (weights * counted).unbind())  # (B, H, T, Dv)
    lse = (base + total.log()).masked_fill(empty, -torch.inf)  # (B, H, T)
    return mixed.to(outs[0].dtype), lse


# --8<-- [end:merge]


# --8<-- [start:split]
def split_kv(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask = None,
    *,
    scale: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    bias: Tensor | Bias | None = None,
    splits: int = 4,
) -> Tensor:
    """The same as `sdpa`, with the keys in `splits` parts.

    The parts do not depend on each other: on a GPU each is computed by other
    processors, which keeps all of them busy even for a single query.
    """
    check_attention(q, k, v, mask, scale, softcap, sinks, bias)
    check_sizes(splits=splits)
    outs, lses, placed = [], [], place(bias, mask, q, k)
    size = max(1, -(-k.shape[2] // splits))
    for columns in parts(k.shape[2], size) or [slice(None)]:
        part_mask = part_of(mask, slice(None), columns)
        out, lse = flash_lse(
            q,
            k[:, :, columns],
            v[:, :, columns],
            part_mask,
            scale=scale,
            dropout=dropout,
            softcap=softcap,
            bias=None if placed is None else placed.part(slice(None), columns),
        )
        outs.append(out)
        lses.append(lse)
    out, lse = merge(outs, lses)
    return out if sinks is None else add_sinks(out, lse, sinks)[0]


# --8<-- [end:split]


# --8<-- [start:prefix]
def with_prefix(
    q: Tensor,
    prefix: tuple[Tensor, Tensor],
    k: Tensor,
    v: Tensor,
    mask: Mask = None,
    *,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attention of each row to a prefix that all rows share and to its tokens.

    `prefix` holds the keys and values `(1, K, P, D)` of the first `P` tokens,
    once for the whole batch; `k`, `v` and `mask` are those of the tokens after
    it. All queries see the whole prefix, so the queries of all rows are stacked
    into one row: its keys are read once, not once per row. A rule in `mask` is
    refused unless it is known to show the whole prefix, because it numbers the
    tokens from the end of the prefix. For the same reason a bias is not
    accepted: join the prefix and the tokens after it, and use `split_kv`.
    """
    check_attention(q, k, v, mask, scale, softcap, sinks)
    if len(prefix) != 2:
        raise ValueError(f"prefix holds {len(prefix)} tensors, not k and v")
    for name, shared, own in zip("kv", prefix, (k, v), strict=True):
        rows, K, *_, width = shared.shape
        if (rows, K, width) != (1, own.shape[1], own.shape[3]):
            raise ValueError(
                f"{name} of the prefix has shape {tuple(shared.shape)}; it "
                f"needs (1, {own.shape[1]}, P, {own.shape[3]})"
            )
    B, H, T, D = q.shape
    P, Dv = prefix[1].shape[2:]
    rule = getattr(mask, "rule", None)
    last = Window(
        max(1, P + k.shape[2])
    )  # reaches from the last query to the first
    for part in () if rule is None else rule.parts:
        if not (part.covers(Causal()) or part.covers(last)):
            raise ValueError(
                f"{part} may hide a part of the prefix of {P} tokens from a "
                "query; pass a mask of the tokens after it"
            )
    queries = q.transpose(0, 1).reshape(1, H, B * T, D)  # (1, H, B * T, D)
    shared, lse = flash_lse(queries, *prefix, scale=scale, softcap=softcap)
    shared = shared.view(H, B, T, Dv).transpose(0, 1)  # (B, H, T, Dv)
    lse = lse.view(H, B, T).transpose(0, 1)  # (B, H, T)
    own, own_lse = flash_lse(q, k, v, mask, scale=scale, softcap=softcap)
    out, lse = merge([shared, own], [lse, own_lse])
    if sinks is not None:
        out, _ = add_sinks(out, lse, sinks)
    return out


# --8<-- [end:prefix]
