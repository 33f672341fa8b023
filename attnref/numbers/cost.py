"""Parameters, FLOPs and bytes of a layer, from its sizes alone."""

# --8<-- [start:imports]
from fractions import Fraction
from typing import NamedTuple

from attnref.core.checks import check_counts, check_layer, check_sizes
from attnref.numbers.kv_memory import dtype_called
from attnref.numbers.shapes import Compressed

# --8<-- [end:imports]


# --8<-- [start:cost]
class Cost(NamedTuple):
    """What one call of a layer costs, with `new` tokens after `past` cached.

    `projections`, `scores` and `values` are FLOPs; a multiplication and an
    addition count as two. Scores and values are counted for every query and
    every key, masked or not. Softmax, norms, RoPE and biases are not counted,
    since the matrix products outweigh them. `cached` is the number of elements
    in the cache after the call, of which `wide` are in float32 whatever the
    weights are, as states are; `idle` is the number of parameters, and
    `skipped` of elements in the cache, that the call does not read.
    """

    parameters: int
    projections: int
    scores: int
    values: int
    cached: int
    idle: int = 0
    wide: int = 0
    skipped: int = 0

    @property
    def flops(self) -> int:
        """FLOPs of projections, scores and values."""
        return self.projections + self.scores + self.values

    def bytes_read(self, dtype: str = "bf16") -> int:
        """Bytes of weights and cache, each element read once: the minimum."""
        read = self.parameters - self.idle + self.cached - self.skipped
        narrow = (read - self.wide) * dtype_called(dtype).bits
        return -(-narrow // 8) + 4 * self.wide

    def intensity(self, dtype: str = "bf16") -> Fraction:
        """Arithmetic intensity: FLOPs per byte that is read."""
        return Fraction(self.flops, self.bytes_read(dtype))

    def attention_intensity(self, dtype: str = "bf16") -> Fraction:
        """FLOPs of scores and values per byte of the cache that is read."""
        read = self.cached - self.skipped - self.wide
        cache = Fraction(read * dtype_called(dtype).bits + 32 * self.wide, 8)
        return (self.scores + self.values) / cache


def _check(batch: int, new: int, past: int) -> None:
    check_sizes(batch=batch, new=new)
    check_counts(past=past)


def _heads(
    d_model: int, n_heads: int, n_kv_heads: int | None, head_dim: int | None
) -> tuple[int, int]:
    """Key/value heads and head width; errors if no layer can have them."""
    K = n_heads if n_kv_heads is None else n_kv_heads
    D = check_layer(
        d_model=d_model,
        n_heads=n_heads,
        n_kv_heads=K,
        head_dim=head_dim,
        dropout=0.0,
    )
    return K, D


def _biases(
    q_width: int, kv_width: int, d_model: int, bias: bool, o_bias: bool | None
) -> int:
    """Elements of the biases of all four projections."""
    inner = q_width + 2 * kv_width if bias else 0
    return inner + (d_model if (bias if o_bias is None else o_bias) else 0)


# --8<-- [end:cost]


# --8<-- [start:grouped]
def attention_cost(
    *,
    d_model: int,
    n_heads: int,
    n_kv_heads: int | None = None,
    head_dim: int | None = None,
    bias: bool = False,
    o_bias: bool | None = None,
    batch: int = 1,
    new: int = 1,
    past: int = 0,
) -> Cost:
    """Cost of a layer with MHA, GQA or MQA.

    `n_kv_heads` is `n_heads` in MHA, a divisor of it in GQA, 1 in MQA.

    Examples:
        >>> llama = dict(d_model=4096, n_heads=32, n_kv_heads=8, past=8191)
        >>> step = attention_cost(**llama)
        >>> step.parameters, step.scores + step.values, step.cached
        (41943040, 134217728, 16777216)
    """
    _check(batch, new, past)
    K, D = _heads(d_model, n_heads, n_kv_heads, head_dim)
    q_width, kv_width, S = n_heads * D, K * D, past + new
    weights = 2 * d_model * q_width + 2 * d_model * kv_width
    biases = _biases(q_width, kv_width, d_model, bias, o_bias)
    product = 2 * batch * n_heads * new * S * D
    return Cost(
        parameters=weights + biases,
        projections=2 * batch * new * weights,
        scores=product,
        values=product,
        cached=2 * batch * S * kv_width,
    )


# --8<-- [end:grouped]


# --8<-- [start:cross]
def cross_cost(
    *,
    d_model: int,
    n_heads: int,
    n_kv_heads: int | None = None,
    head_dim: int | None = None,
    d_context: int | None = None,
    bias: bool = False,
    o_bias: bool | None = None,
    batch: int = 1,
    new: int = 1,
    context: int,
    cached: bool = False,
) -> Cost:
    """Cost of cross-attention to `context` tokens.

    With `cached`, their keys and values are in the cache already.
    """
    width = d_model if d_context is None else d_context
    check_sizes(batch=batch, new=new, context=context, d_context=width)
    K, D = _heads(d_model, n_heads, n_kv_heads, head_dim)
    q_width, kv_width = n_heads * D, K * D
    own = 2 * d_model * q_width
    theirs = 2 * width * kv_width
    biases = _biases(q_width, kv_width, d_model, bias, o_bias)
    product = 2 * batch * n_heads * new * context * D
    read = 0 if cached else context
    return Cost(
        parameters=own + theirs + biases,
        projections=2 * batch * (new * own + read * theirs),
        scores=product,
        values=product,
        cached=2 * batch * context * kv_width,
        idle=theirs + (2 * kv_width if bias else 0) if cached else 0,
    )


# --8<-- [end:cross]


# --8<-- [start:mla]
def mla_cost(
    *,
    d_model: int,
    n_heads: int,
    kv_lora_rank: int,
    qk_nope_head_dim: int,
    qk_rope_head_dim: int,
    v_head_dim: int,
    q_lora_rank: int | None = None,
    bias: bool = False,
    batch: int = 1,
    new: int = 1,
    past: int = 0,
    form: str = "absorbed",
) -> Cost:
    """Cost of a layer with MLA, in its expanded, latent or absorbed form.

    Examples:
        >>> v3 = dict(
        ...     d_model=7168, n_heads=128, kv_lora_rank=512, q_lora_rank=1536,
        ...     qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128,
        ... )
        >>> step = mla_cost(**v3, past=8191)
        >>> step.parameters, round(float(step.attention_intensity()), 1)
        (187107328, 241.8)
    """
    _check(batch, new, past)
    check_sizes(
        d_model=d_model,
        n_heads=n_heads,
        kv_lora_rank=kv_lora_rank,
        qk_nope_head_dim=qk_nope_head_dim,
        qk_rope_head_dim=qk_rope_head_dim,
        v_head_dim=v_head_dim,
    )
    H, R, S = n_heads, kv_lora_rank, past + new
    Dn, Dr, Dv = qk_nope_head_dim, qk_rope_head_dim, v_head_dim
    q_width = H * (Dn + Dr)
    if q_lora_rank is None:
        queries, norms, biases = d_model * q_width, R, 0
    else:
        check_sizes(q_lora_rank=q_lora_rank)
        queries = q_lora_rank * (d_model + q_width)
        norms, biases = R + q_lora_rank, q_lora_rank
    biases = biases + R + Dr + d_model if bias else 0
    shared = queries + d_model * (R + Dr) + H * Dv * d_model
    up = H * R * (Dn + Dv)
    # Tokens whose latents are multiplied by the up-projections.
    expanded = {"expanded": new, "latent": S, "absorbed": new}
    if form not in expanded:
        raise ValueError(f"{form=} is not one of {', '.join(expanded)}")
    keys, values = (R + Dr, R) if form == "absorbed" else (Dn + Dr, Dv)
    entry = H * (Dn + Dr + Dv) if form == "expanded" else R + Dr
    return Cost(
        parameters=shared + up + norms + biases,
        projections=2 * batch * (new * shared + expanded[form] * up),
        scores=2 * batch * H * new * S * keys,
        values=2 * batch * H * new * S * values,
        cached=batch * S * entry,
    )


# --8<-- [end:mla]


def dsa_cost(
    *,
    index_n_heads: int,
    index_head_dim: int,
    index_topk: int,
    q_lora_rank: int,
    d_model: int,
    n_heads: int,
    kv_lora_rank: int,
    qk_nope_head_dim: int,
    qk_rope_head_dim: int,
    v_head_dim: int,
    bias: bool = False,
    batch: int = 1,
    new: int = 1,
    past: int = 0,
) -> Cost:
    """Cost of a layer with DSA: absorbed MLA over keys that an indexer chooses.

    The indexer scores every key, which counts among `scores`; it costs nothing
    while there are no more keys than `index_topk`. Where the call chooses fewer
    entries than are cached, as in decoding, the others are `skipped`;
    otherwise, as in a long prompt, all are multiplied and masked.

    Examples:
        >>> v32 = dict(
        ...     d_model=7168, n_heads=128, kv_lora_rank=512, q_lora_rank=1536,
        ...     qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128,
        ...     index_n_heads=64, index_head_dim=128, index_topk=2048,
        ... )
        >>> step = dsa_cost(**v32, past=131071)
        >>> step.cached // 131072, step.skipped // 576
        (704, 129024)
    """
    check_sizes(
        index_n_heads=index_n_heads,
        index_head_dim=index_head_dim,
        index_topk=index_topk,
        q_lora_rank=q_lora_rank,
    )
    Hi, Di, S = index_n_heads, index_head_dim, past + new
    few = index_topk < S and new * index_topk < S
    mla = mla_cost(
        d_model=d_model,
        n_heads=n_heads,
        kv_lora_rank=kv_lora_rank,
        qk_nope_head_dim=qk_nope_head_dim,
        qk_rope_head_dim=qk_rope_head_dim,
        v_head_dim=v_head_dim,
        q_lora_rank=q_lora_rank,
        bias=bias,
        batch=batch,
        new=new,
        past=past,
    )
    read = index_topk if few else S
    own = q_lora_rank * Hi * Di + d_model * Di  # its queries and its key
    weigh = d_model * Hi if index_topk < S else 0
    scored = batch * new * S * Hi * (Di + 1) if index_topk < S else 0
    return Cost(
        parameters=mla.parameters + own + d_model * Hi + 2 * Di,
        projections=mla.projections + 2 * batch * new * (own + weigh),
        scores=mla.scores // S * read + 2 * scored,
        values=mla.values // S * read,
        cached=mla.cached + batch * S * Di,
        skipped=batch * (S - new * read) * (kv_lora_rank + qk_rope_head_dim)
        if few
        else 0,
    )


# --8<-- [start:recurrent]
def recurrent_cost(
    heads: tuple[int, int],
    widths: tuple[int, int],
    weights: int,
    vectors: int,
    conv: int,
    *,
    delta: int = 0,
    channels: int = 0,
    batch: int = 1,
    new: int = 1,
    past: int = 0,
    chunk: int = 64,
) -> Cost:
    """Cost of `chunked` of core/recurrence.py, between its projections.

    `heads` are those of values and of keys, `widths` those of a key and of a
    value; `delta` is 1 with the delta rule. `vectors` parameters multiply
    nothing, and `conv` inputs of a convolution are kept. With decays of
    channels, `channels` is 1: only pairs of tokens in different blocks are
    multiplied, of a
    number of tokens that is filled up to a power of 2.
    """
    _check(batch, new, past)
    (H, K), (D, Dv) = heads, widths
    check_sizes(heads=H, groups=K, key_dim=D, value_dim=Dv, chunk=chunk)
    if H % K:
        raise ValueError(f"{K} groups of keys do not divide {H} heads")
    pairs = squares = 0  # of tokens, in one chunk; a single token needs none
    whole, rest = divmod(new, chunk)
    for count, n in ((whole, chunk), (1, rest)) if new > 1 else ():
        squares += count * n**2
        filled = max(16, 1 << (n - 1).bit_length()) if n else 0
        pairs += count * (filled * (filled - 1) // 2 if channels else n**2)
    state = batch * H * D * Dv
    return Cost(
        parameters=weights + vectors,
        projections=2 * batch * new * weights,
        scores=2 * batch * K * (1 + delta) * pairs * D,
        values=2 * batch * H * ((2 + delta) * new * D + squares) * Dv,
        cached=state + batch * conv,
        wide=state,
    )


def gated_delta_cost(
    *,
    d_model: int,
    n_heads: int,
    n_v_heads: int,
    key_dim: int,
    value_dim: int,
    conv_kernel: int = 4,
    **call: int,
) -> Cost:
    """Cost of Gated DeltaNet, computed in chunks of `chunk` tokens.

    `call` are `batch`, `new`, `past` and `chunk`, 64 unless it is given. The
    convolution counts as a projection, products of keys and queries as scores,
    and what reads and writes the state as values. Solving the triangular system
    of a chunk is not counted. `past` changes nothing.

    Examples:
        >>> qwen = dict(d_model=2048, n_heads=16, n_v_heads=32)
        >>> qwen |= dict(key_dim=128, value_dim=128)
        >>> step = gated_delta_cost(**qwen)
        >>> step.cached, step.wide
        (548864, 524288)
    """
    check_sizes(d_model=d_model, conv_kernel=conv_kernel)
    inner = n_v_heads * value_dim
    C = 2 * n_heads * key_dim + inner
    weights = d_model * (C + 2 * inner + 2 * n_v_heads) + C * conv_kernel
    return recurrent_cost(
        (n_v_heads, n_heads),
        (key_dim, value_dim),
        weights,
        2 * n_v_heads + value_dim,
        C * (conv_kernel - 1),
        delta=1,
        **call,
    )


def kda_cost(
    *,
    d_model: int,
    n_heads: int,
    head_dim: int | None = None,
    conv_kernel: int = 4,
    **call: int,
) -> Cost:
    """Cost of Kimi Delta Attention, counted like Gated DeltaNet.

    Examples:
        >>> step = kda_cost(d_model=2304, n_heads=32, head_dim=128)
        >>> step.cached, step.wide
        (561152, 524288)
    """
    check_sizes(conv_kernel=conv_kernel)
    H, D = _heads(d_model, n_heads, None, head_dim)
    inner, C = H * D, 3 * H * D
    weights = d_model * (C + inner + H + 2 * D) + 2 * D * inner
    return recurrent_cost(
        (H, H),
        (D, D),
        weights + C * conv_kernel,
        inner + H + D,
        C * (conv_kernel - 1),
        delta=1,
        channels=1,
        **call,
    )


def mamba2_cost(
    *,
    d_model: int,
    n_heads: int,
    n_groups: int,
    key_dim: int,
    value_dim: int,
    conv_kernel: int = 4,
    bias: bool = False,
    conv_bias: bool = True,
    **call: int,
) -> Cost:
    """Cost of Mamba-2, counted like Gated DeltaNet.

    Examples:
        >>> nemotron = dict(d_model=4096, n_heads=128, n_groups=8)
        >>> step = mamba2_cost(**nemotron, key_dim=128, value_dim=64)
        >>> step.cached, step.wide
        (1079296, 1048576)
    """
    check_sizes(d_model=d_model, conv_kernel=conv_kernel)
    inner = n_heads * value_dim
    C = inner + 2 * n_groups * key_dim
    rows = inner + C + n_heads  # of what the input is projected to
    biases = (rows + d_model if bias else 0) + (C if conv_bias else 0)
    return recurrent_cost(
        (n_heads, n_groups),
        (key_dim, value_dim),
        d_model * (rows + inner) + C * conv_kernel,
        3 * n_heads + inner + biases,
        C * (conv_kernel - 1),
        **call,
    )


def lightning_cost(
    *, d_model: int, n_heads: int, head_dim: int | None = None, **call: int
) -> Cost:
    """Cost of lightning attention, counted like Gated DeltaNet.

    Examples:
        >>> minimax = dict(d_model=6144, n_heads=64, head_dim=128)
        >>> lightning_cost(**minimax).cached
        1048576
    """
    H, D = _heads(d_model, n_heads, None, head_dim)
    weights = 5 * d_model * H * D
    return recurrent_cost((H, H), (D, D), weights, H * D, 0, **call)


def short_conv_cost(
    *,
    d_model: int,
    conv_kernel: int = 3,
    bias: bool = False,
    batch: int = 1,
    new: int = 1,
    past: int = 0,
) -> Cost:
    """Cost of the short convolution of LFM2, which reads no state.

    Examples:
        >>> short_conv_cost(d_model=2048).cached
        4096
    """
    _check(batch, new, past)
    check_sizes(d_model=d_model, conv_kernel=conv_kernel)
    weights = 4 * d_model**2 + d_model * conv_kernel
    return Cost(
        parameters=weights + (5 * d_model if bias else 0),
        projections=2 * batch * new * weights,
        scores=0,
        values=0,
        cached=batch * d_model * (conv_kernel - 1),
    )


# --8<-- [end:recurrent]


def compressed_cost(
    *,
    d_model: int,
    n_heads: int,
    head_dim: int,
    window: int,
    q_rank: int,
    o_rank: int,
    groups: int,
    ratio: int | None = None,
    index_heads: int = 0,
    index_dim: int = 0,
    topk: int = 0,
    batch: int = 1,
    new: int = 1,
    past: int = 0,
) -> Cost:
    """Cost of DeepSeek-V4's attention: a window and, with `ratio`, entries.

    With an index, each query reads `topk` entries, and scores to choose them
    count as scores. Keys that a query does not read are not counted.

    Examples:
        >>> flash = dict(d_model=4096, n_heads=64, head_dim=512, window=128)
        >>> flash |= dict(q_rank=1024, o_rank=1024, groups=8)
        >>> compressed_cost(**flash, past=999).cached
        65536
        >>> compressed_cost(**flash, ratio=128, past=999).cached
        175616
    """
    _check(batch, new, past)
    H, D, Hi, Di = n_heads, head_dim, index_heads, index_dim
    weights = d_model * (q_rank + D) + o_rank * (H * D + groups * d_model)
    weights += q_rank * H * D
    others = q_rank + D + H  # of norms, and sinks
    read = chosen_from = 0
    if ratio is not None:
        C = (1 + bool(Di)) * (D + Di)
        weights += 2 * d_model * C + Hi * (q_rank * Di + d_model)
        others += ratio * C + D + Di
    for seen in range(past + 1, past + new + 1):
        entries = 0 if ratio is None else seen // ratio
        read += min(seen, window) + min(entries, topk if Di else entries)
        chosen_from += entries
    group = Compressed(
        layers=1,
        q_heads=H,
        dim=D,
        sliding_window=window,
        ratio=ratio,
        index_dim=Di,
    )
    stored = sum(s.entries(past + new) * sum(s.widths) for s in group.stores)
    return Cost(
        parameters=weights + others,
        projections=2 * batch * new * weights,
        scores=2 * batch * (H * D * read + Hi * (Di + 1) * chosen_from),
        values=2 * batch * H * D * read,
        cached=batch * (stored + group.waiting(past + new)),
    )
