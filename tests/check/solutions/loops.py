"""Loops over rows, heads and queries, with one number or vector at a time.

Code that computes with Python's numbers has no gradients, its cache is a list
and its masks are made of lists: it is right and has to pass.
"""

import math

import torch


def softmax(x, dim=-1):
    rows = x.movedim(dim, -1)
    out = [one_row(row) for row in rows.reshape(-1, x.shape[dim])]
    return torch.stack(out).view(rows.shape).movedim(-1, dim)


def one_row(row):
    values = row.tolist()
    largest = max(values)
    if largest == -math.inf:
        return torch.zeros_like(row)
    e = [math.exp(value - largest) for value in values]
    return torch.tensor([x / sum(e) for x in e], dtype=row.dtype)


def causal_mask(T, S):
    return torch.tensor([[j <= i + S - T for j in range(S)] for i in range(T)])


def padding_mask(valid):
    return torch.stack([row.view(1, 1, -1) for row in valid])


def window_mask(T, S, size):
    rows = range(S - T, S)
    return torch.tensor([[i - size < j <= i for j in range(S)] for i in rows])


def document_mask(ids):
    def one(row):
        return [[j <= i and row[i] == row[j] for j in n] for i in n]

    n = range(ids.shape[1])
    return torch.tensor([[one(row)] for row in ids.tolist()])


def one_query(q, keys, values, mask):
    """The weighted mean of the values of the keys that a query sees."""
    if not mask.any():
        return torch.zeros_like(values[0])
    scores = [
        float(q.double() @ k.double()) / len(q) ** 0.5 for k in keys[mask]
    ]
    weights = one_row(torch.tensor(scores, dtype=torch.float64))
    mean = sum(w * v for w, v in zip(weights, values[mask], strict=True))
    return mean.to(q.dtype)


def sdpa(q, k, v, mask=None):
    B, H, T, _ = q.shape
    S, width = v.shape[2:]
    mask = torch.ones(1, 1, T, S, dtype=torch.bool) if mask is None else mask
    mask = mask.expand(B, H, T, S)
    out = torch.zeros(B, H, T, width, dtype=q.dtype)
    for b in range(B):
        for h in range(H):
            for t in range(T):
                out[b, h, t] = one_query(
                    q[b, h, t], k[b, h], v[b, h], mask[b, h, t]
                )
    return out


def gqa(x, w_q, w_k, w_v, w_o, n_heads, n_kv_heads, mask=None):
    D = x.shape[2] // n_heads
    heads = []
    for h in range(n_heads):
        group = h // (n_heads // n_kv_heads)
        rows, kv_rows = slice(h * D, h * D + D), slice(group * D, group * D + D)
        q, k, v = x @ w_q[rows].T, x @ w_k[kv_rows].T, x @ w_v[kv_rows].T
        head_mask = mask
        if mask is not None and mask.dim() == 4 and mask.shape[1] > 1:
            head_mask = mask[:, h : h + 1]
        heads.append(sdpa(q[:, None], k[:, None], v[:, None], head_mask)[:, 0])
    return torch.cat(heads, dim=-1) @ w_o.T


def mha(x, w_q, w_k, w_v, w_o, n_heads, mask=None):
    return gqa(x, w_q, w_k, w_v, w_o, n_heads, n_heads, mask)


def mqa(x, w_q, w_k, w_v, w_o, n_heads, mask=None):
    return gqa(x, w_q, w_k, w_v, w_o, n_heads, 1, mask)


def mha_cached(x, w_q, w_k, w_v, w_o, n_heads, cache=None):
    """The cache is the list of all tokens so far, and all is computed again."""
    tokens = [*(cache or []), *x.unbind(1)]
    text = torch.stack(tokens, dim=1)
    S = len(tokens)
    out = mha(text, w_q, w_k, w_v, w_o, n_heads, causal_mask(S, S))
    return out[:, -x.shape[1] :], tokens


def rope(x, positions, theta=10000.0):
    out = x.clone()
    n_pairs = x.shape[-1] // 2
    for t, position in enumerate(positions.tolist()):
        for p in range(n_pairs):
            angle = position * theta ** (-p / n_pairs)
            a, b = x[:, :, t, p].double(), x[:, :, t, p + n_pairs].double()
            cos, sin = math.cos(angle), math.sin(angle)
            out[:, :, t, p] = a * cos - b * sin
            out[:, :, t, p + n_pairs] = a * sin + b * cos
    return out


class RingKVCache:
    """A list of slots, each with a token's key, value and position."""

    def __init__(self, W):
        self.slots, self.next = [None] * W, 0

    def append(self, k, v):
        zero = torch.zeros_like(k[:, :, 0]), torch.zeros_like(v[:, :, 0]), -1
        past = [slot or zero for slot in self.slots]
        tokens = []
        for t in range(k.shape[2]):
            tokens.append((k[:, :, t], v[:, :, t], self.next))
            self.slots[self.next % len(self.slots)] = tokens[-1]
            self.next += 1
        slots = [slot or zero for slot in self.slots]
        keys, values, p = zip(
            *(slots if len(tokens) == 1 else past + tokens), strict=True
        )
        return torch.stack(keys, 2), torch.stack(values, 2), torch.tensor(p)


def sees(i, j, W):
    rows = [[0 <= b <= a < b + W for b in j.tolist()] for a in i.tolist()]
    return torch.tensor(rows)


def ring_attention(q, k, v, positions, group, first=None, sinks=None):
    """Keys and values arrive as one tensor, and each query reads a list."""
    arrived, letter = [], [torch.cat((k, v), dim=-1), positions]
    for _ in range(group.size):
        arrived.append(letter)
        letter = group.shift(letter)()
    keys = torch.cat([x for x, _ in arrived], dim=2)
    where = torch.cat([j for _, j in arrived], dim=1)
    keys, values = keys.split((k.shape[3], v.shape[3]), dim=-1)
    B, H, T, _ = q.shape
    out, G = torch.zeros(B, H, T, v.shape[3], dtype=q.dtype), H // k.shape[1]
    for b, h, t in (
        (b, h, t) for b in range(B) for h in range(H) for t in range(T)
    ):
        i, j = positions[b, t], where[b]
        mask = (j >= 0) & (j <= i)
        if first is not None:
            mask &= j >= first[b, t]
        if not mask.any():
            continue
        scores = (keys[b, h // G, mask].double() @ q[b, h, t].double()).tolist()
        scores = [x / q.shape[3] ** 0.5 for x in scores]
        if sinks is not None:
            scores.append(float(sinks[h]))
        weights = one_row(torch.tensor(scores, dtype=torch.float64))
        seen = values[b, h // G, mask].double()
        out[b, h, t] = (weights[: len(seen)] @ seen).to(q.dtype)
    return out
