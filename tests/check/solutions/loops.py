"""As loops over rows, heads and queries, one number or vector at a time."""

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
    return torch.tensor([each / sum(e) for each in e], dtype=row.dtype)


def online_softmax(x, chunk):
    result = []
    for row in x.reshape(-1, x.shape[-1]).tolist():
        m, norm = -math.inf, 0.0
        for start in range(0, len(row), chunk):
            for value in row[start : start + chunk]:
                if value > m:
                    norm, m = norm * math.exp(m - value), value
                if value > -math.inf:
                    norm += math.exp(value - m)
        result.append([math.exp(v - m) / norm if norm else 0.0 for v in row])
    return torch.tensor(result, dtype=x.dtype).view(x.shape)


def causal_mask(T, S):
    return torch.tensor([[j <= i + S - T for j in range(S)] for i in range(T)])


def padding_mask(valid):
    return torch.stack([row.view(1, 1, -1) for row in valid])


def window_mask(T, S, size):
    at = range(S - T, S)
    return torch.tensor([[i - size < j <= i for j in range(S)] for i in at])


def document_mask(ids):
    def one(row):
        return [[j <= i and row[i] == row[j] for j in n] for i in n]

    n = range(ids.shape[1])
    return torch.tensor([[one(row)] for row in ids.tolist()])


def one_query(q, keys, values, seen):
    """The weighted mean of the values of the keys that a query sees."""
    if not seen.any():
        return torch.zeros_like(values[0])
    scores = [
        float(q.double() @ k.double()) / len(q) ** 0.5 for k in keys[seen]
    ]
    weights = one_row(torch.tensor(scores, dtype=torch.float64))
    mixed = sum(w * v for w, v in zip(weights, values[seen], strict=True))
    return mixed.to(q.dtype)


def sdpa(q, k, v, mask=None):
    B, H, T, _ = q.shape
    S, width = v.shape[2:]
    seen = torch.ones(1, 1, T, S, dtype=torch.bool) if mask is None else mask
    seen = seen.expand(B, H, T, S)
    out = torch.zeros(B, H, T, width, dtype=q.dtype)
    for b in range(B):
        for h in range(H):
            for t in range(T):
                out[b, h, t] = one_query(
                    q[b, h, t], k[b, h], v[b, h], seen[b, h, t]
                )
    return out


def gqa(x, w_q, w_k, w_v, w_o, n_heads, n_kv_heads, mask=None):
    D = x.shape[2] // n_heads
    heads = []
    for h in range(n_heads):
        group = h // (n_heads // n_kv_heads)
        own, shared = slice(h * D, h * D + D), slice(group * D, group * D + D)
        q, k, v = x @ w_q[own].T, x @ w_k[shared].T, x @ w_v[shared].T
        seen = mask
        if mask is not None and mask.dim() == 4 and mask.shape[1] > 1:
            seen = mask[:, h : h + 1]
        heads.append(sdpa(q[:, None], k[:, None], v[:, None], seen)[:, 0])
    return torch.cat(heads, dim=-1) @ w_o.T


def mha(x, w_q, w_k, w_v, w_o, n_heads, mask=None):
    return gqa(x, w_q, w_k, w_v, w_o, n_heads, n_heads, mask)


def mqa(x, w_q, w_k, w_v, w_o, n_heads, mask=None):
    return gqa(x, w_q, w_k, w_v, w_o, n_heads, 1, mask)


def mha_cached(x, w_q, w_k, w_v, w_o, n_heads, cache=None):
    """The cache is the list of all tokens so far, and all is computed again."""
    tokens = [*(cache or []), *x.unbind(1)]
    every = torch.stack(tokens, dim=1)
    S = len(tokens)
    out = mha(every, w_q, w_k, w_v, w_o, n_heads, causal_mask(S, S))
    return out[:, -x.shape[1] :], tokens


def rope(x, positions, theta=10000.0):
    out = x.clone()
    half = x.shape[-1] // 2
    for t, position in enumerate(positions.tolist()):
        for p in range(half):
            angle = position * theta ** (-p / half)
            a, b = x[:, :, t, p].double(), x[:, :, t, p + half].double()
            cos, sin = math.cos(angle), math.sin(angle)
            out[:, :, t, p] = a * cos - b * sin
            out[:, :, t, p + half] = a * sin + b * cos
    return out


def mha_to_gqa(w_k, w_v, n_heads, n_kv_heads):
    D, group = len(w_k) // n_heads, n_heads // n_kv_heads

    def pooled(w):
        heads = w.split(D)
        groups = [
            heads[g * group : g * group + group] for g in range(n_kv_heads)
        ]
        return torch.cat([sum(some) / group for some in groups])

    return pooled(w_k), pooled(w_v)


def merge(outs, lses):
    out, lse = outs[0].double(), lses[0].double()
    for other, other_lse in zip(outs[1:], lses[1:], strict=True):
        both = torch.logaddexp(lse, other_lse.double())
        safe = both.masked_fill(both == -math.inf, 0)
        mine, its = (lse - safe).exp(), (other_lse - safe).exp()
        out = mine[..., None] * out + its[..., None] * other
        lse = both
    if len(outs) == 1:
        out = out * (lse > -math.inf)[..., None]
    return out.to(outs[0].dtype), lse


def streaming_mask(T, S, first, window):
    return torch.tensor(
        [
            [j <= i and (j < first or i - j < window) for j in range(S)]
            for i in range(S - T, S)
        ]
    )


def attention_with_sinks(q, k, v, sinks, mask=None):
    """The share that the keys keep, by the log-sum-exp."""
    scores = q.double() @ k.double().mT / q.shape[-1] ** 0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, -1e300)
    out = sdpa(q, k, v, mask)
    for h, sink in enumerate(sinks.tolist()):
        lse = scores[:, h].logsumexp(-1, keepdim=True)
        out[:, h] *= torch.sigmoid(lse - sink).to(q.dtype)
    return out


def slopes(n_heads):
    if n_heads & (n_heads - 1) == 0:
        ratio = 2 ** (-8 / n_heads)
        return torch.tensor([ratio ** (n + 1) for n in range(n_heads)])
    below = 2 ** math.floor(math.log2(n_heads))
    more = slopes(2 * below)[0::2][: n_heads - below]
    return torch.cat((slopes(below), more))


def alibi(n_heads, T, S=None):
    S = T if S is None else S
    result = torch.zeros(n_heads, T, S)
    for h, slope in enumerate(slopes(n_heads)):
        for t in range(T):
            for j in range(S):
                result[h, t, j] = -slope * abs(S - T + t - j)
    return result


def biased_attention(q, k, v, bias=None, softcap=None, mask=None):
    B, H, T, D = q.shape
    scores = torch.einsum("bhtd,bhsd->bhts", q.double(), k.double()) / D**0.5
    scores = scores if bias is None else scores + bias
    if softcap is not None:
        scores = (scores / softcap).tanh() * softcap
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    weights = torch.stack([one_row(row) for row in scores.view(-1, k.shape[2])])
    return (weights.view(B, H, T, -1) @ v.double()).to(q.dtype)


def todays_heads(
    q, k, v, gate, q_weight, k_weight, positions, softcap, sinks, mask
):
    wide = torch.promote_types(q.dtype, torch.float32)

    def prepared(x, weight):
        x = torch.nn.functional.rms_norm(x.to(wide), x.shape[-1:], None, 1e-6)
        return rope(x * weight, positions)

    q_, k_ = prepared(q, q_weight), prepared(k, k_weight)
    scores = softcap * torch.tanh(q_ @ k_.mT / q.shape[-1] ** 0.5 / softcap)
    e = scores.exp() * mask  # of at most `softcap`
    weights = e / (
        e.sum(-1, keepdim=True) + sinks.to(wide)[:, None, None].exp()
    )
    return (weights @ v.to(wide) * gate.to(wide).sigmoid()).to(q.dtype)


def linear(f, factor):
    return torch.tensor([each / factor for each in f.tolist()]).double()


def ntk(f, factor):
    last = len(f) - 1
    result = [x / factor ** (p / last) for p, x in enumerate(f.tolist())]
    return torch.tensor(result, dtype=f.dtype)


def llama3(f, factor, length, low=1.0, high=4.0):
    result = []
    for each in f.tolist():
        turns = length * each / (2 * math.pi)
        if turns >= high:
            result.append(each)
        elif turns <= low:
            result.append(each / factor)
        else:
            share = (turns - low) / (high - low)
            result.append(share * each + (1 - share) * each / factor)
    return torch.tensor(result, dtype=f.dtype)


def yarn(f, factor, length, fast=32.0, slow=1.0):
    per_pair = -math.log(float(f[1]))

    def pair(turns):
        return (math.log(length) - math.log(2 * math.pi * turns)) / per_pair

    first, last = max(math.floor(pair(fast)), 0), math.ceil(pair(slow))
    result = []
    for p, each in enumerate(f.tolist()):
        if p <= first:
            result.append(each)
        elif p >= last:
            result.append(each / factor)
        else:
            share = (p - first) / (last - first)
            result.append(each * (1 - share) + each / factor * share)
    return torch.tensor(result, dtype=f.dtype), 1 + math.log(factor) / 10


class RingKVCache:
    """A list of slots, each with a token's key, value and position."""

    def __init__(self, W):
        self.slots, self.next = [None] * W, 0

    def append(self, k, v):
        zero = torch.zeros_like(k[:, :, 0]), torch.zeros_like(v[:, :, 0]), -1
        before = [slot or zero for slot in self.slots]
        new = []
        for t in range(k.shape[2]):
            new.append((k[:, :, t], v[:, :, t], self.next))
            self.slots[self.next % len(self.slots)] = new[-1]
            self.next += 1
        held = [slot or zero for slot in self.slots]
        keys, values, at = zip(
            *(held if len(new) == 1 else before + new), strict=True
        )
        return torch.stack(keys, 2), torch.stack(values, 2), torch.tensor(at)


def sees(i, j, W):
    rows = [[0 <= b <= a < b + W for b in j.tolist()] for a in i.tolist()]
    return torch.tensor(rows)
