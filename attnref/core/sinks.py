"""Attention sinks: a logit per head that takes weight and has no value."""

# --8<-- [start:imports]
import torch
from torch import Tensor

# --8<-- [end:imports]


# --8<-- [start:sinks]
def add_sinks(out: Tensor, lse: Tensor, sinks: Tensor) -> tuple[Tensor, Tensor]:
    """Add sinks to an output and its log-sum-exp.

    `out` is `(B, H, T, Dv)`, `lse` `(B, H, T)` and `sinks` `(H,)`, one logit
    per query head. The sink takes `sigmoid(sink - lse)` of each row's weight
    and has no value. If you merge parts, add it once, after `merge`.

    Examples:
        >>> out, lse = torch.ones(1, 1, 1, 2), torch.zeros(1, 1, 1)
        >>> add_sinks(out, lse, torch.tensor([1.0]))[0]  # sigmoid(0 - 1)
        tensor([[[[0.2689, 0.2689]]]])
    """
    sink = sinks.to(lse.dtype)[:, None]  # (H, 1)
    # A query that sees no key has the log-sum-exp -inf, and -inf is no sink.
    low = torch.finfo(lse.dtype).min
    left = (lse.clamp(min=low) - sink).sigmoid()[..., None]
    return (out * left).to(out.dtype), torch.logaddexp(lse, sink)


# --8<-- [end:sinks]
