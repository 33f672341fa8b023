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


# Lines of einsum.py that several mistakes change.
SCALED = """\
    scores = einsum("bthd,bshd->bhts", q, k)
    scores = scores / q.shape[-1] ** 0.5
"""
MASKED = "        scores = torch.where(mask, scores, -torch.inf)\n"
WEIGHTED = """\
    weights = softmax(scores)
    return einsum("bhts,bshd->bthd", weights, v)
"""
DIVIDED = "    weights = e / total.where(total > 0, 1)\n"
ONLINE = """\
        m_new = torch.maximum(m, piece.amax(-1, keepdim=True))
        norm = norm * torch.exp(m - m_new)
        norm = norm + torch.exp(piece - m_new).sum(-1, keepdim=True)
"""
CAUSAL = "    return torch.arange(S) <= torch.arange(T).unsqueeze(1) + past\n"
PADDING = "    return valid.unsqueeze(1).unsqueeze(1)\n"
WINDOW = "    return (distance >= 0) & (distance < size)\n"
PROJECTED = """\
def mha(x, w_q, w_k, w_v, w_o, n_heads, mask=None):
    B, T, E = x.shape
    q = einsum("bte,he->bth", x, w_q).view(B, T, n_heads, -1)
    k = einsum("bte,he->bth", x, w_k).view(B, T, n_heads, -1)
    v = einsum("bte,he->bth", x, w_v).view(B, T, n_heads, -1)
"""
MERGED = "    merged = heads.reshape(B, T, E)\n"
PROJECTED_BACK = MERGED + '    return einsum("bth,eh->bte", merged, w_o)\n'
READS = "    reads = torch.arange(n_heads) // (n_heads // n_kv_heads)\n"
READ = "    merged = attention(q, k[:, :, reads], v[:, :, reads], mask)\n"
CHUNK = "    heads = attention(q, k, v, causal_mask(T, k.shape[1]))\n"
TOP_LEFT = """\
    seen = torch.ones(T, k.shape[1], dtype=torch.bool).tril()
    heads = attention(q, k, v, seen if T > 1 else None)
"""
FREQUENCY = """\
    frequency = theta ** -(torch.arange(0, D, 2, dtype=torch.float64) / D)
    angle = positions.unsqueeze(-1) * frequency
"""
PAIR = """\
    pair = torch.complex(wide[..., : D // 2], wide[..., D // 2 :])
    turned = pair * torch.polar(torch.ones_like(angle), angle)
    return torch.cat((turned.real, turned.imag), dim=-1).to(x.dtype)
"""
POSITIONS = """\
    past = 0 if cache is None else cache["k"].shape[2]
    at = torch.arange(past, past + T)
"""
ROTATED = "    k = rope(k, at, theta)\n"
GROUPED = """\
    grouped = q.unflatten(1, (n_kv_heads, -1))
    scores = einsum("bkgtd,bksd->bkgts", grouped, k) / q.shape[-1] ** 0.5
"""
HIDDEN = "    hidden = ~causal_mask(T, past + T)\n"
STORED = """\
        self.keys.append(k.clone())
        self.values.append(v.clone())
        self.length += new
"""
RETURNED = "        return k, v\n"
ROPE_PART = """\
    q_rope = pairs_turned(q_rope, at, theta)
    k_rope = pairs_turned(k_rope, at, theta)
"""
LATENT = """\
    heads = attention(q, k, v, causal_mask(T, past + T)).flatten(2)
"""
TILES = "        for j in range(0, S, tile[1]):\n"
SKIPPED = "            if not seen.any():\n"
LARGEST = """\
            s = s.masked_fill(~seen, -torch.inf)
            m_new = torch.maximum(m, s.amax(-1))
            safe = m_new.masked_fill(m_new == -torch.inf, 0)
"""
RESCALED = """\
            norm = norm * shrink + p.sum(-1)
            acc = acc * shrink.unsqueeze(-1)
"""
LSE = "        lses.append(m + total.log())\n"
MERGE = """\
    lse = torch.stack(lses).logsumexp(0)
    safe = lse.masked_fill(lse == -torch.inf, 0)
    shares = (torch.exp(each - safe) for each in lses)
"""
MIXED = """\
    mixed = sum(s.unsqueeze(-1) * o for s, o in zip(shares, outs, strict=True))
"""

OTHERWISE = {
    # softmax
    "softmax-overflow": of(
        "softmax",
        (
            "    largest = largest.where(largest > -torch.inf, 0)\n",
            "    largest = torch.zeros_like(largest)\n",
        ),
        (DIVIDED, "    weights = e / total\n"),
    ),
    "softmax-one-maximum": of(
        "softmax",
        (
            "    largest = x.float().amax(dim, keepdim=True).to(x.dtype)\n",
            "    largest = x.max()\n",
        ),
        (DIVIDED, "    weights = e / total\n"),
    ),
    "online-sum-not-rescaled": of(
        "online_softmax",
        ("        norm = norm * torch.exp(m - m_new)\n", ""),
    ),
    "online-maximum-forgotten": of(
        "online_softmax",
        (
            ONLINE,
            """\
        m_new = piece.amax(-1, keepdim=True)
        base = m_new.where(m_new > -torch.inf, 0)
        norm = norm * torch.exp(m - base)
        norm = norm + torch.exp(piece - base).sum(-1, keepdim=True)
""",
        ),
        (
            "    weights = torch.exp(wide - m) / norm.clamp(min=1e-30)\n",
            """\
    m = m.where(m > -torch.inf, 0)
    weights = torch.exp(wide - m) / norm.where(norm > 0, 1)
""",
        ),
    ),
    "online-masked-chunk": of(
        "online_softmax",
        (
            "    m = torch.full_like(wide[..., :1], -1e30)\n",
            "    m = torch.full_like(wide[..., :1], -torch.inf)\n",
        ),
    ),
    # masks
    "causal-upside-down": of("masks", (CAUSAL, CAUSAL.replace("<=", ">="))),
    "causal-without-itself": of("masks", (CAUSAL, CAUSAL.replace("<=", "<"))),
    "causal-sees-next": of(
        "masks", (CAUSAL, CAUSAL.replace("past", "past + 1"))
    ),
    "causal-top-left": of("masks", (CAUSAL, CAUSAL.replace(" + past", ""))),
    "padding-of-queries": of(
        "masks", (PADDING, "    return valid.unsqueeze(1).unsqueeze(3)\n")
    ),
    "padding-without-axes": of("masks", (PADDING, "    return valid\n")),
    "padding-on-heads": of(
        "masks", (PADDING, "    return valid.unsqueeze(0).unsqueeze(2)\n")
    ),
    "window-one-more": of("masks", (WINDOW, WINDOW.replace("< s", "<= s"))),
    "window-not-causal": of(
        "masks", (WINDOW, "    return distance.abs() < size\n")
    ),
    "documents-leak": of(
        "masks",
        (
            "    same = ids.unsqueeze(2) == ids.unsqueeze(1)\n",
            "    same = ids.unsqueeze(2) >= ids.unsqueeze(1)\n",
        ),
    ),
    # scores, masks and weights
    "mask-times-tiny": of(
        "sdpa", (MASKED, "        scores = scores - 1e-9 * ~mask\n")
    ),
    "mask-times-scores": of(
        "sdpa", (MASKED, "        scores = scores * mask\n")
    ),
    "mask-added-as-ones": of(
        "sdpa", (MASKED, "        scores = mask + scores\n")
    ),
    "mask-as-floats": of(
        "sdpa",
        (MASKED, "        scores = mask + scores\n"),
        (
            "    return attention(q, k, v, mask).transpose(1, 2)\n",
            """\
    out = attention(q, k, v, mask).transpose(1, 2)
    return out if mask is None else out * mask.any(-1, keepdim=True)
""",
        ),
    ),
    "mask-inverted": of(
        "sdpa",
        (MASKED, "        scores = torch.where(mask, -torch.inf, scores)\n"),
    ),
    "mask-after-softmax": of(
        "sdpa",
        (MASKED, "        pass\n"),
        (
            WEIGHTED,
            """\
    weights = softmax(scores)
    if mask is not None:
        weights = weights * mask
    return einsum("bhts,bshd->bthd", weights, v)
""",
        ),
    ),
    "mask-minus-1e9": of(
        "sdpa",
        (
            MASKED,
            "        wide = torch.promote_types(scores.dtype, torch.float32)\n"
            "        scores = torch.where(mask, scores.to(wide), -1e9)\n",
        ),
        (
            WEIGHTED,
            WEIGHTED.replace("softmax(scores)", "softmax(scores).to(v.dtype)"),
        ),
    ),
    "mask-minus-1e9-added": of(
        "sdpa",
        (
            MASKED,
            "        wide = torch.promote_types(scores.dtype, torch.float32)\n"
            "        scores = scores.to(wide) + (1 - mask.to(wide)) * -1e9\n",
        ),
        (
            WEIGHTED,
            WEIGHTED.replace("softmax(scores)", "softmax(scores).to(v.dtype)"),
        ),
    ),
    "mask-minus-1e9-in-half": of(
        "sdpa",
        (
            MASKED,
            "        scores = scores.masked_fill(mask.logical_not(), -1e9)\n",
        ),
    ),
    "empty-row-nan": of(
        "sdpa",
        (WEIGHTED, WEIGHTED.replace("softmax(scores)", "scores.softmax(-1)")),
    ),
    "softmax-over-queries": of(
        "sdpa",
        (WEIGHTED, WEIGHTED.replace("softmax(scores)", "softmax(scores, 2)")),
    ),
    "scale-model-width": of(
        "sdpa", (SCALED, SCALED.replace("[-1]", "[2:].numel()"))
    ),
    "scale-missing": of("sdpa", (SCALED, SCALED.splitlines(True)[0])),
    "scale-inverted": of("sdpa", (SCALED, SCALED.replace("/", "*"))),
    "keys-viewed-not-transposed": of(
        "sdpa",
        (
            SCALED,
            """\
    B, S, H, D = k.shape
    keys = k.transpose(1, 2).reshape(B, H, D, S)
    scores = einsum("bthd,bhds->bhts", q, keys) / D**0.5
""",
        ),
    ),
    "weights-transposed": of(
        "sdpa",
        (
            WEIGHTED,
            """\
    weights = softmax(scores).mT
    return (weights @ v.transpose(1, 2)).transpose(1, 2)
""",
        ),
    ),
    # heads
    "merge-swaps-length-and-width": of(
        "mha",
        (MERGED, "    merged = heads.permute(0, 2, 3, 1).reshape(B, T, E)\n"),
    ),
    "merge-without-transpose": of(
        "mha", (MERGED, "    merged = heads.transpose(1, 2).reshape(B, T, E)\n")
    ),
    "split-by-view-alone": of(
        "mha",
        (
            PROJECTED,
            PROJECTED.replace(
                "(B, T, n_heads, -1)", "(B, n_heads, T, -1).transpose(1, 2)"
            ),
        ),
    ),
    "batch-and-heads-swapped": of(
        "mha",
        (
            MERGED,
            """\
    heads = heads.transpose(1, 2).reshape(n_heads, B, T, -1)
    merged = heads.permute(1, 2, 0, 3).reshape(B, T, E)
""",
        ),
    ),
    "batch-read-as-sequence": of(
        "mha",
        (
            PROJECTED,
            PROJECTED.replace(
                "    B, T", "    x = x.transpose(0, 1)\n    B, T"
            ),
        ),
        (
            PROJECTED_BACK,
            PROJECTED_BACK.replace("w_o)", "w_o).transpose(0, 1)"),
        ),
    ),
    "output-projection-missing": of(
        "mha", (PROJECTED_BACK, MERGED + "    return merged\n")
    ),
    "values-from-the-key-projection": of(
        "mha", (PROJECTED, PROJECTED.replace("x, w_v)", "x, w_k)"))
    ),
    "one-query-for-all-heads": of(
        "mqa",
        (
            "def mqa(x, w_q, w_k, w_v, w_o, n_heads, mask=None):\n",
            """\
def mqa(x, w_q, w_k, w_v, w_o, n_heads, mask=None):
    w_q = w_q[: len(w_k)].repeat(n_heads, 1)
""",
        ),
    ),
    "group-found-by-number": of(
        "gqa", (READS, "    reads = torch.arange(n_heads) // n_kv_heads\n")
    ),
    "groups-tiled": of(
        "gqa", (READS, "    reads = torch.arange(n_heads) % n_kv_heads\n")
    ),
    "queries-of-the-first-group": of(
        "gqa",
        (
            READS,
            READS
            + "    first = torch.arange(n_heads) % (n_heads // n_kv_heads)\n"
            "    q = q[:, :, first]\n",
        ),
    ),
    "attention-across-heads": of(
        "gqa",
        (
            READ,
            """\
    k, v = k[:, :, reads], v[:, :, reads]
    scores = einsum("bthd,btgd->bthg", q, k) / q.shape[-1] ** 0.5
    merged = einsum("bthg,btgd->bthd", softmax(scores), v)
""",
        ),
    ),
    "mask-argument-ignored": of("gqa", (READ, READ.replace(", mask)", ")"))),
    "pooling-across-groups": of(
        "mha_to_gqa",
        (
            "        w.view(n_kv_heads, group, D, -1).mean(1)",
            "        w.view(group, n_kv_heads, D, -1).mean(0)",
        ),
    ),
    # cross-attention
    "context-ignored": of(
        "cross",
        (
            '(einsum("bsc,hc->bsh", context, w) for',
            '(einsum("bsc,hc->bsh", x, w) for',
        ),
        ("(y.view(B, S, n_heads, -1)", "(y.view(B, T, n_heads, -1)"),
    ),
    "queries-from-the-context": of(
        "cross",
        (
            "    S = context.shape[1]\n",
            "    S = context.shape[1]\n    x = context\n",
        ),
    ),
    "causal-cross-attention": of(
        "cross",
        (
            "    heads = attention(q, k, v, mask)\n    return",
            """\
    seen = causal_mask(T, S)
    heads = attention(q, k, v, seen if mask is None else seen & mask)
    return""",
        ),
    ),
    # caches
    "not-causal": of("mha_cached", (CHUNK, "    heads = attention(q, k, v)\n")),
    "causal-in-training-only": of(
        "mha_cached", (CHUNK, "    heads = attention(q, k, v, None)\n")
    ),
    "cache-chunk-mask": of("mha_cached", (CHUNK, TOP_LEFT)),
    "is-causal-with-a-cache": of("mha_cached", (CHUNK, TOP_LEFT)),
    "cache-no-batch": of(
        "mha_cached",
        (
            "        k = torch.cat((cache[0], k), dim=1)\n"
            "        v = torch.cat((cache[1], v), dim=1)\n" + CHUNK,
            """\
        past = cache[0].shape[1]
    else:
        cache, past = (k[:1, :0], v[:1, :0]), 0
    k = torch.cat((cache[0], k.flatten(0, 1)[None]), dim=1)
    v = torch.cat((cache[1], v.flatten(0, 1)[None]), dim=1)
    every = (y.expand(B, -1, -1, -1) for y in (k, v))
    heads = attention(q, *every, None if T == 1 else causal_mask(T, past + T))
""",
        ),
    ),
    "cache-whole-buffer": of(
        "kv_cache",
        (
            RETURNED,
            """\
        room = (0, 0, 0, self.max_len - self.length)
        return tuple(torch.nn.functional.pad(y, room) for y in (k, v))
""",
        ),
    ),
    "prefill-not-stored": of(
        "kv_cache",
        (
            STORED,
            """\
        first = self.length == 0
        self.keys.append(k * 0 if first else k.clone())
        self.values.append(v * 0 if first else v.clone())
        self.length += new
        if first:
            return k, v
""",
        ),
    ),
    "cache-overflow": of(
        "kv_cache",
        (
            '            raise ValueError(f"no room for {new} more")\n',
            """\
            self.length += new
            k, v = k[:, :, 1:], v[:, :, 1:]
            if k.shape[2]:
                self.length -= new
                raise ValueError
            new = 0
""",
        ),
    ),
    "cache-float32": of(
        "kv_cache",
        (
            STORED,
            """\
        self.keys.append(k.float())
        self.values.append(v.float())
        self.length += new
""",
        ),
    ),
    "cache-repeated-heads": of(
        "llama",
        (
            ROTATED,
            ROTATED + "    group = n_heads // n_kv_heads\n"
            "    k, v = (y.repeat_interleave(group, dim=1) for y in (k, v))\n",
        ),
        (GROUPED, GROUPED.replace("(n_kv_heads, -1)", "(n_heads, 1)")),
    ),
    "cache-prefill-unmasked": of(
        "llama", (HIDDEN, "    hidden = torch.tensor(False)\n")
    ),
    "is-causal-with-stacked-heads": of(
        "llama",
        (
            HIDDEN,
            """\
    hidden = ~causal_mask(T, past + T).repeat(n_heads // n_kv_heads, 1, 1)
    if past == 0:
        hidden[1:] = False
""",
        ),
    ),
    # positions
    "rope-over-heads": of(
        "llama",
        (
            "    q, k, v = rope(q, at, theta), k.transpose(1, 2), "
            "v.transpose(1, 2)\n" + ROTATED,
            """\
    heads, v = past + torch.arange(n_heads), v.transpose(1, 2)
    q = rope(q.transpose(1, 2), heads, theta).transpose(1, 2)
    k = rope(k, heads[:n_kv_heads], theta).transpose(1, 2)
""",
        ),
    ),
    "rope-other-layout": of(
        "rope",
        (
            PAIR,
            PAIR.replace(": D // 2]", "0::2]")
            .replace("D // 2 :]", "1::2]")
            .replace("torch.cat(", "torch.stack(")
            .replace("dim=-1)", "dim=-1).flatten(-2)"),
        ),
    ),
    "rope-mixed-layouts": of(
        "rope",
        (
            PAIR,
            """\
    cos, sin = (y.repeat_interleave(2, -1) for y in (angle.cos(), angle.sin()))
    half = torch.cat((-wide[..., D // 2 :], wide[..., : D // 2]), dim=-1)
    return (wide * cos + half * sin).to(x.dtype)
""",
        ),
    ),
    "rope-no-minus": of(
        "rope",
        (
            PAIR,
            """\
    a, b = wide[..., : D // 2], wide[..., D // 2 :]
    cos, sin = angle.cos(), angle.sin()
    return torch.cat((a * cos + b * sin, a * sin + b * cos), -1).to(x.dtype)
""",
        ),
    ),
    "rope-sign": of("rope", (PAIR, PAIR.replace(", angle)", ", -angle)"))),
    "rope-pair-index": of(
        "rope", (FREQUENCY, FREQUENCY.replace("0, D, 2,", "D // 2,"))
    ),
    "rope-exponent": of(
        "rope", (FREQUENCY, FREQUENCY.replace("0, D, 2,", "1, D + 1, 2,"))
    ),
    "rope-theta-ignored": of(
        "rope", (FREQUENCY, FREQUENCY.replace("theta", "10000.0"))
    ),
    "rope-half-precision": of(
        "rope",
        (
            FREQUENCY,
            """\
    frequency = theta ** (-torch.arange(0, D, 2).bfloat16() / D)
    angle = positions.bfloat16().unsqueeze(-1) * frequency
""",
        ),
        (
            PAIR,
            """\
    a, b = wide[..., : D // 2], wide[..., D // 2 :]
    cos, sin = angle.cos().to(wide.dtype), angle.sin().to(wide.dtype)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), -1).to(x.dtype)
""",
        ),
    ),
    "rope-queries-only": of("llama", (ROTATED, "")),
    "rope-on-values": of(
        "llama", (ROTATED, ROTATED + "    v = rope(v, at, theta)\n")
    ),
    "positions-restart": of(
        "llama", (POSITIONS, POSITIONS.replace("(past, past + T)", "(T)"))
    ),
    "positions-off-by-one": of(
        "llama",
        (POSITIONS, POSITIONS.replace("+ T)", "+ T) + (past > 0)")),
    ),
    "positions-after-append": of(
        "llama", ("rope(q, at, theta)", "rope(q, at + T, theta)")
    ),
    "keys-rotated-twice": of(
        "llama",
        (
            GROUPED,
            GROUPED.replace(
                "grouped, k)",
                "grouped, rope(k, torch.arange(past + T), theta))",
            ),
        ),
    ),
    # MLA
    "mla-scale-of-the-model-width": of(
        "mla_latent",
        (
            LATENT,
            "    q = q * (q.shape[-1] / (x.shape[2] // n_heads)) ** 0.5\n"
            + LATENT,
        ),
    ),
    "mla-norm-left-out": of(
        "mla_latent", ("    c = (c / size.sqrt() * w_norm).to(x.dtype)\n", "")
    ),
    "mla-rope-left-out": of("mla_latent", (ROPE_PART, "")),
    "mla-rope-by-halves": of(
        "mla_latent",
        (
            ROPE_PART,
            """\
    q_rope = rope(q_rope.transpose(1, 2), at, theta).transpose(1, 2)
    k_rope = rope(k_rope, at, theta)
""",
        ),
    ),
    "mla-caches-expanded-keys": of(
        "mla_latent",
        (
            """\
        c = torch.cat((cache[0], c), dim=1)
        k_rope = torch.cat((cache[1], k_rope), dim=1)
    cache = (c, k_rope)
""",
            "        pass\n",
        ),
        (
            LATENT,
            """\
    if cache is not None:
        k = torch.cat((cache[0], k), dim=1)
        v = torch.cat((cache[1], v), dim=1)
    cache = (k, v)
"""
            + LATENT,
        ),
    ),
    "absorbed-scale": of(
        "mla_absorbed",
        (
            "    scores = scores / (Dn + q_rope.shape[-1]) ** 0.5\n",
            "    scores = scores / (c.shape[-1] + q_rope.shape[-1]) ** 0.5\n",
        ),
    ),
    "absorbed-without-mask": of(
        "mla_absorbed",
        ("    scores = scores.masked_fill(later, -torch.inf)\n", ""),
    ),
    # flash and merge
    "flash-no-rescaling": of(
        "flash", (RESCALED, "            norm = norm + p.sum(-1)\n")
    ),
    "flash-rescaling-inverted": of(
        "flash", (RESCALED, RESCALED.replace("acc * ", "acc / "))
    ),
    "flash-maximum-too-high": of(
        "flash", ("            m = m_new\n", "            m = safe\n")
    ),
    "flash-maximum-of-the-tile": of(
        "flash",
        (
            LARGEST,
            LARGEST.replace("torch.maximum(m, s.amax(-1))", "s.amax(-1)"),
        ),
    ),
    "flash-mask-after-maximum": of(
        "flash",
        (
            LARGEST,
            """\
            m_new = torch.maximum(m, s.amax(-1))
            s = s.masked_fill(~seen, -torch.inf)
            safe = m_new
""",
        ),
    ),
    "flash-mask-of-a-finite-number": of(
        "flash", (LARGEST, LARGEST.replace("-torch.inf)\n", "-10_000.0)\n", 1))
    ),
    "flash-hidden-tile-nan": of(
        "flash",
        (
            LARGEST,
            LARGEST.replace(
                "m_new.masked_fill(m_new == -torch.inf, 0)", "m_new"
            ),
        ),
    ),
    "flash-half-hidden-tile": of(
        "flash", (SKIPPED, SKIPPED.replace("any", "all"))
    ),
    "flash-last-keys-lost": of(
        "flash", (TILES, TILES.replace("S,", "S // tile[1] * tile[1],"))
    ),
    "flash-lse-without-maximum": of("flash", (LSE, LSE.replace("m + ", ""))),
    "empty-part-plus-infinity": of(
        "flash",
        (LSE, LSE.replace("m +", "m.where(norm > 0, torch.inf) +")),
    ),
    "merge-plain-mean": of(
        "merge", (MIXED, "    mixed = torch.stack(outs).mean(0)\n")
    ),
    "merge-in-base-2": of(
        "merge",
        (
            MERGE,
            """\
    peak = torch.stack(lses).amax(0)
    peak = peak.masked_fill(peak == -torch.inf, 0)
    lse = peak + torch.exp2(torch.stack(lses) - peak).sum(0).log2()
    safe = lse.masked_fill(lse == -torch.inf, 0)
    shares = (torch.exp2(each - safe) for each in lses)
""",
        ),
    ),
    "merge-lse-added": of(
        "merge",
        (
            "    return mixed.to(outs[0].dtype), lse\n",
            "    return mixed.to(outs[0].dtype), sum(lses)\n",
        ),
    ),
    "view-after-the-transpose": of(
        "mha",
        (
            MERGED,
            """\
    heads = heads.transpose(1, 2).contiguous()
    merged = heads.transpose(1, 2).view(B, T, E)
""",
        ),
    ),
    "dropout-in-evaluation": of(
        "mha",
        (
            MERGED,
            """\
    merged = torch.nn.Dropout(0.1)(heads.reshape(B, T, E))
""",
        ),
    ),
    "scale-of-the-padded-width": of(
        "sdpa",
        (
            SCALED,
            "    more = max(0, v.shape[-1] - q.shape[-1])  # all of one width\n"
            "    pad = torch.nn.functional.pad\n"
            "    q, k = pad(q, (0, more)), pad(k, (0, more))\n" + SCALED,
        ),
    ),
    "merge-empty-parts-nan": of(
        "merge",
        (
            MERGE,
            """\
    peak = torch.stack(lses).amax(0)
    lse = peak + torch.exp(torch.stack(lses) - peak).sum(0).log()
    shares = (torch.exp(each - lse) for each in lses)
""",
        ),
    ),
}

# Mistakes that no exercise tells, and why.
TOLD_BY_NONE: dict[str, str] = {
    "softmax-sum-in-half": "On rows as short as those here it is right "
    "up to rounding; only a sum above 65,504 overflows float16.",
    "mask-integer-not": "The exercise asks for padding_mask from bool, and of "
    "bool ~ is right; the integer mask of a tokenizer is in no exercise.",
    "masks-joined-by-or": "No exercise joins a mask of the caller with one of "
    "the layer: a layer is given a mask, or is causal by itself.",
    "prefix-sees-all": "No exercise asks for the mask of a prefix LM.",
    "padding-lost-in-decoding": "The exercises with a cache have no pads.",
    "scale-in-float32": "In float64 it is wrong by 1e-7 of the result, and a "
    "solution may compute in float32.",
    "scores-in-half": "A solution may compute in half precision, and the "
    "scores of the probes in half precision do not overflow.",
    "head-width-from-the-model": "In every exercise where it could matter, the "
    "width of a head is E / n_heads.",
    "queries-of-a-group-summed": "Its output projection has the width of the "
    "keys, so that with the weights of the exercise it raises an error.",
    "stale-context": "The exercise on cross-attention has no cache.",
    "fused-weights-split-by-head": "The exercises have separate weights for "
    "queries, keys and values.",
    "fused-slice-taken-twice": "The exercises have separate weights for "
    "queries, keys and values.",
    "rope-rows-with-other-heads": "No exercise reorders the rows of weights "
    "from one layout of RoPE to the other.",
    "float8-scales-left-out": "No exercise reads float8 weights.",
    "residual-after-the-norm": "No exercise asks for a decoder block.",
    "residual-of-the-result": "No exercise asks for a decoder block.",
    "one-norm-used-twice": "No exercise asks for a decoder block.",
    "last-norm-missing": "No exercise asks for a model with an output layer.",
    "caches-written-in-part": "No exercise has a model of several layers.",
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
}
