"""The weights of a model as named matrices, from its config.json."""

from collections.abc import Iterator

from attnref.numbers.weights import Matrix
from attnref.released.expression import value_of
from attnref.released.mixers import CompressedAttention
from attnref.released.record import (
    READ_ERRORS,
    AttentionRecord,
    Config,
    Fields,
    families,
    present,
    read_by,
)

# Fields that add parameters, where a row does not read them.
ADDED = (
    *("mlp_bias", "use_bias", "lm_head_bias", "bias", "add_bias_linear"),
    *("routed_expert_hidden_size", "attn_res_block_size"),  # of Kimi K3
)
# Entries that read other entries are computed after these, and then matrices.
LAST = (
    *("owned", "inner", "sparse", "beside", "reduced", "vectors", "buffer"),
    *("mixer", "norms", "ends", "once", "tied"),
)
ORDER = {name: n + 1 for n, name in enumerate(LAST)}
BUFFER = "norm_buffer"  # in files, but no parameters
PLACE = "model.layers.{}.self_attn"
# Each device has all of these.
WHOLE = "gate", "proj", "q_a_proj", "kv_a_proj_with_mqa", "shared_expert_gate"


def matrices_of(config: Config) -> list[Matrix]:
    """All matrices by their published names; none if they are not known.

    Vectors of a layer, such as norms and biases, are one row: `norms`. Draft
    layers and vision encoders are left out.

    Examples:
        >>> from attnref.released.record import read_config
        >>> config = {"model_type": "llama", "num_hidden_layers": 1}
        >>> config |= {"hidden_size": 64, "num_attention_heads": 4}
        >>> config |= {"intermediate_size": 128, "vocab_size": 100}
        >>> config |= {"tie_word_embeddings": True}
        >>> sum(m.params for m in matrices_of(read_config(config)))
        47552
        >>> matrices_of(read_config(config))[0]
        Matrix(name='model.layers.0.self_attn.o_proj', rows=64, columns=64,
        copies=1, parts=4, attention=True)
    """
    row = families().get(config.family)
    entries = row.weights if row else {}
    unread = {*ADDED} - read_by(entries)
    if not row or not entries or any(config.fields.get(n) for n in unread):
        return []
    names = sorted(entries, key=lambda n: 99 if "." in n else ORDER.get(n, 0))
    dotted = [name for name in names if "." in name]
    values = Fields()
    result: list[Matrix] = []
    at = row.names.get("at", PLACE)
    try:
        for layer, (kind, record) in enumerate(config.layers):
            fields = present(row, config.fields)
            values = Fields(fields, layer=layer, layer_type=kind)
            for name in names:
                values[name] = value_of(entries[name], values)
            base = at.split("{}")[0] + str(layer)
            mixer = row.names.get("mixer", at).format(layer)
            places = {
                "mlp": f"{base}.{values['module'] or 'mlp'}.",
                "mixer": f"{mixer}.",
                "layer": f"{base}.",
            }
            # Of LongCat, a layer has two; of Zamba2, some have one in common.
            modules = [at, at[:-1] + "1"] if at[-2:] == ".0" else [at]
            own = record if values.get("owned", True) else None
            for place in modules:
                for matrix in attention_matrices(own) if own else ():
                    name = row.names.get(matrix.name, matrix.name)
                    name = f"{place.format(layer)}.{name}"
                    result.append(matrix._replace(name=name))
            compressed = config.mixers.get(layer)
            if isinstance(compressed, CompressedAttention):
                result += _compressed(compressed, f"{base}.attn.")
            for name in dotted:
                place, short = name.split(".", 1)
                if place in places:
                    full = places[place] + short
                    mixes = place == "mixer"
                    result.append(_matrix(values[name], full, mixes))
            result.append(_vector(f"{base}.norms", values["mixer"] or 0, True))
            others = values["norms"] * values["d"] + (values["vectors"] or 0)
            result.append(_vector(f"{base}.norms", others))
            result.append(_vector(f"{base}.{BUFFER}", values["buffer"] or 0))
        for name in dotted:
            if name.startswith("model."):
                result.append(_matrix(values[name], name))
        size = values["vocab_size"], values["d"]
        result.append(_matrix(size, "model.embed_tokens"))
        if not values["tied"]:
            result.append(_matrix(size, "lm_head"))
        last = values["ends"] * values["d"] + values["once"]
        result.append(_vector("model.norm", last))
        total = sum(matrix.params for matrix in result)
    except READ_ERRORS:
        return []
    if values["tied"] is None or not isinstance(total, int):
        return []
    return [matrix for matrix in result if matrix.params]


def params_of(config: Config) -> tuple[int, int] | None:
    """All parameters, and those of attention; None if they are not known."""
    matrices = matrices_of(config)
    if not matrices:
        return None
    learned = [m for m in matrices if m.name.split(".")[-1] != BUFFER]
    attention = sum(matrix.params for matrix in learned if matrix.attention)
    return sum(matrix.params for matrix in learned), attention


def _matrix(
    size: tuple[int, ...], name: str, attention: bool = False
) -> Matrix:
    parts = 1 if name.split(".")[-1] in WHOLE else 0
    copies, rows, columns = size if len(size) > 2 else (1, *size)
    return Matrix(name, rows, columns, copies, parts, attention)


def _vector(name: str, size: int, attention: bool = False) -> Matrix:
    return Matrix(name, 1, size, 1, 1, attention)


def attention_matrices(r: AttentionRecord) -> Iterator[Matrix]:
    """The matrices of the attention of one layer, under our names.

    Examples:
        >>> from attnref.released.record import attention_of
        >>> config = {"model_type": "llama", "num_hidden_layers": 1}
        >>> config |= {"hidden_size": 64, "num_attention_heads": 4}
        >>> sum(m.params for m in attention_matrices(attention_of(config)))
        16384
    """
    d, heads, groups = r.d_model, r.n_heads, r.n_kv_heads
    out, q, k = heads * r.v_head_dim, heads * r.head_dim, groups * r.head_dim
    v = 0 if r.k_is_v else groups * r.v_head_dim
    if r.shares is not None:
        k = v = 0
    vectors = r.o_bias * (r.d_out or d) + r.with_sinks * heads
    vectors += r.sub_norm * out
    vectors += (r.differential is not None) * 4 * r.head_dim
    vectors += r.q_log * 2 * (heads + (r.index_heads if r.index_own else 0))

    def split(name: str, rows: int, columns: int, parts: int = heads) -> Matrix:
        return Matrix(name, rows, columns, 1, parts, True)

    yield split("o_proj", r.d_out or d, out)
    if r.gate in ("per channel", "per head"):
        yield split("gate_proj", out if r.gate == "per channel" else heads, d)
        vectors += r.gate_bias * heads
    if r.kv_rank:
        own, rank = r.shares is None, r.q_rank or 0
        latent = own * (r.kv_rank + r.rope_dim)
        yield split("kv_a_proj_with_mqa", latent, d, 1)
        nope = r.head_dim - r.rope_dim
        yield split("kv_b_proj", heads * (nope + r.v_head_dim), r.kv_rank)
        if rank:
            yield split("q_a_proj", rank, d, 1)
        gated = r.gate == "in q_proj"
        name = "q_b_proj" if rank else "q_proj"
        yield split(name, 2 * (q + out) if gated else q, rank or d)
        vectors += r.qkv_bias * (latent + rank) + own * r.kv_rank + rank
        vectors += r.rope_norm * r.rope_dim
    else:
        q *= 2 if r.gate == "in q_proj" else 1
        yield split("q_proj", q, d)
        yield split("k_proj", k, d, groups)
        yield split("v_proj", v, d, groups)
        vectors += r.qkv_bias * (q + k + v)
        if r.norm and r.norm_weight:
            width = heads * r.head_dim + k
            if r.norm in ("RMS of a head", "LayerNorm"):
                width = r.head_dim * (2 if r.norm == "LayerNorm" else 1)
                width *= 2 if k else 1
            vectors += width
    if r.index_own:
        heads, width = r.index_heads, r.index_dim
        pooled = r.index_pool in ("max", "mean")
        yield split("index_k_proj" if pooled else "indexer.wk", width, d, 1)
        vectors += 2 * width
        if pooled:
            yield split("index_q_proj", heads * width, d, 1)
        else:
            if not r.q_rank and not r.index_pool:
                vectors += 2 * d  # a norm of its input
            yield split("indexer.wq_b", heads * width, r.q_rank or d, 1)
            yield split("indexer.weights_proj", heads, d, 1)
        if r.index_pool == "learned":
            yield split("indexer.compress", r.index_block + d, width, 1)
    yield split("norms", 1, vectors, 1)


def _compressed(r: CompressedAttention, place: str) -> Iterator[Matrix]:
    """The matrices of a layer of DeepSeek V4, as published."""

    def whole(name: str, rows: int, columns: int, parts: int = 1) -> Matrix:
        return Matrix(place + name, rows, columns, 1, parts, True)

    d, heads, dim, groups = r.d_model, r.n_heads, r.key_dim, r.groups
    yield whole("wq_a", r.q_rank, d)
    yield whole("wq_b", heads * dim, r.q_rank, heads)
    yield whole("wkv", dim, d)
    yield whole("wo_a", groups * r.o_rank, heads * dim // groups, groups)
    yield whole("wo_b", d, groups * r.o_rank, groups)
    vectors = r.q_rank + dim + heads
    if r.rate > 1:
        # Entries that an indexer chooses overlap: two keys for each.
        width = 2 * dim if r.index_own else dim
        yield whole("compressor.wkv", width, d)
        yield whole("compressor.wgate", width, d)
        vectors += r.rate * width + dim
    if r.index_own:
        width = 2 * r.index_dim
        yield whole("indexer.wq_b", r.index_heads * r.index_dim, r.q_rank)
        yield whole("indexer.weights_proj", r.index_heads, d)
        yield whole("indexer.compressor.wkv", width, d)
        yield whole("indexer.compressor.wgate", width, d)
        vectors += r.rate * width + r.index_dim
    yield whole("norms", 1, vectors)
