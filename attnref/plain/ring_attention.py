"""Ring attention: keys travel from rank to rank. Needs only PyTorch.

Forward, backward and zigzag; group is a Group of ranks.py.
"""

import torch


def place(T, n, how="zigzag"):
    """The positions (n, t) of n ranks: two of 2 n chunks each; -1 = a pad."""
    positions = torch.arange(-(-T // (2 * n)) * 2 * n)
    positions = positions.where(positions < T, -1)
    if how == "striped":
        return positions.view(-1, n).T
    chunks = positions.view(2 * n, -1)
    if how == "zigzag":  # the r-th chunk, and the r-th from the end
        return torch.cat((chunks[:n], chunks.flip(0)[:n]), dim=1)
    return chunks.view(n, -1)


def join(parts, placed):
    """The whole (B, H, T, D) from the parts (B, H, t, D) of all ranks."""
    order = placed.flatten().argsort()[(placed < 0).sum() :]
    return torch.cat(parts, dim=2)[:, :, order]


def causal(i, j):
    """Which keys at positions j the queries at i see."""
    return j <= i


def visible(rule, i, j):
    """The same for i and j of all rows (B, T); a pad is seen by no query."""
    return rule(i[:, :, None], j[:, None]) & (j >= 0)[:, None]


def weights(q, k, lse, keep):
    """exp(scores - lse), zero where a key is not seen."""
    scores = (q @ k.mT).masked_fill(~keep, -torch.inf)
    if lse is None:
        lse = scores.logsumexp(dim=-1, keepdim=True)
    finite = lse.clamp(min=torch.finfo(lse.dtype).min)  # no -inf - -inf
    return (scores - finite).exp(), lse


class Ring(torch.autograd.Function):
    """q (B, K, G * T, D), scaled; k, v (B, K, T, D); positions (B, T).

    lse (B, K, G * T, 1), at first the sinks; keep (B, 1, G * T, T).
    """

    @staticmethod
    def forward(ctx, q, k, v, sinks, positions, group, rule):
        G, wide = q.shape[2] // k.shape[2], sinks.dtype
        out, lse = v.new_zeros(*q.shape[:3], v.shape[3], dtype=wide), sinks
        keys = [k, v, positions]
        for step in range(group.size):
            last = step == group.size - 1
            k_now, v_now, j = keys
            arriving = None if last else group.shift(keys)  # while we compute
            keep = visible(rule, positions, j)
            if keep.any():
                keep = keep.repeat(1, G, 1)[:, None]
                part, more = weights(q, k_now.to(wide), None, keep)
                total = torch.logaddexp(lse, more)
                finite = total.clamp(min=torch.finfo(wide).min)
                out = (lse - finite).exp() * out
                out = out + (more - finite).exp() * (part @ v_now.to(wide))
                lse = total
            keys = None if last else arriving()
        ctx.save_for_backward(q, k, v, sinks, positions, out, lse)
        ctx.group, ctx.rule = group, rule
        return out

    @staticmethod
    def backward(ctx, dout):
        q, k, v, sinks, positions, out, lse = ctx.saved_tensors
        group, G, wide = ctx.group, q.shape[2] // k.shape[2], out.dtype
        inner = (dout * out).sum(dim=-1, keepdim=True)
        dq = torch.zeros_like(q)
        grads = [torch.zeros_like(x, dtype=wide) for x in (k, v)]
        keys = [k, v, positions]
        for step in range(group.size):
            last = step == group.size - 1
            k_now, v_now, j = keys
            arriving = None if last else group.shift(keys)
            keep = visible(ctx.rule, positions, j)
            if keep.any():
                keep = keep.repeat(1, G, 1)[:, None]
                p, _ = weights(q, k_now.to(wide), lse, keep)
                dscores = p * (dout @ v_now.to(wide).mT - inner)
                dq += dscores @ k_now.to(wide)
                grads[0] = grads[0] + dscores.mT @ q
                grads[1] = grads[1] + p.mT @ dout
            keys = None if last else arriving()
            grads = group.shift(grads)()  # with their keys; at last, home
        finite = lse.clamp(min=torch.finfo(wide).min)
        dsinks = -(sinks - finite).exp() * inner
        dk, dv = grads[0].to(k.dtype), grads[1].to(v.dtype)
        return dq, dk, dv, dsinks, None, None, None


def ring_attention(q, k, v, positions, group, rule=causal, sinks=None):
    """Attention of the queries of this rank to the keys of all ranks.

    q (B, H, T, D) and k, v (B, K, T, D), after RoPE, are of T tokens at
    positions (B, T), or (T,), in the whole text; -1 = a pad, whose key no query
    sees. rule(i, j) gets (B, T, 1) and (B, 1, T). sinks (H,) count once; each
    rank gets the gradient of its own queries for them: sum it over the ranks.
    """
    group.check(q, k, v)
    B, H, T, D = q.shape
    wide = torch.promote_types(q.dtype, torch.float32)
    if sinks is None:
        sinks = q.new_full((H,), -torch.inf)
    sinks = sinks.to(wide).view(1, -1, 1, 1)  # a key of no value, seen by all
    sinks = sinks.expand(B, H, T, 1).unflatten(1, (k.shape[1], -1))
    scaled = (q.to(wide) * D**-0.5).unflatten(1, (k.shape[1], -1)).flatten(2, 3)
    positions = positions.expand(B, T)
    out = Ring.apply(scaled, k, v, sinks.flatten(2, 3), positions, group, rule)
    return out.view(B, H, T, v.shape[3]).to(q.dtype)
