"""All exercises, otherwise than in this package: by einsum, with the heads kept
as an axis.

Tests plant mistakes in these lines. Pages print them as solutions, each with
what it uses.
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
    scores = x.to(torch.promote_types(x.dtype, torch.float32))
    m = torch.full_like(scores[..., :1], -1e30)
    norm = torch.zeros_like(m)
    for start in range(0, x.shape[-1], chunk):
        piece = scores[..., start : start + chunk]
        m_new = torch.maximum(m, piece.amax(-1, keepdim=True))
        norm = norm * torch.exp(m - m_new)
        norm = norm + torch.exp(piece - m_new).sum(-1, keepdim=True)
        m = m_new
    weights = torch.exp(scores - m) / norm.clamp(min=1e-30)
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
    same_document = ids.unsqueeze(2) == ids.unsqueeze(1)
    earlier = torch.ones_like(same_document[0]).tril()
    return (same_document & earlier).unsqueeze(1)


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
    flat = heads.reshape(B, T, E)
    return einsum("bth,eh->bte", flat, w_o)


def mqa(x, w_q, w_k, w_v, w_o, n_heads, mask=None):
    B, T, E = x.shape
    q = einsum("bte,he->bth", x, w_q).view(B, T, n_heads, -1)
    k = einsum("bte,de->btd", x, w_k).unsqueeze(2).expand(-1, -1, n_heads, -1)
    v = einsum("bte,de->btd", x, w_v).unsqueeze(2).expand(-1, -1, n_heads, -1)
    flat = attention(q, k, v, mask).reshape(B, T, E)
    return einsum("bth,eh->bte", flat, w_o)


def gqa(x, w_q, w_k, w_v, w_o, n_heads, n_kv_heads, mask=None):
    B, T, E = x.shape
    q = einsum("bte,he->bth", x, w_q).view(B, T, n_heads, -1)
    k = einsum("bte,he->bth", x, w_k).view(B, T, n_kv_heads, -1)
    v = einsum("bte,he->bth", x, w_v).view(B, T, n_kv_heads, -1)
    reads = torch.arange(n_heads) // (n_heads // n_kv_heads)
    heads = attention(q, k[:, :, reads], v[:, :, reads], mask)
    return einsum("bth,eh->bte", heads.reshape(B, T, E), w_o)


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
    floats = x.to(torch.promote_types(x.dtype, torch.float32))
    # A pair is one complex number.
    pair = torch.complex(floats[..., : D // 2], floats[..., D // 2 :])
    pair = pair * torch.polar(torch.ones_like(angle), angle)
    return torch.cat((pair.real, pair.imag), dim=-1).to(x.dtype)


def llama(
    x, w_q, w_k, w_v, w_o, n_heads, n_kv_heads, theta=10000.0, cache=None
):
    B, T, E = x.shape
    past = 0 if cache is None else cache["k"].shape[2]
    t = torch.arange(past, past + T)
    q = einsum("bte,he->bth", x, w_q).view(B, T, n_heads, -1).transpose(1, 2)
    k = einsum("bte,he->bth", x, w_k).view(B, T, n_kv_heads, -1)
    v = einsum("bte,he->bth", x, w_v).view(B, T, n_kv_heads, -1)
    q, k, v = rope(q, t, theta), k.transpose(1, 2), v.transpose(1, 2)
    k = rope(k, t, theta)
    if cache is not None:
        k = torch.cat((cache["k"], k), dim=2)
        v = torch.cat((cache["v"], v), dim=2)
    groups = q.unflatten(1, (n_kv_heads, -1))
    scores = einsum("bkgtd,bksd->bkgts", groups, k) / q.shape[-1] ** 0.5
    future = ~causal_mask(T, past + T)
    weights = softmax(scores.masked_fill(future, -torch.inf))
    heads = einsum("bkgts,bksd->btkgd", weights, v)
    out = einsum("bth,eh->bte", heads.reshape(B, T, E), w_o)
    return out, {"k": k, "v": v}


class KVCache:
    def __init__(self, max_len):
        self.max_len, self.length = max_len, 0
        self.keys, self.values = [], []

    def append(self, k, v):
        T = k.shape[2]
        if self.length + T > self.max_len:
            raise ValueError(f"no room for {T} more")
        self.keys.append(k.clone())
        self.values.append(v.clone())
        self.length += T
        k, v = torch.cat(self.keys, dim=2), torch.cat(self.values, dim=2)
        return k, v


def rope_pairs(x, positions, theta):
    """RoPE in the interleaved layout, x (B, T, ..., D) with T before heads."""
    D = x.shape[-1]
    frequency = theta ** -(torch.arange(0, D, 2, dtype=torch.float64) / D)
    angle = positions.view(-1, *(1,) * (x.dim() - 2)) * frequency
    cos, sin = angle.cos(), angle.sin()
    even, odd = x[..., 0::2], x[..., 1::2]
    pairs = torch.stack((even * cos - odd * sin, odd * cos + even * sin), -1)
    return pairs.flatten(-2).to(x.dtype)


def latents(x, w_q, w_kv_a, w_norm, n_heads, theta, past):
    """Queries in two parts, latents and RoPE keys of the new tokens."""
    B, T, E = x.shape
    R = w_norm.shape[0]
    Dr = w_kv_a.shape[0] - R
    t = torch.arange(T) + past
    q = einsum("bte,he->bth", x, w_q).view(B, T, n_heads, -1)
    q, q_rope = q[..., :-Dr], q[..., -Dr:]
    down = einsum("bte,re->btr", x, w_kv_a)
    c, k_rope = down[..., :R], down[..., R:]
    size = c.double().pow(2).mean(-1, keepdim=True) + 1e-6
    c = (c / size.sqrt() * w_norm).to(x.dtype)
    q_rope = rope_pairs(q_rope, t, theta)
    k_rope = rope_pairs(k_rope, t, theta)
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
    k_position = k_rope.unsqueeze(2).expand(-1, -1, n_heads, -1)
    q, k = torch.cat((q, q_rope), dim=-1), torch.cat((k, k_position), dim=-1)
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
    future = ~causal_mask(T, past + T)
    scores = scores.masked_fill(future, -torch.inf)
    latent = einsum("bhts,bsr->bthr", softmax(scores), c)
    heads = einsum("bthr,hdr->bthd", latent, w_uv).flatten(2)
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
    means = (
        w.view(n_kv_heads, group, D, -1).mean(1).reshape(n_kv_heads * D, -1)
        for w in (w_k, w_v)
    )
    return tuple(means)


def flash(q, k, v, mask=None, tile=(2, 4)):
    B, H, T, D = q.shape
    S = k.shape[2]
    dtype = torch.promote_types(q.dtype, torch.float32)
    if mask is None:
        mask = torch.ones(T, S, dtype=torch.bool)
    mask = mask.expand(B, H, T, S)
    outs, lses = [], []
    for i in range(0, T, tile[0]):
        rows = slice(i, i + tile[0])
        queries = q[:, :, rows].to(dtype) / D**0.5
        n = queries.shape[2]
        m = torch.full((B, H, n), -torch.inf, dtype=dtype)
        norm = torch.zeros(B, H, n, dtype=dtype)
        acc = torch.zeros(B, H, n, v.shape[3], dtype=dtype)
        for j in range(0, S, tile[1]):
            columns = slice(j, j + tile[1])
            tile_mask = mask[:, :, rows, columns]
            if not tile_mask.any():
                continue
            s = einsum("bhtd,bhsd->bhts", queries, k[:, :, columns].to(dtype))
            s = s.masked_fill(~tile_mask, -torch.inf)
            m_new = torch.maximum(m, s.amax(-1))
            safe = m_new.masked_fill(m_new == -torch.inf, 0)
            p = torch.exp(s - safe.unsqueeze(-1))
            shrink = torch.exp(m - safe)
            norm = norm * shrink + p.sum(-1)
            acc = acc * shrink.unsqueeze(-1)
            acc = acc + einsum("bhts,bhsd->bhtd", p, v[:, :, columns].to(dtype))
            m = m_new
        total = norm.masked_fill(norm == 0, 1)
        outs.append(acc / total.unsqueeze(-1))
        lses.append(m + total.log())
    return torch.cat(outs, 2).to(q.dtype), torch.cat(lses, 2)


def merge(outs, lses):
    lse = torch.stack(lses).logsumexp(0)
    safe = lse.masked_fill(lse == -torch.inf, 0)
    shares = (torch.exp(x - safe) for x in lses)
    out = sum(s.unsqueeze(-1) * o for s, o in zip(shares, outs, strict=True))
    return out.to(outs[0].dtype), lse


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
    coarse = [2 ** (-8 * n / power) for n in range(1, power + 1)]
    fine = [2 ** (-8 * n / (2 * power)) for n in range(1, 2 * power + 1)]
    return torch.tensor(coarse + fine[::2][: n_heads - power])


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


def rms_norm(x, weight):
    size = x.double().pow(2).mean(-1, keepdim=True) + 1e-6
    return (x / size.sqrt() * weight).to(x.dtype)


def todays_heads(
    q, k, v, gate, q_weight, k_weight, positions, softcap, sinks, mask
):
    q = rope(rms_norm(q, q_weight), positions)
    k = rope(rms_norm(k, k_weight), positions)
    ratio = einsum("bhtd,bhsd->bhts", q, k) / (softcap * q.shape[-1] ** 0.5)
    scores = (softcap * ratio.tanh()).masked_fill(~mask, -torch.inf)
    column = sinks.reshape(-1, 1, 1).expand_as(scores[..., :1])
    weights = softmax(torch.cat((scores, column), dim=-1))[..., :-1]
    return (weights @ v) / (1 + torch.exp(-gate))


def linear(f, factor):
    return torch.stack([x / factor for x in f])


def ntk(f, factor):
    D = 2 * len(f)
    base = f[1] ** (-D / 2)
    base = base * factor ** (D / (D - 2))
    return base ** (-torch.arange(0, D, 2) / D)


def llama3(f, factor, length, low=1.0, high=4.0):
    wavelength = 2 * torch.pi / f
    smooth = (length / wavelength - low) / (high - low)
    blend = (1 - smooth) * f / factor + smooth * f
    slow = torch.where(wavelength > length / low, f / factor, blend)
    return torch.where(wavelength < length / high, f, slow)


def yarn(f, factor, length, fast=32.0, slow=1.0):
    base = float(f[1]) ** -len(f)

    def pair(turns):
        return len(f) * math.log(length / (2 * math.pi * turns), base)

    first, last = max(math.floor(pair(fast)), 0), math.ceil(pair(slow))
    result = []
    for p, frequency in enumerate(f):
        share = min(max((p - first) / max(last - first, 1e-9), 0), 1)
        result.append(frequency * (1 - share + share / factor))
    return torch.stack(result), 0.1 * math.log(factor) + 1


class RingKVCache:
    """All tokens are kept, and the slots are gathered from them."""

    def __init__(self, W):
        self.W, self.all, self.length = W, None, 0

    def slots(self):
        t = torch.full((self.W,), -1)
        for p in range(self.length):
            t[p % self.W] = p
        k, v = (x[:, :, t] * (t >= 0).unsqueeze(1) for x in self.all)
        return k, v, t

    def append(self, *pair):
        empty = [x[:, :, :1] for x in pair]  # a token to multiply by 0
        past, T = self.all or empty, pair[0].shape[2]
        if T > 1:
            self.all = past
            k, v, t = self.slots()
        now = pair if not self.length else map(self.join, past, pair)
        self.all, self.length = [*now], self.length + T
        if T == 1:
            return self.slots()
        p = torch.arange(self.length - T, self.length)
        k, v = map(self.join, (k, v), pair)
        return k, v, torch.cat((t, p))

    @staticmethod
    def join(past, pair):
        return torch.cat((past, pair), dim=2)


def sees(i, j, W):
    back = i.unsqueeze(1) - j
    return (back >= 0) & (back < W) & (j >= 0)


def gated_delta(
    x, w_qkv, w_z, w_b, w_a, w_conv, A_log, dt_bias, w_norm, w_o, n_heads,
    valid=None, cache=None,
):  # fmt: skip
    """Token by token; a pad leaves the last inputs and the state unchanged."""
    B, T, dtype = *x.shape[:2], x.dtype
    float_dtype = torch.promote_types(dtype, torch.float32)
    tensors = x, w_qkv, w_z, w_b, w_a, w_conv, A_log, dt_bias, w_norm, w_o
    x, w_qkv, w_z, w_b, w_a, w_conv, A_log, dt_bias, w_norm, w_o = (
        y.to(float_dtype) for y in tensors
    )
    H, Dv, C = len(A_log), len(w_norm), len(w_qkv)
    D = (C - H * Dv) // (2 * n_heads)
    last, state = cache or (x.new_zeros(B, C, 3), x.new_zeros(B, H, Dv, D))
    reads, outs = torch.arange(H) // (H // n_heads), []
    for t in range(T):
        real = torch.ones(B) > 0 if valid is None else valid[:, t]
        token = x[:, t].where(real.view(B, 1), 0)
        qkv = einsum("be,ce->bc", token, w_qkv)
        window = torch.cat((last, qkv.unsqueeze(2)), dim=2)
        qkv = silu(einsum("bcw,cw->bc", window, w_conv))
        q, k, v = qkv.split((n_heads * D, n_heads * D, H * Dv), dim=1)
        q, k = (y.view(B, n_heads, D)[:, reads] for y in (q, k))
        q, k = (y / (y.square().sum(2, True) + 1e-6).sqrt() for y in (q, k))
        beta = torch.sigmoid(einsum("be,he->bh", token, w_b))
        step = (einsum("be,he->bh", token, w_a) + dt_bias).exp().log1p()
        memory = einsum("bhvd,bh->bhvd", state, torch.exp(-A_log.exp() * step))
        missing = v.view(B, H, Dv) - einsum("bhvd,bhd->bhv", memory, k)
        write = einsum("bh,bhv,bhd->bhvd", beta, missing, k)
        state = (memory + write).where(real.view(B, 1, 1, 1), state)
        last = window[:, :, 1:].where(real.view(B, 1, 1), last)
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
        if not any(table is x for x in self.tables):
            self.tables.append(table)
        start, places = len(tokens) - new.shape[-2], list(table)
        free = [b for b in range(len(self.held)) if not self.used(b)]
        copies = []
        if start % self.size and self.used(places[-1]) > 1:
            copies = [(places.pop(), free.pop(0))]
            places.append(copies[0][1])
        while len(places) * self.size < len(tokens):
            places.append(free.pop(0))  # IndexError: there is none
        for source, block in copies:
            self.held[block] = dict(self.held[source])
        for t, value in enumerate(new.unbind(-2), start):
            block = places[t // self.size]
            self.held[block][t % self.size] = value
            self.texts[block] = None
            if (t + 1) % self.size == 0:
                self.texts[block] = tuple(tokens[: t + 1])
        table[:] = places

    def gather(self, table, length):
        rows = [
            self.held[table[t // self.size]][t % self.size]
            for t in range(length)
        ]
        *heads, width = self.shape
        empty = torch.zeros(*heads, 0, width, dtype=self.dtype)
        return torch.stack(rows, dim=-2) if rows else empty


class Shift(torch.autograd.Function):
    """To the next rank. A gradient goes on, all the way round, to the rank
    before."""

    @staticmethod
    def forward(ctx, group, *tensors):
        ctx.group = group
        return tuple(group.shift(tensors)())

    @staticmethod
    def backward(ctx, *grads):
        for _ in range(ctx.group.size - 1):
            grads = ctx.group.shift(grads)()
        return None, *grads


def ring_attention(q, k, v, positions, group, first=None, sinks=None):
    outs, lses = [], []
    i, j = positions.unsqueeze(2), positions.unsqueeze(1)
    groups = q.shape[1] // k.shape[1]
    for step in range(group.size):
        mask = (j >= 0) & (j <= i)
        if first is not None:
            mask = mask & (j >= first.unsqueeze(2))
        heads = (x.repeat_interleave(groups, dim=1) for x in (k, v))
        out, lse = flash(q, *heads, mask.unsqueeze(1), tile=(99, 99))
        outs.append(out + 0 * (k.sum() + v.sum()))  # else no backward sends
        lses.append(lse)
        if step < group.size - 1:
            k, v = Shift.apply(group, k, v)
            (j,) = group.shift([j])()
    if sinks is not None:
        outs.append(torch.zeros_like(outs[0]))
        lses.append(sinks.reshape(1, -1, 1).expand_as(lses[0]))
    return merge(outs, lses)[0]


class Swap(torch.autograd.Function):
    @staticmethod
    def forward(ctx, group, x):
        ctx.group = group
        return group.swap(x)

    @staticmethod
    def backward(ctx, grad):
        return None, ctx.group.swap(grad)


def ulysses(q, k, v, positions, group):
    B, H, T, _ = q.shape
    n = group.size
    wanted = torch.arange(H) * k.shape[1] // H  # the key head of a query head
    parts = []
    for x, heads in ((q, torch.arange(H)), (k, wanted), (v, wanted)):
        x = x[:, heads].view(B, n, H // n, T, -1).movedim(1, 0)
        parts.append(torch.cat(list(Swap.apply(group, x)), dim=2))
    p = torch.cat(list(group.gather(positions)), dim=1)
    mask = (p.unsqueeze(1) >= 0) & (p.unsqueeze(1) <= p.unsqueeze(2))
    out = sdpa(*parts, mask.unsqueeze(1))
    out = out.unflatten(2, (n, T)).movedim(2, 0)
    return torch.cat(list(Swap.apply(group, out)), dim=1)


class Shared(torch.autograd.Function):
    """What all ranks of a group have: their gradients are summed."""

    @staticmethod
    def forward(ctx, group, x):
        ctx.group = group
        return x * 1

    @staticmethod
    def backward(ctx, grad):
        return None, ctx.group.total(grad)


class Total(torch.autograd.Function):
    @staticmethod
    def forward(ctx, group, x):
        return group.total(x)

    @staticmethod
    def backward(ctx, grad):
        return None, grad


def tensor_parallel(x, w_q, w_k, w_v, w_o, n_heads, n_kv_heads, group):
    B, T, _ = x.shape
    D = len(w_q) * group.size // n_heads
    x = Shared.apply(group, x)
    if n_kv_heads < group.size:
        copies = group.size // n_kv_heads
        first = group.rank - group.rank % copies
        same = group.part(range(first, first + copies))
        w_k, w_v = Shared.apply(same, w_k), Shared.apply(same, w_v)
    q, k, v = ((x @ w.mT).view(B, T, -1, D) for w in (w_q, w_k, w_v))
    q, k, v = (y.transpose(1, 2) for y in (q, k, v))
    k, v = (y.repeat_interleave(q.shape[1] // y.shape[1], 1) for y in (k, v))
    out = sdpa(q, k, v, causal_mask(T, T))
    return Total.apply(group, out.transpose(1, 2).reshape(B, T, -1) @ w_o.mT)
