"""Each mistake in another form: as wrong lines in `solutions/einsum.py`.

It is not in the catalogue that these lines stand, but in code that computes the
same in another way: a mistake is recognised by what it computes, not by how it
is written.
"""

from typing import NamedTuple


class Otherwise(NamedTuple):
    """An exercise, and right and wrong lines in its solution by einsum."""

    exercise: str
    lines: tuple[tuple[str, str], ...]


def of(exercise: str, *lines: tuple[str, str]) -> Otherwise:
    return Otherwise(exercise, lines)


OTHERWISE = {
    "mask-times-tiny": of(
        "sdpa",
        (
            "        scores = torch.where(mask, scores, -torch.inf)\n",
            "        scores = scores - 1e-9 * ~mask\n",
        ),
    ),
    # -------------------------------------------------------------- RoPE itself
    "rope-other-layout": of(
        "rope",
        (
            """\
    # A pair is one complex number.
    pair = torch.complex(wide[..., : D // 2], wide[..., D // 2 :])
""",
            """\
    pair = torch.view_as_complex(wide.double().unflatten(-1, (-1, 2)))
""",
        ),
        (
            """\
    return torch.cat((turned.real, turned.imag), dim=-1).to(x.dtype)
""",
            """\
    return torch.view_as_real(turned).flatten(-2).to(x.dtype)
""",
        ),
    ),
    "rope-mixed-layouts": of(
        "rope",
        (
            """\
    turned = pair * torch.polar(torch.ones_like(angle), angle)
    return torch.cat((turned.real, turned.imag), dim=-1).to(x.dtype)
""",
            """\
    cos = angle.cos().repeat_interleave(2, dim=-1)
    sin = angle.sin().repeat_interleave(2, dim=-1)
    crossed = torch.cat((-pair.imag, pair.real), dim=-1)
    return (wide * cos + crossed * sin).to(x.dtype)
""",
        ),
    ),
    "rope-no-minus": of(
        "rope",
        (
            """\
    turned = pair * torch.polar(torch.ones_like(angle), angle)
    return torch.cat((turned.real, turned.imag), dim=-1).to(x.dtype)
""",
            """\
    crossed = torch.cat((pair.imag, pair.real), dim=-1)
    cos, sin = angle.cos().repeat(1, 2), angle.sin().repeat(1, 2)
    return (wide * cos + crossed * sin).to(x.dtype)
""",
        ),
    ),
    "rope-sign": of(
        "rope",
        (
            """\
    turned = pair * torch.polar(torch.ones_like(angle), angle)
""",
            """\
    turned = pair / torch.polar(torch.ones_like(angle), angle)
""",
        ),
    ),
    "rope-pair-index": of(
        "rope",
        (
            """\
    frequency = theta ** -(torch.arange(0, D, 2, dtype=torch.float64) / D)
    angle = positions.unsqueeze(-1) * frequency
""",
            """\
    frequency = 1 / theta ** (torch.arange(D // 2).double() / D)
    angle = torch.outer(positions.double(), frequency)
""",
        ),
    ),
    "rope-exponent": of(
        "rope",
        (
            """\
    frequency = theta ** -(torch.arange(0, D, 2, dtype=torch.float64) / D)
    angle = positions.unsqueeze(-1) * frequency
""",
            """\
    frequency = theta ** -(torch.arange(1, D, 2, dtype=torch.float64) / D)
    angle = positions.unsqueeze(-1) * frequency
""",
        ),
    ),
    "rope-theta-ignored": of(
        "rope",
        (
            """\
    frequency = theta ** -(torch.arange(0, D, 2, dtype=torch.float64) / D)
    angle = positions.unsqueeze(-1) * frequency
""",
            """\
    frequency = 1e4 ** -(torch.arange(0, D, 2, dtype=torch.float64) / D)
    angle = positions.unsqueeze(-1) * frequency
""",
        ),
    ),
    "rope-half-precision": of(
        "rope",
        (
            """\
    frequency = theta ** -(torch.arange(0, D, 2, dtype=torch.float64) / D)
    angle = positions.unsqueeze(-1) * frequency
""",
            """\
    half = torch.bfloat16
    frequency = theta ** -(torch.arange(0, D, 2, dtype=half) / D)
    angle = einsum("t,p->tp", positions.to(half), frequency)
""",
        ),
        (
            """\
    turned = pair * torch.polar(torch.ones_like(angle), angle)
""",
            """\
    cos, sin = (f.to(wide.dtype) for f in (angle.cos(), angle.sin()))
    turned = pair * torch.complex(cos, sin)
""",
        ),
    ),
    # ---------------------------------------------------------------- positions
    "rope-queries-only": of(
        "llama",
        (
            """\
    k = rope(k, at, theta)
""",
            "",
        ),
    ),
    "rope-on-values": of(
        "llama",
        (
            """\
    k = rope(k, at, theta)
""",
            """\
    k, v = (rope(each, at, theta) for each in (k, v))
""",
        ),
    ),
    "positions-restart": of(
        "llama",
        (
            """\
    past = 0 if cache is None else cache["k"].shape[2]
    at = torch.arange(past, past + T)
""",
            """\
    past = 0 if cache is None else cache["k"].shape[2]
    at = torch.arange(T)
""",
        ),
    ),
    "positions-off-by-one": of(
        "llama",
        (
            """\
    past = 0 if cache is None else cache["k"].shape[2]
    at = torch.arange(past, past + T)
""",
            """\
    past = 0 if cache is None else cache["k"].shape[2]
    at = torch.arange(T)
    if cache is not None:
        at = at + past + 1
""",
        ),
    ),
    "positions-after-append": of(
        "llama",
        (
            """\
    q, k, v = rope(q, at, theta), k.transpose(1, 2), v.transpose(1, 2)
""",
            """\
    k, v = k.transpose(1, 2), v.transpose(1, 2)
""",
        ),
        (
            """\
    grouped = q.unflatten(1, (n_kv_heads, -1))
""",
            """\
    length = k.shape[2]
    q = rope(q, torch.arange(length, length + T), theta)
    grouped = q.unflatten(1, (n_kv_heads, -1))
""",
        ),
    ),
    "keys-rotated-twice": of(
        "llama",
        (
            """\
    scores = einsum("bkgtd,bksd->bkgts", grouped, k) / q.shape[-1] ** 0.5
""",
            """\
    keys = rope(k, torch.arange(past + T), theta)
    scores = einsum("bkgtd,bksd->bkgts", grouped, keys)
    scores = scores / q.shape[-1] ** 0.5
""",
        ),
    ),
    # ------------------------------------------------------------------- caches
    "cache-whole-buffer": of(
        "kv_cache",
        (
            """\
        return torch.cat(self.keys, dim=2), torch.cat(self.values, dim=2)
""",
            """\
        B, K, _, D = k.shape
        empty = k.new_zeros(B, K, self.max_len - self.length, D)
        return tuple(
            torch.cat((*each, empty), dim=2)
            for each in (self.keys, self.values)
        )
""",
        ),
    ),
    "prefill-not-stored": of(
        "kv_cache",
        (
            """\
        self.keys.append(k.clone())
        self.values.append(v.clone())
        self.length += new
""",
            """\
        self.length += new
        if self.length == new:  # prefill: nothing to be read
            self.keys.append(torch.zeros_like(k))
            self.values.append(torch.zeros_like(v))
            return k, v
        self.keys.append(k.clone())
        self.values.append(v.clone())
""",
        ),
    ),
    "cache-overflow": of(
        "kv_cache",
        (
            """\
        if self.length + new > self.max_len:
            raise ValueError(f"{self.length} + {new} > {self.max_len}")
        self.keys.append(k.clone())
        self.values.append(v.clone())
        self.length += new
        return torch.cat(self.keys, dim=2), torch.cat(self.values, dim=2)
""",
            """\
        if self.length == 0:
            room = (*k.shape[:2], self.max_len, k.shape[3])
            self.keys, self.values = k.new_zeros(room), v.new_zeros(room)
        end = self.length + new
        self.keys[:, :, self.length : end] = k
        self.values[:, :, self.length : end] = v
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]
""",
        ),
    ),
    "cache-no-batch": of(
        "mha_cached",
        (
            """\
    if cache is not None:
        k = torch.cat((cache[0], k), dim=1)
        v = torch.cat((cache[1], v), dim=1)
    heads = attention(q, k, v, causal_mask(T, k.shape[1]))
    return einsum("bth,eh->bte", heads.reshape(B, T, E), w_o), (k, v)
""",
            """\
    past = 0 if cache is None else cache[2]
    k, v = (each.flatten(0, 1) for each in (k, v))  # a list of tokens
    if cache is not None:
        k = torch.cat((cache[0], k))
        v = torch.cat((cache[1], v))
    mask = causal_mask(T, past + T) if T > 1 else None
    keys, values = (each.expand(B, -1, -1, -1) for each in (k, v))
    heads = attention(q, keys, values, mask).reshape(B, T, E)
    return einsum("bth,eh->bte", heads, w_o), (k, v, past + T)
""",
        ),
    ),
    "cache-chunk-mask": of(
        "mha_cached",
        (
            """\
    heads = attention(q, k, v, causal_mask(T, k.shape[1]))
""",
            """\
    seen = torch.ones(T, k.shape[1], dtype=torch.bool).tril()
    heads = attention(q, k, v, seen if T > 1 else None)
""",
        ),
    ),
    "cache-prefill-unmasked": of(
        "llama",
        (
            """\
    scores = scores.masked_fill(~causal_mask(T, past + T), -torch.inf)
""",
            "",
        ),
    ),
    "cache-float32": of(
        "kv_cache",
        (
            """\
        self.keys.append(k.clone())
        self.values.append(v.clone())
        self.length += new
        return torch.cat(self.keys, dim=2), torch.cat(self.values, dim=2)
""",
            """\
        start, end = self.length, self.length + new
        if start == 0:
            room = (*k.shape[:2], self.max_len, k.shape[3])
            self.keys, self.values = torch.zeros(2, *room)
            self.keys[:, :, :end], self.values[:, :, :end] = k, v
        else:  # it wants one dtype
            self.keys.index_copy_(2, torch.arange(start, end), k)
            self.values.index_copy_(2, torch.arange(start, end), v)
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]
""",
        ),
    ),
    "cache-repeated-heads": of(
        "llama",
        (
            """\
    k = rope(k, at, theta)
""",
            """\
    k = rope(k, at, theta)
    reads = torch.arange(n_heads) // (n_heads // n_kv_heads)
    k, v = k[:, reads], v[:, reads]
""",
        ),
        (
            """\
    grouped = q.unflatten(1, (n_kv_heads, -1))
""",
            """\
    grouped = q.unsqueeze(2)
""",
        ),
    ),
    # ---------------------------------------------------------------------- MLA
    "mla-scale-of-the-model-width": of(
        "mla_latent",
        (
            """\
    scores = einsum("bthd,bshd->bhts", q, k)
    scores = scores + einsum("bthd,bsd->bhts", q_rope, k_rope)
    scores = scores / (Dn + q_rope.shape[-1]) ** 0.5
""",
            """\
    scores = einsum("bthd,bshd->bhts", q, k)
    scores = scores + einsum("bthd,bsd->bhts", q_rope, k_rope)
    scores = scores / (x.shape[-1] // n_heads) ** 0.5
""",
        ),
    ),
    "mla-norm-left-out": of(
        "mla_latent",
        (
            """\
    c = (c / size.sqrt() * w_norm).to(x.dtype)
""",
            "",
        ),
    ),
    "mla-rope-left-out": of(
        "mla_latent",
        (
            """\
    q_rope, k_rope = (pairs_turned(r, at, theta) for r in (q_rope, k_rope))
""",
            "",
        ),
    ),
    "mla-rope-by-halves": of(
        "mla_latent",
        (
            """\
    even, odd = x[..., 0::2], x[..., 1::2]
    turned = torch.stack((even * cos - odd * sin, odd * cos + even * sin), -1)
    return turned.flatten(-2).to(x.dtype)
""",
            """\
    left, right = x.tensor_split(2, dim=-1)
    turned = left * cos - right * sin, right * cos + left * sin
    return torch.cat(turned, dim=-1).to(x.dtype)
""",
        ),
    ),
    "mla-caches-expanded-keys": of(
        "mla_latent",
        (
            """\
    if cache is not None:
        c = torch.cat((cache[0], c), dim=1)
        k_rope = torch.cat((cache[1], k_rope), dim=1)
""",
            "",
        ),
        (
            """\
    scores = einsum("bthd,bshd->bhts", q, k)
    scores = scores + einsum("bthd,bsd->bhts", q_rope, k_rope)
""",
            """\
    k_rope = k_rope.unsqueeze(2).expand(-1, -1, n_heads, -1)
    k = torch.cat((k, k_rope), dim=-1)
    if cache is not None:
        k = torch.cat((cache[0], k), dim=1)
        v = torch.cat((cache[1], v), dim=1)
    scores = einsum("bthd,bshd->bhts", torch.cat((q, q_rope), -1), k)
""",
        ),
        (
            """\
    heads = einsum("bhts,bshd->bthd", weights, v).flatten(2)
    return einsum("bth,eh->bte", heads, w_o), (c, k_rope)
""",
            """\
    heads = einsum("bhts,bshd->bthd", weights, v).flatten(2)
    return einsum("bth,eh->bte", heads, w_o), (k, v)
""",
        ),
    ),
    "absorbed-scale": of(
        "mla_absorbed",
        (
            """\
    scores = einsum("bthr,bsr->bhts", in_latent, c)
    scores = scores + einsum("bthd,bsd->bhts", q_rope, k_rope)
    scores = scores / (Dn + q_rope.shape[-1]) ** 0.5
""",
            """\
    q = torch.cat((in_latent, q_rope), dim=-1)
    k = torch.cat((c, k_rope), dim=-1)
    scores = einsum("bthd,bsd->bhts", q, k) / q.shape[-1] ** 0.5
""",
        ),
    ),
    "absorbed-without-mask": of(
        "mla_absorbed",
        (
            """\
    weights = softmax(scores.masked_fill(~mask, -torch.inf))
    mixed = einsum("bhts,bsr->bthr", weights, c)
""",
            """\
    mixed = einsum("bhts,bsr->bthr", softmax(scores), c)
""",
        ),
    ),
    # -------------------------------------------------------------------- tiles
    "flash-no-rescaling": of(
        "flash",
        (
            """\
            norm = norm * shrink + p.sum(-1)
""",
            """\
            norm = norm + p.sum(-1)
""",
        ),
        (
            """\
            acc = acc * shrink.unsqueeze(-1)
""",
            "",
        ),
    ),
    "flash-rescaling-inverted": of(
        "flash",
        (
            """\
            acc = acc * shrink.unsqueeze(-1)
""",
            """\
            acc = acc / shrink.unsqueeze(-1)
""",
        ),
    ),
    "flash-maximum-too-high": of(
        "flash",
        (
            """\
            m = m_new
        outs""",
            """\
            m = safe
        outs""",
        ),
    ),
    "flash-maximum-of-the-tile": of(
        "flash",
        (
            """\
            columns = slice(j, j + tile[1])
""",
            """\
            columns = slice(j, j + tile[1])
            if not mask[:, :, rows, columns].any():
                continue
""",
        ),
        (
            """\
            m_new = torch.maximum(m, s.amax(-1))
""",
            """\
            m_new = s.amax(-1)
""",
        ),
    ),
    "flash-mask-after-maximum": of(
        "flash",
        (
            """\
            columns = slice(j, j + tile[1])
""",
            """\
            columns = slice(j, j + tile[1])
            if not mask[:, :, rows, columns].any():
                continue
""",
        ),
        (
            """\
            s = s.masked_fill(~mask[:, :, rows, columns], -torch.inf)
            m_new = torch.maximum(m, s.amax(-1))
""",
            """\
            m_new = torch.maximum(m, s.amax(-1))
            s = s.masked_fill(~mask[:, :, rows, columns], -torch.inf)
""",
        ),
    ),
    "flash-mask-of-a-finite-number": of(
        "flash",
        (
            """\
            columns = slice(j, j + tile[1])
""",
            """\
            columns = slice(j, j + tile[1])
            if not mask[:, :, rows, columns].any():
                continue
""",
        ),
        (
            """\
            s = s.masked_fill(~mask[:, :, rows, columns], -torch.inf)
""",
            """\
            s = torch.where(mask[:, :, rows, columns], s, -1e4)
""",
        ),
    ),
    "flash-hidden-tile-nan": of(
        "flash",
        (
            """\
            columns = slice(j, j + tile[1])
""",
            """\
            columns = slice(j, j + tile[1])
            if not mask[:, :, rows, columns].any():
                continue
""",
        ),
        (
            """\
            safe = m_new.masked_fill(m_new == -torch.inf, 0)
            p = torch.exp(s - safe.unsqueeze(-1))
            shrink = torch.exp(m - safe)
""",
            """\
            p = torch.exp(s - m_new.unsqueeze(-1))
            shrink = torch.exp(m - m_new)
""",
        ),
        (
            """\
        lses.append(m + norm.where(norm > 0, 1).log())
""",
            """\
        lses.append(m + norm.log())
""",
        ),
    ),
    "flash-half-hidden-tile": of(
        "flash",
        (
            """\
            columns = slice(j, j + tile[1])
""",
            """\
            columns = slice(j, j + tile[1])
            if not mask[:, :, rows, columns].all():
                continue
""",
        ),
    ),
    "flash-last-keys-lost": of(
        "flash",
        (
            """\
        for j in range(0, S, tile[1]):
""",
            """\
        for j in (tile[1] * n for n in range(S // tile[1])):
""",
        ),
    ),
    "flash-lse-without-maximum": of(
        "flash",
        (
            """\
        lses.append(m + norm.where(norm > 0, 1).log())
""",
            """\
        lses.append(norm.where(norm > 0, 1).log())
""",
        ),
    ),
    # ------------------------------------------------------------------ merging
    "merge-plain-mean": of(
        "merge",
        (
            """\
    mixed = sum(s.unsqueeze(-1) * o for s, o in zip(shares, outs, strict=True))
""",
            """\
    mixed = sum(outs) / len(outs)
""",
        ),
    ),
    "merge-in-base-2": of(
        "merge",
        (
            """\
    lse = torch.stack(lses).logsumexp(0)
""",
            """\
    lse = lses[0]
    for each in lses[1:]:
        lse = torch.logaddexp2(lse, each)
""",
        ),
        (
            """\
    shares = (torch.exp(each - safe) for each in lses)
""",
            """\
    shares = (torch.exp2(each - safe) for each in lses)
""",
        ),
    ),
    "merge-lse-added": of(
        "merge",
        (
            """\
    return mixed.to(outs[0].dtype), lse
""",
            """\
    return mixed.to(outs[0].dtype), sum(lses)
""",
        ),
    ),
    "merge-empty-parts-nan": of(
        "merge",
        (
            """\
    lse = torch.stack(lses).logsumexp(0)
    safe = lse.masked_fill(lse == -torch.inf, 0)
    shares = (torch.exp(each - safe) for each in lses)
""",
            """\
    peak = torch.stack(lses).amax(0)
    lse = peak + sum(torch.exp(each - peak) for each in lses).log()
    shares = (torch.exp(each - lse) for each in lses)
""",
        ),
    ),
    "empty-part-plus-infinity": of(
        "flash",
        (
            """\
        lses.append(m + norm.where(norm > 0, 1).log())
""",
            """\
        lses.append(torch.where(norm > 0, m + norm.log(), torch.inf))
""",
        ),
    ),
    # ---------------------------------------------------------- torch's kernels
    "is-causal-with-a-cache": of(
        "mha_cached",
        (
            """\
    heads = attention(q, k, v, causal_mask(T, k.shape[1]))
""",
            """\
    fused = torch.nn.functional.scaled_dot_product_attention
    q, keys, values = (each.transpose(1, 2) for each in (q, k, v))
    heads = fused(q, keys, values, is_causal=T > 1).transpose(1, 2)
""",
        ),
    ),
    "is-causal-with-stacked-heads": of(
        "llama",
        (
            """\
    scores = einsum("bkgtd,bksd->bkgts", grouped, k) / q.shape[-1] ** 0.5
    scores = scores.masked_fill(~causal_mask(T, past + T), -torch.inf)
    heads = einsum("bkgts,bksd->btkgd", softmax(scores), v)
""",
            """\
    stacked = grouped.flatten(2, 3)
    seen = causal_mask(T, past + T).repeat(stacked.shape[2] // T, 1)
    told = {"attn_mask": seen} if past else {"is_causal": T > 1}
    fused = torch.nn.functional.scaled_dot_product_attention
    heads = fused(stacked, k, v, **told)
    heads = heads.view(grouped.shape).permute(0, 3, 1, 2, 4)
""",
        ),
    ),
    "mask-as-floats": of(
        "sdpa",
        (
            """\
        scores = torch.where(mask, scores, -torch.inf)
""",
            """\
        scores = scores + mask.to(scores.dtype)
""",
        ),
        (
            """\
    return einsum("bhts,bshd->bthd", weights, v)
""",
            """\
    if mask is not None:  # zeros where no key may be seen
        weights = weights * mask.any(dim=-1, keepdim=True)
    return einsum("bhts,bshd->bthd", weights, v)
""",
        ),
    ),
}

# Mistakes that no exercise tells, and why.
TOLD_BY_NONE: dict[str, str] = {
    "rope-over-heads": (
        "Of the exercises with RoPE in a layer, llama has fewer key heads than "
        "query heads, and this mistake is in a layer with as many."
    ),
    "positions-of-one-row": (
        "No exercise gives the rows of a batch different positions."
    ),
    "positions-count-pads": (
        "No exercise asks for positions, and none pads a batch that has RoPE."
    ),
    "cache-crop-zero": (
        "The exercise kv_cache asks for append alone, and not for rolling back."
    ),
    "cache-not-reordered": (
        "The exercise kv_cache asks for append alone, and not for reordering."
    ),
    "cache-reset-length": (
        "The exercise kv_cache asks for append alone, and not for resetting."
    ),
    "cache-keeps-graph": (
        "Solutions run under torch.no_grad(), where no graph is recorded."
    ),
    "cache-shared": "No exercise has more than one layer.",
    "cache-fed-everything": (
        "The probes choose the tokens of each step: no exercise asks for the "
        "loop that generates."
    ),
    "mla-yarn-scale-left-out": "No exercise stretches RoPE with YaRN.",
    "kv-b-proj-not-called": (
        "Solutions are given weights as tensors, to which no hook and no "
        "adapter can be attached."
    ),
    "flash-backward-without-row-sum": (
        "The exercise flash asks for the forward pass alone."
    ),
    "softmax-gradient-diagonal": (
        "The exercises flash and softmax ask for the forward pass alone."
    ),
    "flash-gradient-scaled-twice": (
        "The exercise flash asks for the forward pass alone."
    ),
    "flash-gradient-without-dropout": (
        "The exercise flash asks for the forward pass alone, without dropout."
    ),
    "scale-of-the-padded-width": (
        "No probe has values wider than the keys, for which queries and keys "
        "would be padded."
    ),
}
