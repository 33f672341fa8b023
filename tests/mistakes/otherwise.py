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
    "softmax-overflow": of(
        "softmax",
        ("(x - largest).to(", "x.to("),
        ("e / total.where(total > 0, 1)", "e / total"),
    ),
    "softmax-one-maximum": of(
        "softmax",
        ("x.float().amax(dim, keepdim=True).to(x.dtype)", "x.max()"),
        ("e / total.where(total > 0, 1)", "e / total"),
    ),
    "online-sum-not-rescaled": of(
        "online_softmax", ("        norm = norm * torch.exp(m - m_new)\n", "")
    ),
    "online-maximum-forgotten": of(
        "online_softmax",
        (
            "torch.maximum(m, piece.amax(-1, keepdim=True))",
            "piece.amax(-1, keepdim=True).clamp(min=-1e30)",
        ),
    ),
    "online-masked-chunk": of(
        "online_softmax",
        ("(wide[..., :1], -1e30)", "(wide[..., :1], -torch.inf)"),
    ),
    "causal-upside-down": of(
        "masks", ("torch.arange(S) <= torch", "torch.arange(S) >= torch")
    ),
    "causal-without-itself": of(
        "masks", ("torch.arange(S) <= torch", "torch.arange(S) < torch")
    ),
    "causal-sees-next": of(
        "masks", ("    past = S - T\n", "    past = S - T + 1\n")
    ),
    "causal-top-left": of("masks", ("    past = S - T\n", "    past = 0\n")),
    "padding-of-queries": of(
        "masks",
        ("valid.unsqueeze(1).unsqueeze(1)", "valid.unsqueeze(1).unsqueeze(3)"),
    ),
    "padding-without-axes": of(
        "masks", ("valid.unsqueeze(1).unsqueeze(1)", "valid")
    ),
    "padding-on-heads": of(
        "masks",
        ("valid.unsqueeze(1).unsqueeze(1)", "valid.unsqueeze(1).unsqueeze(0)"),
    ),
    "window-one-more": of("masks", ("(distance < size)", "(distance <= size)")),
    "window-not-causal": of(
        "masks", ("(distance >= 0) & (dist", "(distance > -size) & (dist")
    ),
    "documents-leak": of(
        "masks", ("ids.unsqueeze(2) == ids", "ids.unsqueeze(2) >= ids")
    ),
    "mask-times-scores": of(
        "sdpa",
        (
            "scores = torch.where(mask, scores, -torch.inf)",
            "scores = torch.where(mask, scores, 0)",
        ),
    ),
    "mask-added-as-ones": of(
        "sdpa",
        (
            "scores = torch.where(mask, scores, -torch.inf)",
            "scores = scores + mask.to(scores.dtype)",
        ),
    ),
    "mask-inverted": of(
        "sdpa",
        (
            "scores = torch.where(mask, scores, -torch.inf)",
            "scores = torch.where(mask, -torch.inf, scores)",
        ),
    ),
    "mask-after-softmax": of(
        "sdpa",
        (
            "    if mask is not None:\n"
            "        scores = torch.where(mask, scores, -torch.inf)\n"
            "    weights = softmax(scores)\n",
            "    weights = softmax(scores)\n"
            "    if mask is not None:\n"
            "        weights = torch.where(mask, weights, 0)\n",
        ),
    ),
    "mask-minus-1e9": of(
        "sdpa",
        (
            "scores = torch.where(mask, scores, -torch.inf)",
            "scores = torch.where(mask, scores, -1e9)",
        ),
    ),
    "mask-minus-1e9-in-half": of(
        "sdpa",
        (
            "scores = torch.where(mask, scores, -torch.inf)",
            "scores = scores.masked_fill(mask.logical_not(), -1e9)",
        ),
    ),
    "empty-row-nan": of(
        "sdpa",
        (
            "    weights = softmax(scores)\n",
            "    weights = torch.exp(scores - scores.logsumexp(-1, True))\n",
        ),
    ),
    "softmax-over-queries": of(
        "sdpa",
        (
            "    weights = softmax(scores)\n",
            "    weights = softmax(scores, dim=-2)\n",
        ),
    ),
    "scale-model-width": of(
        "mha",
        (
            "    scores = scores / q.shape[-1] ** 0.5\n",
            "    scores = scores / q.flatten(2).shape[-1] ** 0.5\n",
        ),
    ),
    "scale-missing": of(
        "sdpa", ("    scores = scores / q.shape[-1] ** 0.5\n", "")
    ),
    "scale-inverted": of(
        "sdpa",
        (
            "    scores = scores / q.shape[-1] ** 0.5\n",
            "    scores = scores * q.shape[-1] ** 0.5\n",
        ),
    ),
    "keys-viewed-not-transposed": of(
        "sdpa",
        (
            "    q, k, v = (x.transpose(1, 2) for x in (q, k, v))\n",
            "    k = k.flatten(2).unflatten(2, (k.shape[3], -1)).mT\n"
            "    q, k, v = (x.transpose(1, 2) for x in (q, k, v))\n",
        ),
    ),
    "weights-transposed": of(
        "sdpa",
        (
            '    return einsum("bhts,bshd->bthd", weights, v)\n',
            "    return (weights.mT @ v.transpose(1, 2)).transpose(1, 2)\n",
        ),
    ),
    "groups-tiled": of(
        "gqa",
        (
            "torch.arange(n_heads) // (n_heads // n_kv_heads)",
            "torch.arange(n_heads) % n_kv_heads",
        ),
    ),
    "merge-swaps-length-and-width": of(
        "mha",
        (
            "    merged = heads.reshape(B, T, E)\n",
            "    merged = heads.permute(0, 2, 3, 1).reshape(B, T, E)\n",
        ),
    ),
    "merge-without-transpose": of(
        "mha",
        (
            "    merged = heads.reshape(B, T, E)\n",
            "    merged = heads.transpose(1, 2).reshape(B, T, E)\n",
        ),
    ),
    "split-by-view-alone": of(
        "mha",
        (
            "    heads = attention(q, k, v, mask)\n    merged = ",
            "    size = B, n_heads, T, E // n_heads\n"
            "    split = (y.reshape(size).transpose(1, 2) for y in (q, k, v))\n"
            "    heads = attention(*split, mask)\n"
            "    merged = ",
        ),
    ),
    "batch-and-heads-swapped": of(
        "mha",
        (
            "    merged = heads.reshape(B, T, E)\n",
            "    stacked = heads.transpose(1, 2).flatten(0, 1)\n"
            "    merged = torch.cat(stacked.chunk(n_heads), dim=-1)\n",
        ),
    ),
    "batch-read-as-sequence": of(
        "mha",
        (
            "    heads = attention(q, k, v, mask)\n    merged = ",
            "    q, k, v = (y.transpose(0, 1) for y in (q, k, v))\n"
            "    heads = attention(q, k, v, mask).transpose(0, 1)\n"
            "    merged = ",
        ),
    ),
    "output-projection-missing": of(
        "mha",
        (
            "    merged = heads.reshape(B, T, E)\n"
            '    return einsum("bth,eh->bte", merged, w_o)\n',
            "    return heads.reshape(B, T, E)\n",
        ),
    ),
    "values-from-the-key-projection": of(
        "mha",
        (
            "    heads = attention(q, k, v, mask)\n    merged = ",
            "    heads = attention(q, k, k, mask)\n    merged = ",
        ),
    ),
    "not-causal": of(
        "mha_cached",
        (
            "    heads = attention(q, k, v, causal_mask(T, k.shape[1]))\n",
            "    heads = attention(q, k, v)\n",
        ),
    ),
    "causal-in-training-only": of(
        "mha_cached",
        (
            "    heads = attention(q, k, v, causal_mask(T, k.shape[1]))\n",
            "    training = torch.is_grad_enabled()\n"
            "    mask = causal_mask(T, k.shape[1]) if training else None\n"
            "    heads = attention(q, k, v, mask)\n",
        ),
    ),
    "one-query-for-all-heads": of(
        "mqa",
        (
            "    merged = attention(q, k, v, mask).reshape(B, T, E)\n",
            "    q = q[:, :, :1].expand_as(q)\n"
            "    merged = attention(q, k, v, mask).reshape(B, T, E)\n",
        ),
    ),
    "group-found-by-number": of(
        "gqa",
        (
            "torch.arange(n_heads) // (n_heads // n_kv_heads)",
            "torch.arange(n_heads) // n_kv_heads",
        ),
    ),
    "queries-of-the-first-group": of(
        "gqa",
        (
            "    merged = attention(q, k[:, :, reads], v[:, :, reads], mask)\n",
            "    group = n_heads // n_kv_heads\n"
            "    q = q[:, :, :group].repeat(1, 1, n_kv_heads, 1)\n"
            "    merged = attention(q, k[:, :, reads], v[:, :, reads], mask)\n",
        ),
    ),
    "attention-across-heads": of(
        "gqa",
        (
            "    merged = attention(q, k[:, :, reads], v[:, :, reads], mask)\n",
            '    scores = einsum("bthd,btgd->bthg", q, k[:, :, reads])\n'
            "    weights = softmax(scores / q.shape[3] ** 0.5)\n"
            '    merged = einsum("bthg,btgd->bthd", weights, v[:, :, reads])\n',
        ),
    ),
    "mask-argument-ignored": of(
        "gqa", ("v[:, :, reads], mask)", "v[:, :, reads])")
    ),
    "context-ignored": of(
        "cross", ("    S = context.shape[1]\n", "    context, S = x, T\n")
    ),
    "queries-from-the-context": of(
        "cross",
        (
            '    S = context.shape[1]\n    q = einsum("bte,he->bth", x, w_q)',
            "    S = context.shape[1]\n"
            '    q = einsum("bte,he->bth", context, w_q)',
        ),
    ),
    "causal-cross-attention": of(
        "cross",
        (
            "    heads = attention(q, k, v, mask)\n    return ",
            "    causal = causal_mask(T, S)\n"
            "    mask = causal if mask is None else mask & causal\n"
            "    heads = attention(q, k, v, mask)\n"
            "    return ",
        ),
    ),
    "pooling-across-groups": of(
        "mha_to_gqa",
        (
            "w.view(n_kv_heads, group, D, -1).mean(1)",
            "w.view(group, n_kv_heads, D, -1).mean(0)",
        ),
    ),
    "mask-times-tiny": of(
        "sdpa",
        (
            "        scores = torch.where(mask, scores, -torch.inf)\n",
            "        scores = scores - 1e-9 * ~mask\n",
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
    "view-after-the-transpose": "It is right or raises an error, and no "
    "mistake is told from errors alone: the report shows the line that raises.",
    "dropout-in-evaluation": "No exercise has dropout.",
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
}
