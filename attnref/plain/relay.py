"""A state relayed from rank to rank, of a recurrent layer. Needs only PyTorch.

Tokens are split in their order; group is a Group of ranks.py.
"""

import torch
import torch.nn.functional as F


class Relay(torch.autograd.Function):
    """The state before this part: this part maps a state S to A S + B."""

    @staticmethod
    def forward(ctx, A, B, first, group):
        r, last = group.rank, group.size - 1
        state = first.clone(memory_format=torch.contiguous_format)
        group.start([], [(r - 1, state)] if r else [])()
        group.start([(r + 1, A @ state + B)] if r < last else [], [])()
        ctx.save_for_backward(A, state)
        ctx.group = group
        return state

    @staticmethod
    def backward(ctx, dstate):
        A, state = ctx.saved_tensors
        group, r, last = ctx.group, ctx.group.rank, ctx.group.size - 1
        dafter = torch.zeros_like(state)  # what later parts pass back
        group.start([], [(r + 1, dafter)] if r < last else [])()
        dstate = dstate + A.mT @ dafter
        group.start([(r - 1, dstate)] if r else [], [])()
        dfirst = torch.zeros_like(dstate) if r else dstate
        return dafter @ state.mT, dafter, dfirst, None


class Ahead(torch.autograd.Function):
    """x of the rank that is `steps` ahead of this one, or x0."""

    @staticmethod
    def forward(ctx, x, x0, steps, group):
        ctx.steps, ctx.group = steps, group
        return fetch(x, x0, steps, group)

    @staticmethod
    def backward(ctx, grad):
        grad = fetch(grad, torch.zeros_like(grad), -ctx.steps, ctx.group)
        return grad, None, None, None


def fetch(x, x0, steps, group):
    got = x0.clone(memory_format=torch.contiguous_format)
    to, source, ranks = (
        group.rank + steps,
        group.rank - steps,
        range(group.size),
    )
    group.start(
        [(to, x)] if to in ranks else [],
        [(source, got)] if source in ranks else [],
    )()
    return got


def prefix(A, B, group):
    """What Relay returns from zeros, in 1 + log2(n) steps of all ranks."""
    pair, D = torch.cat((B, A), dim=-1), A.shape[-1]
    none = torch.zeros_like(pair)
    none[..., -D:] = torch.eye(D, dtype=A.dtype, device=A.device)
    steps = 1
    while steps < group.size:
        before = Ahead.apply(pair, none, steps, group)
        pair = pair[..., -D:] @ before + F.pad(pair[..., :-D], (0, D))
        steps *= 2
    return Ahead.apply(pair, none, 1, group)[..., :-D]


def relay(recurrence, q, k, v, *gates, group, first=None, scan=False):
    """What recurrence(q, k, v, *gates, state) reads, on several ranks.

    It is linear in the state, such as delta_rule. One run tells all: v gets D
    columns of zeros, and the state begins as [0 | 1]. It ends as [B | A], and
    reads [local | R], so that any S before it adds R S and ends as A S + B.
    Returns the reads (B, H, T, Dv) and the state after the part of this rank.
    """
    D, Dv = k.shape[-1], v.shape[-1]
    wide = torch.promote_types(v.dtype, torch.float32)
    state = v.new_zeros(*v.shape[:2], D, Dv + D, dtype=wide)
    state[..., Dv:] = torch.eye(D, dtype=wide, device=v.device)
    reads, end = recurrence(q, k, F.pad(v, (0, D)), *gates, state)
    A, B = end[..., Dv:], end[..., :Dv]
    group.check(A, B)  # NCCL: all ranks take part in the first message
    if scan:
        before = prefix(A, B, group)
    else:
        first = torch.zeros_like(B) if first is None else first
        before = Relay.apply(A, B, first, group)  # (B, H, D, Dv)
    return reads[..., :Dv] + reads[..., Dv:] @ before, A @ before + B


def after_tail(x, width, group):
    """x (B, T, E) after the last `width` inputs of the rank before.

    A convolution over width + 1 tokens reads them; zeros on the first rank.
    """
    if x.shape[1] < width:
        raise ValueError(f"{x.shape[1]} tokens on a rank, but {width=}")
    tail = x[:, -width:]
    before = Ahead.apply(tail, torch.zeros_like(tail), 1, group)
    return torch.cat((before, x), dim=1)
