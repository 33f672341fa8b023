"""Tensor parallelism: some heads per rank. Needs only PyTorch 2.5+.

GQA and MLA; group is a Group of ranks.py, weights are those of nn.Linear.
"""

import torch
import torch.nn.functional as F


class Enter(torch.autograd.Function):
    """From what all ranks hold to what one rank computes with it."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return ctx.group.total(grad), None


class Leave(torch.autograd.Function):
    """The sum of what all ranks computed."""

    @staticmethod
    def forward(ctx, x, group):
        return group.total(x)

    @staticmethod
    def backward(ctx, grad):
        return grad, None


def rows(w, heads, group, copied=False):
    """The rows of w (heads * D, E) that make the heads of this rank.

    copied, for keys and values: of fewer heads than ranks, several ranks hold
    the same one. A query head on two ranks would count twice in the output.
    """
    n, r = group.size, group.rank
    if heads % n and not (copied and n % heads == 0):
        raise ValueError(f"{heads} heads cannot be split over {n} ranks")
    first, count = r * heads // n, max(1, heads // n)
    return w.unflatten(0, (heads, -1))[first : first + count].flatten(0, 1)


def columns(w, heads, group):
    """The columns of w (E, heads * D) that read the heads of this rank."""
    return rows(w.mT, heads, group).mT


def copies(heads, group):
    """The ranks that hold the same heads: their gradients are summed."""
    count = max(1, group.size // heads)
    first = group.rank // count * count
    return group.part(range(first, first + count))


def heads(x, w, D):
    return F.linear(x, w).unflatten(2, (-1, D)).transpose(1, 2)


def same(x):
    return x


def gqa(x, w_q, w_k, w_v, w_o, D, group, turn=same):
    """Causal GQA on x (B, T, E), with the weights of the heads of this rank.

    turn is RoPE, or nothing.
    """
    x = Enter.apply(x, group)
    q, k, v = (heads(x, w, D) for w in (w_q, w_k, w_v))
    out = F.scaled_dot_product_attention(
        turn(q), turn(k), v, is_causal=True, enable_gqa=True
    )
    out = F.linear(out.transpose(1, 2).flatten(2), w_o)  # one term of n
    return Leave.apply(out, group)  # add a bias of w_o after the sum


def mla(x, w_q, w_down, w_up, w_o, Dn, Dv, group, turn=same):
    """Causal MLA: w_down (R + Dr, E) is whole on all ranks, as is its cache.

    The latent enters, not the x below it: so all ranks compute the same, whole
    gradient of w_down.
    """
    Dr = w_q.shape[0] // (w_up.shape[0] // (Dn + Dv)) - Dn
    latent = Enter.apply(F.linear(x, w_down), group)  # (B, T, R + Dr); cached
    R = latent.shape[2] - Dr
    up = heads(latent[..., :R], w_up, Dn + Dv)
    k, v = up.split((Dn, Dv), dim=3)
    rotated = turn(latent[:, None, :, R:]).expand(-1, k.shape[1], -1, -1)
    k = torch.cat((k, rotated), dim=3)  # (B, H, T, Dn + Dr)
    q = heads(Enter.apply(x, group), w_q, Dn + Dr)
    q = torch.cat((q[..., :Dn], turn(q[..., Dn:])), dim=3)
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    out = F.linear(out.transpose(1, 2).flatten(2), w_o)
    return Leave.apply(out, group)
