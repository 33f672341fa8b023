"""Attention over parts of the keys, merged into attention over all of them."""

# --8<-- [start:imports]
from collections.abc import Sequence

import torch
from torch import Tensor

from attnref.core.checks import check_sizes
from attnref.core.flash import flash_lse, parts
from attnref.core.masks import Mask, part_of
from attnref.core.softmax import softmax

# --8<-- [end:imports]


# --8<-- [start:merge]
def merge(
    outs: Sequence[Tensor], lses: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp over all keys, from those over parts of them.

    Each part has its output `(B, H, T, Dv)` and the log-sum-exp of its scores
    `(B, H, T)`. Each key belongs to one part. A part in which a query sees no
    key has the log-sum-exp -inf and does not count for this query.

    Examples:
        >>> outs = torch.zeros(1, 1, 1, 2), torch.ones(1, 1, 1, 2)
        >>> lses = torch.zeros(1, 1, 1), torch.ones(1, 1, 1)
        >>> merge(outs, lses)[0]
        tensor([[[[0.7311, 0.7311]]]])
    """
    stacked = torch.stack([*lses])  # (n, B, H, T)
    weights = softmax(stacked, dim=0).unsqueeze(-1)  # (n, B, H, T, 1)
    mixed = (weights * torch.stack([*outs])).sum(dim=0)
    return mixed.to(outs[0].dtype), stacked.logsumexp(dim=0)


# --8<-- [end:merge]


# --8<-- [start:split]
def split_kv(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask = None,
    *,
    scale: float | None = None,
    splits: int = 4,
) -> Tensor:
    """The same as `sdpa`, with the keys in `splits` parts.

    The parts do not depend on each other: on a GPU each is computed by other
    processors, which keeps all of them busy even for a single query.
    """
    check_sizes(splits=splits)
    outs, lses = [], []
    for some in parts(k.shape[2], -(-k.shape[2] // splits)):
        seen = part_of(mask, slice(None), some)
        out, lse = flash_lse(q, k[:, :, some], v[:, :, some], seen, scale=scale)
        outs.append(out)
        lses.append(lse)
    return merge(outs, lses)[0]


# --8<-- [end:split]


# --8<-- [start:shared]
def with_prefix(
    q: Tensor,
    prefix: tuple[Tensor, Tensor],
    k: Tensor,
    v: Tensor,
    mask: Mask = None,
    *,
    scale: float | None = None,
) -> Tensor:
    """Attention of each row to a prefix that all rows share, and to its own.

    `prefix` holds the keys and values `(1, K, P, D)` of the first `P` tokens,
    once for the whole batch; `k`, `v` and `mask` are those of the tokens after
    it. All queries see the whole prefix, so those of all rows are stacked into
    one row: its keys are read once and not once per row.
    """
    B, H, T, D = q.shape
    rows = q.transpose(0, 1).reshape(1, H, B * T, D)  # (1, H, B * T, D)
    shared, lse = flash_lse(rows, *prefix, scale=scale)
    shared = shared.view(H, B, T, -1).transpose(0, 1)  # (B, H, T, Dv)
    lse = lse.view(H, B, T).transpose(0, 1)  # (B, H, T)
    own, own_lse = flash_lse(q, k, v, mask, scale=scale)
    return merge([shared, own], [lse, own_lse])[0]


# --8<-- [end:shared]
