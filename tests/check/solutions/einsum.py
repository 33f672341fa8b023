"""In another form than this package: by einsum, with the heads kept as an axis.

Tests plant mistakes in these lines.
"""

import math

import torch
from torch import einsum


def softmax(x, dim=-1):
    largest = x.float().amax(dim, keepdim=True).to(x.dtype)
    largest = largest.where(largest > -torch.inf, 0)
    e = torch.exp((x - largest).to(torch.promote_types(x.dtype, torch.float32)))
    total = e.sum(dim, keepdim=True)
    weights = e / total.where(total > 0, 1)
    return weights.to(x.dtype)


def online_softmax(x, chunk):
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    m = torch.full_like(wide[..., :1], -1e30)
    norm = torch.zeros_like(m)
    for start in range(0, x.shape[-1], chunk):
        piece = wide[..., start : start + chunk]
        m_new = torch.maximum(m, piece.amax(-1, keepdim=True))
        norm = norm * torch.exp(m - m_new)
        norm = norm + torch.exp(piece - m_new).sum(-1, keepdim=True)
        m = m_new
    weights = torch.exp(wide - m) / norm.clamp(min=1e-30)
    return weights.to(x.dtype)


def causal_mask(T, S):
    past = S - T
    return torch.arange(S) <= torch.arange(T).unsqueeze(1) + past


def padding_mask(valid):
    return valid.unsqueeze(1).unsqueeze(1)


def window_mask(T, S, size):
    distance = torch.arange(S - T, S).unsqueeze(1) - torch.arange(S)
    return (distance >= 0) & (distance < size)


def document_mask(ids):
    same = ids.unsqueeze(2) == ids.unsqueeze(1)
    earlier = torch.ones_like(same[0]).tril()
    return (same & earlier).unsqueeze(1)


def attention(q, k, v, mask=None):
    """q, k, v (B, T, H, D), mask (B, H, T, S): the output is (B, T, H, Dv)."""
    scores = einsum("bthd,bshd->bhts", q, k)
    scores = scores / q.shape[-1] ** 0.5
    if mask is not None:
        scores = torch.where(mask, scores, -torch.inf)
    weights = softmax(scores)
    return einsum("bhts,bshd->bthd", weights, v)


def sdpa(q, k, v, mask=None):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return attention(q, k, v, mask).transpose(1, 2)


def mha(x, w_q, w_k, w_v, w_o, n_heads, mask=None):
    B, T, E = x.shape
    q = einsum("bte,he->bth", x, w_q).view(B, T, n_heads, -1)
    k = einsum("bte,he->bth", x, w_k).view(B, T, n_heads, -1)
    v = einsum("bte,he->bth", x, w_v).view(B, T, n_heads, -1)
    heads = attention(q, k, v, mask)
    merged = heads.reshape(B, T, E)
    return einsum("bth,eh->bte", merged, w_o)


def mqa(x, w_q, w_k, w_v, w_o, n_heads, mask=None):
    B, T, E = x.shape
    q = einsum("bte,he->bth", x, w_q).view(B, T, n_heads, -1)
    k = einsum("bte,de->btd", x, w_k).unsqueeze(2).expand(-1, -1, n_heads, -1)
    v = einsum("bte,de->btd", x, w_v).unsqueeze(2).expand(-1, -1, n_heads, -1)
    merged = attention(q, k, v, mask).reshape(B, T, E)
    return einsum("bth,eh->bte", merged, w_o)


def gqa(x, w_q, w_k, w_v, w_o, n_heads, n_kv_heads, mask=None):
    B, T, E = x.shape
    q = einsum("bte,he->bth", x, w_q).view(B, T, n_heads, -1)
    k = einsum("bte,he->bth", x, w_k).view(B, T, n_kv_heads, -1)
    v = einsum("bte,he->bth", x, w_v).view(B, T, n_kv_heads, -1)
    reads = torch.arange(n_heads) // (n_heads // n_kv_heads)
    merged = attention(q, k[:, :, reads], v[:, :, reads], mask)
    return einsum("bth,eh->bte", merged.reshape(B, T, E), w_o)


def cross(x, context, w_q, w_k, w_v, w_o, n_heads, mask=None):
    B, T, E = x.shape
    S = context.shape[1]
    q = einsum("bte,he->bth", x, w_q).view(B, T, n_heads, -1)
    k, v = (einsum("bsc,hc->bsh", context, w) for w in (w_k, w_v))
    k, v = (y.view(B, S, n_heads, -1) for y in (k, v))
    heads = attention(q, k, v, mask)
    return einsum("bth,eh->bte", heads.reshape(B, T, E), w_o)


def mha_cached(x, w_q, w_k, w_v, w_o, n_heads, cache=None):
    B, T, E = x.shape
    q = einsum("bte,he->bth", x, w_q).view(B, T, n_heads, -1)
    k = einsum("bte,he->bth", x, w_k).view(B, T, n_heads, -1)
    v = einsum("bte,he->bth", x, w_v).view(B, T, n_heads, -1)
    if cache is not None:
        k = torch.cat((cache[0], k), dim=1)
        v = torch.cat((cache[1], v), dim=1)
    heads = attention(q, k, v, causal_mask(T, k.shape[1]))
    return einsum("bth,eh->bte", heads.reshape(B, T, E), w_o), (k, v)


def rope(x, positions, theta=10000.0):
    D = x.shape[-1]
    frequency = theta ** -(torch.arange(0, D, 2, dtype=torch.float64) / D)
    angle = positions.unsqueeze(-1) * frequency
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    # A pair is one complex number.
    pair = torch.complex(wide[..., : D // 2], wide[..., D // 2 :])
    turned = pair * torch.polar(torch.ones_like(angle), angle)
    return torch.cat((turned.real, turned.imag), dim=-1).to(x.dtype)


def llama(
    x, w_q, w_k, w_v, w_o, n_heads, n_kv_heads, theta=10000.0, cache=None
):
    B, T, E = x.shape
    past = 0 if cache is None else cache["k"].shape[2]
    at = torch.arange(past, past + T)
    q = einsum("bte,he->bth", x, w_q).view(B, T, n_heads, -1).transpose(1, 2)
    k = einsum("bte,he->bth", x, w_k).view(B, T, n_kv_heads, -1)
    v = einsum("bte,he->bth", x, w_v).view(B, T, n_kv_heads, -1)
    q, k, v = rope(q, at, theta), k.transpose(1, 2), v.transpose(1, 2)
    k = rope(k, at, theta)
    if cache is not None:
        k = torch.cat((cache["k"], k), dim=2)
        v = torch.cat((cache["v"], v), dim=2)
    grouped = q.unflatten(1, (n_kv_heads, -1))
    scores = einsum("bkgtd,bksd->bkgts", grouped, k) / q.shape[-1] ** 0.5
    hidden = ~causal_mask(T, past + T)
    weights = softmax(scores.masked_fill(hidden, -torch.inf))
    heads = einsum("bkgts,bksd->btkgd", weights, v)
    out = einsum("bth,eh->bte", heads.reshape(B, T, E), w_o)
    return out, {"k": k, "v": v}


class KVCache:
    def __init__(self, max_len):
        self.max_len, self.length = max_len, 0
        self.keys, self.values = [], []

    def append(self, k, v):
        new = k.shape[2]
        if self.length + new > self.max_len:
            raise ValueError(f"no room for {new} more")
        self.keys.append(k.clone())
        self.values.append(v.clone())
        self.length += new
        k, v = torch.cat(self.keys, dim=2), torch.cat(self.values, dim=2)
        return k, v


def pairs_turned(x, positions, theta):
    """RoPE in the interleaved layout, x (B, T, ..., D) with T before heads."""
    D = x.shape[-1]
    frequency = theta ** -(torch.arange(0, D, 2, dtype=torch.float64) / D)
    angle = positions.view(-1, *(1,) * (x.dim() - 2)) * frequency
    cos, sin = angle.cos(), angle.sin()
    even, odd = x[..., 0::2], x[..., 1::2]
    turned = torch.stack((even * cos - odd * sin, odd * cos + even * sin), -1)
    return turned.flatten(-2).to(x.dtype)


def latents(x, w_q, w_kv_a, w_norm, n_heads, theta, past):
    """Queries in two parts, latents and RoPE keys of the new tokens."""
    B, T, E = x.shape
    R = w_norm.shape[0]
    Dr = w_kv_a.shape[0] - R
    at = torch.arange(T) + past
    q = einsum("bte,he->bth", x, w_q).view(B, T, n_heads, -1)
    q, q_rope = q[..., :-Dr], q[..., -Dr:]
    down = einsum("bte,re->btr", x, w_kv_a)
    c, k_rope = down[..., :R], down[..., R:]
    size = c.double().pow(2).mean(-1, keepdim=True) + 1e-6
    c = (c / size.sqrt() * w_norm).to(x.dtype)
    q_rope = pairs_turned(q_rope, at, theta)
    k_rope = pairs_turned(k_rope, at, theta)
    return q, q_rope, c, k_rope


def mla_latent(
    x, w_q, w_kv_a, w_norm, w_kv_b, w_o, n_heads, theta=10000.0, cache=None
):
    T, past = x.shape[1], 0 if cache is None else cache[0].shape[1]
    q, q_rope, c, k_rope = latents(x, w_q, w_kv_a, w_norm, n_heads, theta, past)
    if cache is not None:
        c = torch.cat((cache[0], c), dim=1)
        k_rope = torch.cat((cache[1], k_rope), dim=1)
    cache = (c, k_rope)
    Dn = q.shape[-1]
    up = einsum("bsr,hdr->bshd", c, w_kv_b.unflatten(0, (n_heads, -1)))
    k, v = up[..., :Dn], up[..., Dn:]
    shared = k_rope.unsqueeze(2).expand(-1, -1, n_heads, -1)
    q, k = torch.cat((q, q_rope), dim=-1), torch.cat((k, shared), dim=-1)
    heads = attention(q, k, v, causal_mask(T, past + T)).flatten(2)
    return einsum("bth,eh->bte", heads, w_o), cache


def mla_absorbed(
    x, w_q, w_kv_a, w_norm, w_kv_b, w_o, n_heads, theta=10000.0, cache=None
):
    T, past = x.shape[1], 0 if cache is None else len(cache["c"][0])
    q, q_rope, c, k_rope = latents(x, w_q, w_kv_a, w_norm, n_heads, theta, past)
    if cache is not None:
        c = torch.cat((cache["c"], c), dim=1)
        k_rope = torch.cat((cache["k_rope"], k_rope), dim=1)
    Dn = q.shape[-1]
    up = w_kv_b.unflatten(0, (n_heads, -1))
    w_uk, w_uv = up[:, :Dn], up[:, Dn:]
    in_latent = einsum("bthd,hdr->bthr", q, w_uk)
    scores = einsum("bthr,bsr->bhts", in_latent, c)
    scores = scores + einsum("bthd,bsd->bhts", q_rope, k_rope)
    scores = scores / (Dn + q_rope.shape[-1]) ** 0.5
    later = ~causal_mask(T, past + T)
    scores = scores.masked_fill(later, -torch.inf)
    mixed = einsum("bhts,bsr->bthr", softmax(scores), c)
    heads = einsum("bthr,hdr->bthd", mixed, w_uv).flatten(2)
    out = einsum("bth,eh->bte", heads, w_o)
    return out, {"c": c, "k_rope": k_rope}


def dsa(q, k, v, q_index, k_index, weights, topk, mask=None):
    B, S = q.shape[0], k.shape[2]
    rights = einsum("bhtd,bsd->bhts", q_index.float(), k_index[:, 0].float())
    rights = torch.clamp(rights, min=0)
    wants = einsum("bhts,bth->bts", rights, weights.float())
    if mask is None:
        mask = torch.ones(1, 1, q.shape[2], S, dtype=torch.bool)
    mask = mask.broadcast_to(B, 1, q.shape[2], S)[:, 0]
    wants = torch.where(mask, wants, -torch.inf)
    rank = wants.argsort(-1, descending=True).argsort(-1)
    chosen = mask & (rank < topk)
    heads = [x.double().transpose(1, 2) for x in (q, k, v)]
    return attention(*heads, chosen.unsqueeze(1)).transpose(1, 2).to(v.dtype)


def mha_to_gqa(w_k, w_v, n_heads, n_kv_heads):
    group, D = n_heads // n_kv_heads, len(w_k) // n_heads
    pooled = (
        w.view(n_kv_heads, group, D, -1).mean(1).reshape(n_kv_heads * D, -1)
        for w in (w_k, w_v)
    )
    return tuple(pooled)


def flash(q, k, v, mask=None, tile=(2, 4)):
    B, H, T, D = q.shape
    S = k.shape[2]
    wide = torch.promote_types(q.dtype, torch.float32)
    if mask is None:
        mask = torch.ones(T, S, dtype=torch.bool)
    mask = mask.expand(B, H, T, S)
    outs, lses = [], []
    for i in range(0, T, tile[0]):
        rows = slice(i, i + tile[0])
        queries = q[:, :, rows].to(wide) / D**0.5
        n = queries.shape[2]
        m = torch.full((B, H, n), -torch.inf, dtype=wide)
        norm = torch.zeros(B, H, n, dtype=wide)
        acc = torch.zeros(B, H, n, v.shape[3], dtype=wide)
        for j in range(0, S, tile[1]):
            columns = slice(j, j + tile[1])
            seen = mask[:, :, rows, columns]
            if not seen.any():
                continue
            s = einsum("bhtd,bhsd->bhts", queries, k[:, :, columns].to(wide))
            s = s.masked_fill(~seen, -torch.inf)
            m_new = torch.maximum(m, s.amax(-1))
            safe = m_new.masked_fill(m_new == -torch.inf, 0)
            p = torch.exp(s - safe.unsqueeze(-1))
            shrink = torch.exp(m - safe)
            norm = norm * shrink + p.sum(-1)
            acc = acc * shrink.unsqueeze(-1)
            acc = acc + einsum("bhts,bhsd->bhtd", p, v[:, :, columns].to(wide))
            m = m_new
        total = norm.masked_fill(norm == 0, 1)
        outs.append(acc / total.unsqueeze(-1))
        lses.append(m + total.log())
    return torch.cat(outs, 2).to(q.dtype), torch.cat(lses, 2)


def merge(outs, lses):
    lse = torch.stack(lses).logsumexp(0)
    safe = lse.masked_fill(lse == -torch.inf, 0)
    shares = (torch.exp(each - safe) for each in lses)
    mixed = sum(s.unsqueeze(-1) * o for s, o in zip(shares, outs, strict=True))
    return mixed.to(outs[0].dtype), lse


def attention_with_sinks(q, k, v, sinks, mask=None):
    """One more key, whose value is zero."""
    scores = einsum("bhtd,bhsd->bhts", q, k) / q.shape[-1] ** 0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    column = sinks.reshape(-1, 1, 1).expand_as(scores[..., :1])
    weights = softmax(torch.cat((column, scores), dim=-1))
    values = torch.cat((torch.zeros_like(v[:, :, :1]), v), dim=2)
    return weights @ values


def streaming_mask(T, S, first, window):
    distance = torch.arange(S - T, S).unsqueeze(1) - torch.arange(S)
    near = (distance >= 0) & (distance < window)
    return near | (distance >= 0) & (torch.arange(S) < first)


def slopes(n_heads):
    power = 1
    while 2 * power <= n_heads:
        power *= 2
    own = [2 ** (-8 * n / power) for n in range(1, power + 1)]
    more = [2 ** (-8 * n / (2 * power)) for n in range(1, 2 * power + 1)]
    return torch.tensor(own + more[::2][: n_heads - power])


def alibi(n_heads, T, S=None):
    S = S or T
    i, j = torch.arange(S - T, S).unsqueeze(1), torch.arange(S)
    return einsum("h,ts->hts", slopes(n_heads), -(i - j).abs().float())


def biased_attention(q, k, v, bias=None, softcap=None, mask=None):
    scores = einsum("bhtd,bhsd->bhts", q, k) / q.shape[-1] ** 0.5
    if bias is not None:
        scores = scores + bias
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    return softmax(scores) @ v


def normed(x, weight):
    size = x.double().pow(2).mean(-1, keepdim=True) + 1e-6
    return (x / size.sqrt() * weight).to(x.dtype)


def todays_heads(
    q, k, v, gate, q_weight, k_weight, positions, softcap, sinks, mask
):
    q = rope(normed(q, q_weight), positions)
    k = rope(normed(k, k_weight), positions)
    capped = einsum("bhtd,bhsd->bhts", q, k) / (softcap * q.shape[-1] ** 0.5)
    scores = (softcap * capped.tanh()).masked_fill(~mask, -torch.inf)
    column = sinks.reshape(-1, 1, 1).expand_as(scores[..., :1])
    weights = softmax(torch.cat((scores, column), dim=-1))[..., :-1]
    return (weights @ v) / (1 + torch.exp(-gate))


def linear(f, factor):
    return torch.stack([each / factor for each in f])


def ntk(f, factor):
    D = 2 * len(f)
    base = f[1] ** (-D / 2)
    base = base * factor ** (D / (D - 2))
    return base ** (-torch.arange(0, D, 2) / D)


def llama3(f, factor, length, low=1.0, high=4.0):
    wavelength = 2 * torch.pi / f
    smooth = (length / wavelength - low) / (high - low)
    blended = (1 - smooth) * f / factor + smooth * f
    slow = torch.where(wavelength > length / low, f / factor, blended)
    return torch.where(wavelength < length / high, f, slow)


def yarn(f, factor, length, fast=32.0, slow=1.0):
    base = float(f[1]) ** -len(f)

    def pair(turns):
        return len(f) * math.log(length / (2 * math.pi * turns), base)

    first, last = max(math.floor(pair(fast)), 0), math.ceil(pair(slow))
    result = []
    for p, each in enumerate(f):
        share = min(max((p - first) / max(last - first, 1e-9), 0), 1)
        result.append(each * (1 - share + share / factor))
    return torch.stack(result), 0.1 * math.log(factor) + 1


class RingKVCache:
    """All tokens are kept, and the slots are gathered from them."""

    def __init__(self, W):
        self.W, self.all, self.length = W, None, 0

    def slots(self):
        at = torch.full((self.W,), -1)
        for p in range(self.length):
            at[p % self.W] = p
        k, v = (x[:, :, at] * (at >= 0).unsqueeze(1) for x in self.all)
        return k, v, at

    def append(self, *new):
        empty = [x[:, :, :1] for x in new]  # a token to multiply by 0
        before, T = self.all or empty, new[0].shape[2]
        if T > 1:
            self.all = before
            k, v, at = self.slots()
        now = new if not self.length else map(self.joined, before, new)
        self.all, self.length = [*now], self.length + T
        if T == 1:
            return self.slots()
        p = torch.arange(self.length - T, self.length)
        k, v = map(self.joined, (k, v), new)
        return k, v, torch.cat((at, p))

    @staticmethod
    def joined(old, new):
        return torch.cat((old, new), dim=2)


def sees(i, j, W):
    back = i.unsqueeze(1) - j
    return (back >= 0) & (back < W) & (j >= 0)


def gated_delta(
    x, w_qkv, w_z, w_b, w_a, w_conv, A_log, dt_bias, w_norm, w_o, n_heads,
    valid=None, cache=None,
):  # fmt: skip
    """Token by token; a pad leaves the last inputs and the state unchanged."""
    B, T, dtype = *x.shape[:2], x.dtype
    wide = torch.promote_types(dtype, torch.float32)
    every = x, w_qkv, w_z, w_b, w_a, w_conv, A_log, dt_bias, w_norm, w_o
    x, w_qkv, w_z, w_b, w_a, w_conv, A_log, dt_bias, w_norm, w_o = (
        each.to(wide) for each in every
    )
    H, Dv, C = len(A_log), len(w_norm), len(w_qkv)
    D = (C - H * Dv) // (2 * n_heads)
    last, state = cache or (x.new_zeros(B, C, 3), x.new_zeros(B, H, Dv, D))
    reads, outs = torch.arange(H) // (H // n_heads), []
    for t in range(T):
        real = torch.ones(B) > 0 if valid is None else valid[:, t]
        token = x[:, t].where(real.view(B, 1), 0)
        new = einsum("be,ce->bc", token, w_qkv)
        seen = torch.cat((last, new.unsqueeze(2)), dim=2)
        mixed = silu(einsum("bcw,cw->bc", seen, w_conv))
        q, k, v = mixed.split((n_heads * D, n_heads * D, H * Dv), dim=1)
        q, k = (y.view(B, n_heads, D)[:, reads] for y in (q, k))
        q, k = (y / (y.square().sum(2, True) + 1e-6).sqrt() for y in (q, k))
        beta = torch.sigmoid(einsum("be,he->bh", token, w_b))
        step = (einsum("be,he->bh", token, w_a) + dt_bias).exp().log1p()
        faded = einsum("bhvd,bh->bhvd", state, torch.exp(-A_log.exp() * step))
        missing = v.view(B, H, Dv) - einsum("bhvd,bhd->bhv", faded, k)
        written = einsum("bh,bhv,bhd->bhvd", beta, missing, k)
        state = (faded + written).where(real.view(B, 1, 1, 1), state)
        last = seen[:, :, 1:].where(real.view(B, 1, 1), last)
        o = einsum("bhvd,bhd->bhv", state, q) / D**0.5
        o = o / (o.square().mean(2, True) + 1e-6).sqrt() * w_norm
        gate = silu(einsum("be,he->bh", token, w_z))
        outs.append(einsum("bh,eh->be", o.flatten(1) * gate, w_o))
    return torch.stack(outs, dim=1).to(dtype), (last, state)


def silu(x):
    return x * torch.sigmoid(x)


class Pool:
    """A dict of the tokens of each block; what is found is compared whole."""

    def __init__(self, blocks, size, shape, dtype=None):
        self.size, self.shape, self.dtype = size, shape, dtype
        self.held = [{} for _ in range(blocks)]  # row: what it stores
        self.texts = [None] * blocks  # all tokens up to the end of a block
        self.tables = []

    def used(self, block):
        return sum(block in table for table in self.tables)

    def fork(self, table):
        self.tables.append(list(table))
        return self.tables[-1]

    def release(self, table, length=0):
        del table[(length + self.size - 1) // self.size :]

    def find(self, tokens):
        table = []
        while (len(table) + 1) * self.size < len(tokens):
            text = tuple(tokens[: (len(table) + 1) * self.size])
            if text not in self.texts:
                break
            table.append(self.texts.index(text))
        return self.fork(table)

    def append(self, table, tokens, new):
        if not any(table is each for each in self.tables):
            self.tables.append(table)
        start, places = len(tokens) - new.shape[-2], list(table)
        free = [b for b in range(len(self.held)) if not self.used(b)]
        copies = []
        if start % self.size and self.used(places[-1]) > 1:
            copies = [(places.pop(), free.pop(0))]
            places.append(copies[0][1])
        while len(places) * self.size < len(tokens):
            places.append(free.pop(0))  # IndexError: there is none
        for old, block in copies:
            self.held[block] = dict(self.held[old])
        for at, each in enumerate(new.unbind(-2), start):
            block = places[at // self.size]
            self.held[block][at % self.size] = each
            self.texts[block] = None
            if (at + 1) % self.size == 0:
                self.texts[block] = tuple(tokens[: at + 1])
        table[:] = places

    def gather(self, table, length):
        kept = [
            self.held[table[at // self.size]][at % self.size]
            for at in range(length)
        ]
        *heads, width = self.shape
        empty = torch.zeros(*heads, 0, width, dtype=self.dtype)
        return torch.stack(kept, dim=-2) if kept else empty
