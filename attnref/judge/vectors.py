"""Known answers: inputs, weights, steps, outputs, and outputs of mistakes, for
attention in any language.

A case of vectors.toml calls plain forms. Its steps are the values that have a
shape comment there; its mistakes are those of the catalogue that can be planted
in the plain forms it calls. Everything is computed in float64 and rounded once,
from inputs and weights that float16 and bfloat16 hold exactly.
"""
# pyright: reportPossiblyUnboundVariable=false

import json
import threading
import tomllib
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import cache, partial
from hashlib import sha256
from itertools import product
from math import log2
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch
from zlib import crc32

import torch
from torch import Tensor, nn

from attnref.judge.catalogue import (
    PACKAGE,
    PAGES,
    PLAIN,
    Plain,
    Variant,
    catalogue,
    every_variant,
    mistakes_by_file,
    place_of,
)
from attnref.judge.differences import (
    as_dtype,
    as_stored,
    distance,
    largest,
    largest_difference,
)
from attnref.judge.forms import by_plain_attention, functional, one_thread
from attnref.judge.gradients import (
    GRID,
    PAGE,
    entry,
    gradients,
    wrong_gradients,
)
from attnref.judge.shapes import Comment, Watch
from attnref.judge.threads import on_ranks
from attnref.released.expression import value_of
from attnref.released.record import AttentionRecord, read_config
from attnref.words import hint, message, version

# Outputs closer than this share of the largest element count as one mistake's.
SEPARATION = 1e-3
# A mistake differs from the right output by more than so many roundings of
# float32; a dtype distinguishes it by more than so many roundings of its own.
FLOAT32_ROUNDINGS, OWN_ROUNDINGS = 4, 2
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
DTYPES |= {"float16": torch.float16}
OTHER_ORDER = 4  # another order of sums may round so many times as much
FORMAT = 1  # of the files, as vectors.schema.json has it
SCHEMA = Path(__file__).with_suffix(".schema.json")
MAX_SIZE = 1300  # elements of a step that is stored
SIZES = {"B": 3, "T": 5, "S": 11, "E": 7, "H": 6, "K": 2, "D": 10, "Dv": 13}
OPTIONS = {"output": "B T E", "chunks": [], "pads": [], "held": 0, "never": []}
OPTIONS |= {"config": {}, "record": {}}
OPTIONS |= dict.fromkeys(("hidden", "masked", "whole", "real"), False)
OPTIONS |= dict.fromkeys(("with_sinks", "all_to_all"), False)
OPTIONS |= dict.fromkeys(("softcap", "chunk", "absorbed"), None)
# The fields of a record that are sizes of a case, by the letter of the size.
FIELDS = {"E": "d_model", "K": "n_heads", "D": "key_dim", "Dv": "value_dim"}
FIELDS |= {"R": "kv_rank", "Rq": "q_rank", "Dr": "rope_dim"}
FIELDS |= {"Hi": "index_heads", "Di": "index_dim", "topk": "index_topk"}


@cache
def _table() -> dict[str, dict[str, Any]]:
    text = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


@cache
def cases() -> dict[str, dict[str, Any]]:
    """The options of each case, by its name.

    A case that is `like` another one has all options of that one, too.
    """
    result: dict[str, dict[str, Any]] = {}
    for name, options in _table().items():
        base = result.get(options.get("like", ""), SIZES | OPTIONS)
        config = base["config"] | options.get("config", {})
        result[name] = base | options | {"config": config}
    return {name: case for name, case in result.items() if "run" in case}


def check_case(name: str) -> None:
    """Refuse a name that no case has, and suggest similar ones."""
    if name not in cases():
        similar = hint(name, {case: case for case in cases()})
        raise ValueError(message("there is no case {!r}", name) + similar)


class Case:
    """A case in one dtype: its options, `.T`, inputs, weights and cache.

    Each input and weight is drawn once, from a seed of its own, and kept in
    `tensors`, which the runs of a case share. `cache_contents` has what a cache
    held after each call, and `leaves` what gradients are taken of.
    """

    def __init__(
        self, name: str, tensors: dict[str, Tensor], dtype: Any
    ) -> None:
        self.name, self.tensors, self.dtype = name, tensors, dtype
        self.options = dict(cases()[name])
        self.options_read: set[str] = set()
        self.letters: dict[str, str] = {}
        self.cache_contents: dict[str, Tensor] = {}
        self.leaves: dict[str, list[Tensor]] = {}

    def __getitem__(self, option: str) -> Any:
        self.options_read.add(option)
        return self.options[option]

    def __getattr__(self, option: str) -> Any:
        return self[option]

    def set_sizes(self, sizes: dict[str, Any]) -> None:
        """Take sizes from the config of the case."""
        self.options |= sizes
        self.options_read |= sizes.keys()

    def input(
        self, name: str, letters: str, largest: float = 2.0, start: float = 0.0
    ) -> Tensor:
        """An input: `start`, more or less by at most `largest`."""
        sizes: Any = self
        shape = [value_of(letter, sizes) for letter in letters.split()]
        self.letters[f"input/{name}"] = letters
        return self.draw(f"input/{name}", shape, largest, start)

    def draw(
        self, name: str, shape: Any, largest: float, start: float = 0.0
    ) -> Tensor:
        if name not in self.tensors:
            drawn = self.options.get("draw", "")  # numbers other draws
            seed = crc32(f"{self.name} {name}{drawn}".encode())
            generator = torch.Generator().manual_seed(seed)
            n = round(largest * GRID)
            steps = torch.randint(-n, n + 1, tuple(shape), generator=generator)
            self.tensors[name] = start + steps.double() / GRID
        value = self.tensors[name].to(self.dtype, copy=True)
        if not torch.is_grad_enabled():
            return value
        leaf = value.requires_grad_()  # a case may write into the copy of it
        self.leaves.setdefault(name, []).append(leaf)
        return leaf.clone()

    def keep_input(self, name: str, value: Tensor) -> Tensor:
        """Store an input that the case computes, as it is in float64."""
        if self.dtype == torch.float64:
            self.tensors[f"input/{name}"] = value.detach()
        return value

    def layer(self, kind: Any, *sizes: Any, **options: Any) -> Any:
        with torch.device("meta"):
            layer = kind(*sizes, **options)
        return self.draw_weights(layer)

    def draw_weights(self, layer: nn.Module) -> Any:
        """Draw weights so large that the softmax decides."""
        weights = {}
        for name, weight in layer.state_dict().items():
            norm = "norm" in name and not name.endswith("bias")
            largest = 1.0 if weight.dim() > 1 else 0.5
            stored = f"weight/{name}"
            weights[name] = self.draw(
                stored, weight.shape, largest, float(norm)
            )
        layer.load_state_dict(weights, assign=True)
        for name, parameter in layer.named_parameters():
            self.leaves[f"weight/{name}"] = [parameter]
        return layer.eval()

    def call(self, layer: Any, cache: Any = None, **inputs: Any) -> Tensor:
        """Call the layer with x, at once or in chunks; outputs of real tokens.

        Pads are on the left, and hold noise.
        """
        x, outs, end = self.input("x", "B T E"), [], 0
        if self.pads:
            positions = torch.arange(self.T)
            pads = torch.tensor(self.pads)[:, None]
            inputs["valid"] = self.keep_input("valid", positions >= pads)
        for n, chunk in enumerate(x.split(self.chunks or [self.T], dim=1)):
            end += chunk.shape[1]
            if "valid" in inputs:
                inputs["valid"] = self.tensors["input/valid"][:, :end]
            outs.append(layer(chunk, cache, **inputs))
            for name, value in vars(cache).items() if cache else ():
                if isinstance(value, Tensor):
                    if name == "stored":
                        value = value[..., : cache.length, :]
                    if value.numel() <= MAX_SIZE:
                        stored = f"cache/after/{n}/{name}"
                        self.cache_contents[stored] = value.clone()
        out = torch.cat(outs, dim=1)
        return out[self.tensors["input/valid"]] if self.pads else out


# --------------------------------------------------------------------- cases
#
# `_gqa(p, case)` runs the cases that have `run = "gqa"`, by the plain forms p.


def _repeat(k: Tensor, H: int) -> Tensor:
    return k.repeat_interleave(H // k.shape[1], dim=1)


def _qkv(case: Case, heads: str = "H") -> tuple[Tensor, Tensor, Tensor]:
    q, k = case.input("q", "B H T D"), case.input("k", f"B {heads} S D")
    return q, k, case.input("v", f"B {heads} S Dv")


def _random_mask(case: Case) -> Tensor:
    """Any mask: it is drawn as numbers, and stored as bool; one query sees no
    key."""
    mask = case.input("mask", "B H T S", 1.0, 0.5) > 0
    mask[1:2, 2:3, 3:4] = False
    return case.keep_input("mask", mask)


def _causal_mask(p: Any, case: Case) -> Any:
    return case.keep_input("mask", p.masks.causal_mask(case.T, case.S))


def _softmax(p: Any, case: Case) -> Any:
    x = case.input("x", "B T S", 4.0)
    if case.hidden:
        x[:1, 1:2], x[1:2, 2:, 3:] = -torch.inf, -torch.inf
        case.keep_input("x", x)
    if case.chunk:
        return p.softmax.online_softmax(x, case.chunk)
    return p.softmax.softmax(x)


def _sdpa(p: Any, case: Case) -> Any:
    mask = _random_mask(case) if case.masked else None
    return p.attention.attention(*_qkv(case), mask)


def _masks(p: Any, case: Case) -> Any:
    if case.kind == "padding":
        pads = torch.tensor(case.pads)[:, None]
        valid = case.keep_input("valid", torch.arange(case.T) >= pads)
        return p.masks.padding_mask(valid)
    if case.kind == "document":
        ids = (torch.arange(case.S) + torch.arange(case.B)[:, None]) // 4
        return p.masks.document_mask(case.keep_input("ids", ids))
    if case.kind == "streaming":
        return p.sinks.streaming_mask(case.T, case.S, case.first, case.W)
    if case.kind == "window":
        return p.masks.window_mask(case.T, case.S, case.W)
    return p.masks.causal_mask(case.T, case.S)


def _rope(p: Any, case: Case) -> Any:
    x = case.input("x", "B H T D")
    positions = torch.arange(case.T) * case.step + case.first
    case.keep_input("positions", positions)
    if case.kind in ("rope", "mla"):
        return getattr(p, case.kind).rope(x, positions, case.theta)
    f = p.scaling.frequencies(case.D, case.theta)
    f = getattr(p.scaling, case.kind)(f, *case.scaling)
    f, size = f if isinstance(f, tuple) else (f, 1.0)
    return p.scaling.rotate(x, positions, f, size)


def _mha(p: Any, case: Case) -> Any:
    x = case.input("x", "B T E")
    return case.layer(p.mha.MHA, case.E, case.H)(x)


def _mqa(p: Any, case: Case) -> Any:
    module = p.module("mqa", F=by_plain_attention(p))
    cache = p.kv_cache.KVCache(case.T) if case.chunks else None
    return case.call(case.layer(module.MQA, case.E, case.H), cache)


def _gqa(p: Any, case: Case) -> Any:
    """Behind `held` keys that are in the cache already."""
    module = p.module("gqa", F=by_plain_attention(p))
    sizes = case.E, case.H, case.K, case.D
    layer = case.layer(module.GQA, *sizes, theta=case.theta)
    cache = module.KVCache(case.room) if case.chunks else None
    if cache and case.held:
        keys, values = (case.input(f"cache/{x}", "B K held D") for x in "kv")
        cache.append(keys, values)
    return case.call(layer, cache)


def _cross(p: Any, case: Case) -> Any:
    module = p.module("cross", F=by_plain_attention(p))
    layer = case.layer(module.CrossAttention, case.E, case.H, case.C)
    x, context = case.input("x", "B T E"), case.input("context", "B S C")
    valid = None
    if case.real:
        valid = torch.arange(case.S) < torch.tensor(case.real)[:, None]
        case.keep_input("valid_context", valid)
    return layer(x, context, valid)


def _mla(p: Any, case: Case) -> Any:
    module = p.module("mla", F=by_plain_attention(p))
    sizes = case.E, case.H, case.R, case.Dn, case.Dr, case.Dv, case.Rq
    cache = module.KVCache(case.T) if case.chunks else None
    layer = case.layer(module.MLA, *sizes, theta=case.theta)
    return case.call(layer, cache, absorbed=case.absorbed)


@cache
def record_of(name: str) -> Any:
    """The record of the layer of a case that has a config."""
    config = read_config(cases()[name]["config"])
    return {**config.records, **config.mixers}[cases()[name]["layer_number"]]


def _set_sizes(case: Case) -> None:
    """Take the sizes from the record of the config, if the case has one."""
    if case.config:
        r = record_of(case.name)
        sizes = {size: getattr(r, field, 0) for size, field in FIELDS.items()}
        sizes["H"] = getattr(r, "n_v_heads", r.n_heads)
        sizes["Dn"] = getattr(r, "head_dim", 0) - sizes["Dr"]
        sizes["Dv"] = sizes["Dv"] or getattr(r, "v_head_dim", 0)
        sizes["theta"] = getattr(r, "rope_theta", 0)
        case.set_sizes({name: size for name, size in sizes.items() if size > 0})


def _dsa(p: Any, case: Case) -> Any:
    _set_sizes(case)
    module = p.module("dsa", F=by_plain_attention(p))
    index = (case.Hi, case.Di, case.topk), case.theta, False
    sizes = case.E, case.H, case.R, case.Dn, case.Dr, case.Dv, case.Rq, *index
    cache = module.KVCache(case.T) if case.chunks else None
    return case.call(case.layer(module.DSA, *sizes), cache)


def _gated_delta(p: Any, case: Case) -> Any:
    _set_sizes(case)
    kind, state = p.gated_delta.GatedDeltaNet, p.gated_delta.State()
    sizes = case.E, case.K, case.H, case.D, case.Dv
    return case.call(case.layer(kind, *sizes), state)


def _window(p: Any, case: Case) -> Any:
    module = p.module("window", F=by_plain_attention(p))
    q, k, v = _qkv(case, "K")
    return module.window_attention(q, k, v, case.W, size=case.tile)


def _ring(p: Any, case: Case) -> Any:
    q, k = case.input("q", "B H S D"), case.input("k", "B K S D")
    v = case.input("v", "B K S D")
    cache, outs, end = p.ring.RingKVCache(case.W), [], 0
    for T in case.chunks:
        rows = slice(end, end := end + T)
        keys, values, positions = cache.append(k[:, :, rows], v[:, :, rows])
        mask = p.ring.sees(torch.arange(end - T, end), positions, case.W)
        keys, values = _repeat(keys, case.H), _repeat(values, case.H)
        outs.append(p.attention.attention(q[:, :, rows], keys, values, mask))
    return torch.cat(outs, dim=2)


def _ranks(p: Any, case: Case) -> Any:
    """Attention to a text in zigzag on n ranks: the first axis has their parts,
    of t tokens each."""
    placed = Plain().ring_attention.place(case.n * case.t, case.n)
    positions = case.keep_input("positions", placed)
    parts = [case.input("q", "n B H t D"), case.input("k", "n B K t D")]
    parts.append(case.input("v", "n B K t Dv"))
    if case.with_sinks:
        parts.append(case.input("sinks", "H").expand(case.n, -1))

    def work(
        group: Any, q: Tensor, k: Tensor, v: Tensor, *sinks: Tensor
    ) -> Any:
        inputs = q, k, v, positions[group.rank], group
        if case.all_to_all:
            return p.ulysses.ulysses(*inputs)
        ring = p.ring_attention
        return ring.ring_attention(*inputs, ring.causal, *sinks)

    return on_ranks(work, *parts)


def _sinks(p: Any, case: Case) -> Any:
    sinks = case.input("sinks", "H", 4.0)
    mask = _causal_mask(p, case)
    return p.sinks.attention_with_sinks(*_qkv(case), sinks, mask)


def _alibi(p: Any, case: Case) -> Any:
    q, k, v = _qkv(case)
    bias = None
    if case.softcap is None:
        bias = p.alibi.alibi(case.H, case.T, case.S).to(q.dtype)
    mask = _causal_mask(p, case)
    return p.alibi.biased_attention(q, k, v, bias, case.softcap, mask)


def _order(p: Any, case: Case) -> Any:
    """QK-norm, RoPE, softcap, sinks and gates."""
    q, q_norm = case.input("x", "B H T D"), case.input("q_norm", "D", 0.5, 1.0)
    if case.whole:
        weight = case.input("norm", "H*D", 0.5, 1.0)
        return p.order.norm_of_all_heads(q, weight)
    k, v, gate = (case.input(x, "B H T D") for x in ("k", "v", "gate"))
    norms = q_norm, case.input("k_norm", "D", 0.5, 1.0)
    sinks = case.input("sinks", "H")
    mask = case.keep_input("mask", p.masks.causal_mask(case.T))
    positions = torch.arange(case.T)
    rotate = partial(p.rope.rope, positions=positions, theta=case.theta)
    heads = q, k, v, gate, *norms
    return p.order.todays_heads(*heads, rotate, case.softcap, sinks, mask)


def _flash(p: Any, case: Case) -> Any:
    """The last column is the log-sum-exp of the scores."""
    q, k, v = _qkv(case)
    mask = _random_mask(case) if case.masked else None
    out, lse = p.flash.flash(q, k, v, mask, tile=tuple(case.tile))
    return torch.cat((out, lse[..., None]), dim=-1)


def _merge(p: Any, case: Case) -> Any:
    """Three parts are merged, two of which hide all keys of a query."""
    outs, lses = [], []
    for n in range(3):
        outs.append(case.input(f"out_{n}", "B H T Dv"))
        lses.append(case.input(f"lse_{n}", "B H T", 4.0))
        if n != 1:
            lses[n][1:2, 2:3, 3:4] = -torch.inf
            case.keep_input(f"lse_{n}", lses[n])
    out, lse = p.merge.merge(outs, lses)
    return torch.cat((out, lse[..., None]), dim=-1)


def _paged(p: Any, case: Case) -> Any:
    """Two sequences that share how they begin."""
    shapes = {name: f"2 K {T} D" for name, T in case.parts.items()}
    parts = [case.input(name, shape) for name, shape in shapes.items()]
    shape = 2, case.K, case.D
    pool = p.paged.Pool(case.blocks, case.size, shape, dtype=case.dtype)
    prompt, table = [*range(parts[0].shape[2])], list[int]()
    pool.append(table, prompt, parts[0])
    sequences = []
    for n, blocks in ((1, table), (2, pool.fork(table))):
        tokens = [*prompt, *range(100 * n, 100 * n + parts[n].shape[2])]
        sequences.append((blocks, len(tokens)))
        pool.append(blocks, tokens, parts[n])
    return torch.cat([pool.gather(*entry) for entry in sequences], dim=2)


# ----------------------------------------------------------- released models


def _frequencies(p: Any, r: AttentionRecord) -> Tensor:
    f: Tensor = p.scaling.frequencies(r.rope_width, r.rope_theta)
    factor, length = r.rope_factor, r.rope_length
    if r.rope_kind == "linear":
        f = p.scaling.linear(f, factor)
    elif r.rope_kind == "llama3":
        f = p.scaling.llama3(f, factor, length, r.rope_low, r.rope_high)
    elif r.rope_kind == "yarn":
        ends = patch.multiple(Tensor, floor=Tensor.clone, ceil=Tensor.clone)
        with nullcontext() if r.rope_truncate else ends:
            f = p.scaling.yarn(f, factor, length, r.rope_high, r.rope_low)[0]
    return f


class Additions:
    """What a record adds to plain GQA or MLA, each by the plain form of it.

    ConfiguredAttention computes the same, and the tests compare the two. But
    mistakes are lines of plain forms: here they can be planted.
    """

    def __init__(self, p: Any, record: AttentionRecord, first: int) -> None:
        self.p, self.record, self.first = p, record, first
        self.frequencies = _frequencies(p, record)
        self.layer: Any = None
        self.gate: Tensor | None = None

    def add_to(self, layer: Any) -> None:
        """Give a layer on meta the weights of the record, norms and gates."""
        r, self.layer = self.record, layer
        for name in "" if r.kv_rank else "qkvo":
            rows, columns = getattr(layer, f"{name}_proj").weight.shape
            rows *= 2 if name == "q" and r.gate else 1
            bias = r.o_bias if name == "o" else r.qkv_bias
            projection = nn.Linear(columns, rows, bias=bias)
            setattr(layer, f"{name}_proj", projection)
            if name in "qk" and (r.norm or r.gate):
                hook = partial(self.norm_heads, name)
                projection.register_forward_hook(hook)
            if name == "o" and r.gate:
                projection.register_forward_pre_hook(self.apply_gate)
        if r.norm:
            layer.q_norm, layer.k_norm = (nn.RMSNorm(r.head_dim) for _ in "qk")
        if r.with_sinks:
            layer.sinks = nn.Parameter(torch.zeros(r.n_heads))

    def norm_heads(
        self, name: str, _: object, inputs: Any, x: Tensor
    ) -> Tensor:
        """Norm each head of queries or keys `(B, T, H * D)`, and keep the gate
        that stands beside the queries."""
        r = self.record
        if name == "q" and r.gate:
            x, gate = self.p.order.query_and_gate(x, r.n_heads)
            self.gate = gate.transpose(1, 2).flatten(2)
        else:
            x = x.unflatten(-1, (-1, r.head_dim)).transpose(1, 2)
        x = x if r.norm_late else self.norm(x, name)
        return x.transpose(1, 2).flatten(2)

    def apply_gate(self, _: object, inputs: tuple[Tensor]) -> Tensor:
        functions = vars(torch) | vars(nn.functional)
        out: Tensor = inputs[0] * functions[self.record.gate_act](self.gate)
        return out

    def norm(self, x: Tensor, name: str) -> Tensor:
        """A mistake names the weights of both norms in `norm`: "qq", "q-"."""
        r = self.record
        weights = r.norm if r.norm and len(r.norm) == 2 else "qk"
        weight_name = weights["qk".index(name)]
        if not r.norm or weight_name == "-":
            return x
        one = r.norm_weight in ("1 + w", f"1 + w of {name}")
        weight = getattr(self.layer, f"{weight_name}_norm").weight + one
        out: Tensor = self.p.order.rms_norm(x, weight, r.norm_eps)
        return out

    def rotate(self, x: Tensor, positions: Tensor, *_: Any) -> Tensor:
        """RoPE of the record, in the place of `rope` of a plain form."""
        r, f = self.record, self.frequencies
        if r.rope_layout == "interleaved":  # the scores are those of halves
            x = x.unflatten(-1, (-1, 2)).mT.flatten(-2)
        x, rest = x.tensor_split((2 * len(f),), dim=-1)
        x = self.p.scaling.rotate(x, positions + self.first, f, r.rope_size)
        x = torch.cat((x, rest), dim=-1)
        name = "q" if x.shape[1] == r.n_heads else "k"
        return self.norm(x, name) if r.norm_late else x

    def attention(self, q: Tensor, k: Tensor, v: Tensor, mask: Any) -> Any:
        r, p = self.record, self.p
        q = q * (r.scale * r.head_dim**0.5)
        if r.window:  # instead of the causal mask
            mask = p.masks.window_mask(q.shape[2], k.shape[2], r.window)
        if r.with_sinks:
            sinks = self.layer.sinks
            return p.sinks.attention_with_sinks(q, k, v, sinks, mask)
        return p.attention.attention(q, k, v, mask)


def _draw_fused(case: Case, layer: nn.Module, r: AttentionRecord) -> None:
    """Draw the weights of a layer whose model has one matrix for q, k and v.

    It is stored as the model has it, and drawn in three parts.
    """
    stored = "weight/qkv_proj.weight"
    parts = [f"weight/{x}_proj.weight" for x in "qkv"]
    if stored in case.tensors:  # a mistake must not draw other ones
        heads = r.n_heads, r.n_kv_heads, r.n_kv_heads
        rows = [n * r.head_dim for n in heads]
        matrices = case.tensors[stored].split(rows)
        case.tensors |= zip(parts, matrices, strict=True)
    case.draw_weights(layer)
    case.tensors[stored] = torch.cat([case.tensors.pop(x) for x in parts])


def _released(p: Any, case: Case) -> Any:
    """GQA or MLA with what the record of a layer adds to it."""
    r = record_of(case.name)
    case.options_read |= {"config", "layer_number"}
    changes = {x: value_of(y, vars(r)) for x, y in case.record.items()}
    r = replace(r, **changes)
    sizes = {"E": r.d_model, "H": r.n_heads, "K": r.n_kv_heads}
    case.set_sizes(sizes | {"D": r.head_dim, "Dv": r.v_head_dim})
    additions = Additions(p, r, case.first)
    names = {"rope": additions.rotate, "F": functional(additions.attention)}
    with torch.device("meta"):
        if r.kv_rank:
            Dn = r.head_dim - r.rope_dim
            widths = r.kv_rank, Dn, r.rope_dim, r.v_head_dim, r.q_rank
            layer = p.module("mla", **names).MLA(r.d_model, r.n_heads, *widths)
        else:
            heads = r.n_heads, r.n_kv_heads, r.head_dim
            layer = p.module("gqa", **names).GQA(r.d_model, *heads)
        additions.add_to(layer)
    if r.fused:
        _draw_fused(case, layer, r)
    else:
        case.draw_weights(layer)
    form = {"absorbed": case.options["absorbed"]} if r.kv_rank else {}
    return case.call(layer, **form)


# ------------------------------------------------------------------ computed


class Steps(Watch):
    """The values with shape comments, in the order of the program."""

    def __init__(self, modules: tuple[str, ...]) -> None:
        p = Plain()
        super().__init__(
            {
                str(PACKAGE / f"{m.replace('.', '/')}.py"): p.text(m)
                for m in modules
            }
        )
        self.values: list[tuple[str, str, Tensor]] = []
        self.functions: set[str] = set()

    def __enter__(self) -> Any:
        threading.settrace(self._call_on_rank)
        return super().__enter__()

    def __exit__(self, *error: object) -> None:
        threading.settrace(cast(Any, None))
        super().__exit__(*error)

    def _call_on_rank(self, frame: Any, event: str, arg: Any) -> None:
        self.functions.add(frame.f_code.co_name)

    def _call(self, frame: Any, event: str, arg: Any) -> Any:
        self.functions.add(frame.f_code.co_name)
        return super()._call(frame, event, arg)

    def done(
        self, c: Comment, target: str, value: Any, frame: Any, letters: Any
    ) -> None:
        name = f"{frame.f_code.co_name}.{target.replace('self.', '')}"
        if isinstance(value, Tensor) and value.numel() <= MAX_SIZE:
            name = name.removeprefix("forward.")
            number = f"step/{len(self.values):02}/{name}"
            self.values.append((number, c.text, value.clone()))


def run_case(
    name: str,
    p: Plain,
    tensors: dict[str, Tensor],
    dtype: Any = torch.float64,
    record: Any = None,
    options: dict[str, Any] | None = None,
) -> tuple[Tensor, Case]:
    """Run a case with inputs and weights of `tensors`; missing ones are drawn.

    `record` has fields that the record of a wrong model has, and `options` are
    set in the case. Memory that nobody has written is 0, or two runs would
    differ.
    """
    with torch.no_grad():
        return run_with_graph(name, p, tensors, dtype, record, options)


def run_with_graph(
    name: str,
    p: Plain,
    tensors: dict[str, Tensor],
    dtype: Any = torch.float64,
    record: Any = None,
    options: dict[str, Any] | None = None,
) -> tuple[Tensor, Case]:
    """The same for autograd, if it is enabled."""
    case = Case(name, tensors, dtype)
    case.options |= {"record": record or {}} | (options or {})
    zeros = patch.object(Tensor, "new_empty", Tensor.new_zeros)
    with zeros, patch.object(nn.Linear, "reset_parameters", lambda _: None):
        out: Tensor = globals()[f"_{case.run}"](p, case)
    return out, case


def modules_of(p: Plain) -> tuple[str, ...]:
    """The plain forms that have been asked for."""
    return tuple(PLAIN + stem for stem in sorted(p.stems))


def room(out: Tensor, right: Tensor) -> float:
    """How far an output may be from that of a mistake, to count as it."""
    return min(SEPARATION * largest(right), largest_difference(out, right) / 2)


def blank(out: Tensor) -> str:
    """Why an output says nothing of its code: it is all zeros, has nothing that
    is finite, or one value alone. Otherwise ""."""
    values = out.flatten()
    if values.is_floating_point() and not values.isfinite().any():
        return "nan" if values.isnan().any() else "infinite"
    if not (values == values[:1]).all():
        return ""
    return "constant" if values[:1].any() else "zeros"


def _indistinguishable(
    wrong: dict[str, Tensor], right: Tensor, run: Tensor, dtype: Any
) -> list[str]:
    """The mistakes that a dtype does not tell from rounding, or cannot hold.

    Its rounding is the error of `run`, the output that it computes.
    """
    finite = right.isfinite()
    noise = distance(run.where(finite, 0), right.where(finite, 0))
    rounded = as_dtype(right, dtype)
    result = []
    for way, value in wrong.items():
        out = as_dtype(value, dtype)
        if blank(out) or distance(out, rounded) <= OWN_ROUNDINGS * noise:
            result.append(way)
    return result


def mistakes_of(name: str, modules: Any) -> Iterator[tuple[str, Variant, Any]]:
    """The mistakes that can be made in a case, by id: lines of these modules,
    or another record of a released model."""
    case = cases()[name]
    for id, mistake in catalogue().items():
        for variant in every_variant(mistake):
            lines_in = {lines.module for lines in variant}
            if not lines_in <= {*modules} or id in case["never"]:
                continue
            yield id, variant, {}
            # A row without a key gives 0 here, elsewhere a mean or NaN.
            if "plain.attention" in modules and (
                case["pads"] or id == "causal-without-itself"
            ):
                for empty in ("mask-minus-1e9", "empty-row-nan"):
                    yield id, variant + catalogue()[empty].variants[0], {}
    if case["run"] == "released":
        fields = vars(record_of(name))
        for condition, mistakes in _table()["wrong"].items():
            if value_of(condition, fields):
                for id, records in mistakes.items():
                    yield from ((id, (), record) for record in records)


def _options_of_forms(name: str) -> list[dict[str, Any]]:
    """Options of each way to the right output: a port may take any."""
    form = cases()[name]["absorbed"]
    return [{}] if form is None else [{}, {"absorbed": not form}]


class WrongOutputs:
    """Outputs of mistakes, as stored, and the ids of all that give each.

    Each is apart from the right output and from the other ones. A mistake is
    left out if it raises an error, or if its output is blank.
    """

    def __init__(self, right: Tensor, rounding: float) -> None:
        self.right, self.rounding = right, rounding
        self.outputs: dict[str, Tensor] = {}
        self.ids: dict[str, list[str]] = {}

    def add(self, id: str, out: Tensor) -> None:
        right = self.right
        least = FLOAT32_ROUNDINGS * self.rounding
        if out.shape != right.shape or blank(out):
            return
        if largest_difference(out, right) <= least:
            return
        bound = room(out, right)
        if out.is_floating_point():  # coarser: half as much to download
            step = 2.0 ** round(log2(bound) - 2)
            out = (out / step).round() * step
        out = as_stored(out)
        matches = (
            way
            for way, output in self.outputs.items()
            if largest_difference(out, output)
            <= min(bound, room(output, right))
        )
        if (way := next(matches, None)) is None:
            earlier = sum(x.split("/")[0] == id for x in self.outputs)
            way = f"{id}/{earlier + 1}" if earlier else id
            self.outputs[way], self.ids[way] = out, []
        if id not in self.ids[way]:
            self.ids[way].append(id)


def wrong_outputs(
    name: str,
    right: Tensor,
    tensors: dict[str, Tensor],
    modules: tuple[str, ...],
    functions: set[str],
    rounding: float,
) -> WrongOutputs:
    """Plant each mistake in lines of these functions, and run the case."""
    wrong = WrongOutputs(right, rounding)
    mistakes = mistakes_of(name, modules)
    forms = _options_of_forms(name)
    for (id, variant, record), options in product(mistakes, forms):
        places = {place for x in variant for place in place_of(x)[-1:]}
        if variant and not functions & places:
            continue
        differs = places & {"per_head", "absorbed"} or (
            variant and variant[0].module == "plain.attention"
        )
        if options and not differs:  # it gives the same in each form
            continue
        state = torch.get_rng_state()
        try:
            out, _ = run_case(
                name, Plain(variant), tensors, record=record, options=options
            )
        except Exception:
            continue
        if state.equal(torch.get_rng_state()):  # or each run gives another one
            wrong.add(id, out)
    return wrong


def acceptable(right: Tensor, v: Tensor | None) -> dict[str, Tensor]:
    """Outputs by other conventions: in a row that sees no key, the mean of all
    values, or of a softmax equal weights."""
    empty = (right == 0).all(dim=-1, keepdim=True)
    if right.dtype == torch.bool or not empty.any():
        return {}
    mean = right.new_ones(1) / right.shape[-1]
    if v is not None:
        mean = v.mean(dim=-2, keepdim=True).to(right.dtype)
    return {"empty-row-mean": torch.where(empty, mean, right)}


def simpler(name: str) -> str:
    """The case to try first: the one that this is like, without a cache or
    pads, or the layer of a released model without its additions."""
    case, first = cases()[name], name
    while (base := _table()[first].get("like", "")) in cases():
        if cases()[base]["run"] != case["run"]:
            break
        first = base
    if case["run"] == "released":
        first = "mla" if record_of(name).kv_rank else "gqa"
    return "" if first == name else first


def source(name: str) -> str:
    """The sha256 of the code and the table that a case is computed from; of a
    released layer, its record follows from the config in the table."""
    p = Plain()
    run_case(name, p, {})
    modules = modules_of(p)
    stems = "vectors.py", "forms.py", "gradients.py", "backward.txt"
    paths = (PACKAGE / "judge" / stem for stem in stems)
    texts = [path.read_text(encoding="utf-8") for path in paths]
    texts += [p.text(module) for module in modules]
    texts += [repr(mistake) for mistake in mistakes_of(name, modules)]
    texts += [json.dumps(cases()[name]), version()]
    return sha256("\0".join(texts).encode()).hexdigest()


@one_thread()
def compute(name: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of a case, and what its file says of them."""
    inputs, p, runs = dict[str, Tensor](), Plain(), {}
    run_case(name, p, inputs)
    modules, tensors, functions = modules_of(p), dict(inputs), set[str]()
    for kind, dtype in {"": torch.float64, **DTYPES}.items():
        with Steps(modules) as steps:
            out, case = run_case(name, Plain(), inputs, dtype)
        values = {x: value for x, _, value in steps.values}
        runs[kind] = {**values, **case.cache_contents, "output": out}
        if not kind:
            letters = {x: text for x, text, _ in steps.values}
            functions |= steps.functions
            letters |= {x: _letters(y) for x, y in case.letters.items()}
            options = _options_read(case)
    right = runs.pop("")
    for form in _options_of_forms(name):
        with Steps(modules) as steps:
            run_case(name, Plain(), inputs, options=form)
        functions |= steps.functions
    tolerance = {
        kind: {x: _tolerance(right[x], run[x], DTYPES[kind]) for x in right}
        for kind, run in runs.items()
    }
    out, rounding = as_stored(right["output"]), tolerance["float32"]["output"]
    wrong = wrong_outputs(name, out, inputs, modules, functions, rounding)
    letters["output"] = _letters(cases()[name]["output"])
    graph = partial(run_with_graph, name)
    slopes = gradients(name, graph, inputs)
    for kind, dtype in DTYPES.items():
        rounded = gradients(name, graph, inputs, dtype=dtype)
        tolerance[kind] |= {
            x: _tolerance(slopes[x], rounded[x], dtype)
            for x in slopes
            if x != "cotangent"
        }
    seen = {id for ids in wrong.ids.values() for id in ids}
    wrong_slopes, backward_ids = wrong_gradients(
        name, graph, slopes, inputs, modules, tolerance["float32"], seen
    )
    tensors |= right | slopes | wrong_slopes
    tensors |= {f"mistake/{x}/output": y for x, y in wrong.outputs.items()}
    others = acceptable(out, tensors.get("input/v"))
    tensors |= {f"acceptable/{x}/output": y for x, y in others.items()}
    about = {
        "format": FORMAT,
        "case": name,
        "version": version(),
        "source": source(name),
        "plain": [module.removeprefix(PLAIN) for module in modules],
        "oracle": cases()[name]["oracle"],
        "simpler": simpler(name),
        "given": options,
        "letters": letters,
        "tolerance": tolerance,
        "largest": largest(out),
        "mistakes": wrong.ids,
        "acceptable": [*others],
        "backward": backward_ids,
        "indistinguishable": {
            kind: _indistinguishable(
                wrong.outputs, out, run["output"], DTYPES[kind]
            )
            for kind, run in runs.items()
        },
        "titles": _titles(
            id
            for ids in (*wrong.ids.values(), *backward_ids.values())
            for id in ids
        ),
    }
    return {x: as_stored(value) for x, value in tensors.items()}, about


def _options_read(case: Case) -> dict[str, Any]:
    """The options on which the output depends, in their order."""
    return {
        name: value
        for name, value in case.options.items()
        if name in case.options_read
        and name != "run"
        and value not in ([], {}, None)
    }


def _titles(ids: Iterable[str]) -> dict[str, dict[str, str]]:
    stems = {
        m.id: stem
        for stem, entries in mistakes_by_file().items()
        for m in entries
    }
    return {
        id: {
            "en": entry(id).title.en,
            "page": f"{PAGES[stems[id]]}/#{id}" if id in stems else PAGE,
        }
        for id in ids
    }


def _count(ids: dict[str, list[str]]) -> int:
    return len({id for way in ids.values() for id in way})


def _letters(text: str) -> str:
    return f"({', '.join(text.split())})"


def _tolerance(right: Tensor, rounded: Tensor, dtype: Any) -> float:
    """The error that code may have which computes in this dtype."""
    if not right.is_floating_point():
        return 0.0
    finite = right.isfinite()
    error = largest_difference(right.where(finite, 0), rounded.where(finite, 0))
    error = OTHER_ORDER * error + torch.finfo(dtype).eps * largest(right)
    return float(f"{error:.2g}")


def write(
    folder: Path,
    names: Iterable[str],
    report: Callable[[str], object] = lambda name: None,
) -> dict[str, Any]:
    """Write a file for each case, index.json of all, and their schema.

    `report` is called with the name of each case that is written.
    """
    import numpy as np  # which safetensors imports when it saves
    from safetensors.torch import save

    assert np
    folder.mkdir(parents=True, exist_ok=True)
    index: dict[str, Any] = {"format": FORMAT, "version": version()}
    index |= {"titles": {}, "cases": {}}
    (folder / "schema.json").write_bytes(SCHEMA.read_bytes())
    for name in names:
        tensors, about = compute(name)
        # One entry: safetensors writes several in any order.
        text = json.dumps(about, ensure_ascii=False, sort_keys=True)
        data = save(tensors, {"attnref": text})
        (folder / f"{name}.safetensors").write_bytes(data)
        for id in about["titles"]:  # in both languages, once for all files
            index["titles"][id] = entry(id).title._asdict()
        index["cases"][name] = {
            "file": f"{name}.safetensors",
            "sha256": sha256(data).hexdigest(),
            **{x: about[x] for x in ("source", "oracle", "plain")},
            "output": [*tensors["output"].shape],
            **{x: _count(about[x]) for x in ("mistakes", "backward")},
            "acceptable": len(about["acceptable"]),
            "sizes": {
                x: y
                for x, y in about["given"].items()
                if x[0].isupper() and isinstance(y, int)
            },
            "indistinguishable": about["indistinguishable"],
        }
        report(name)
    text = json.dumps(index, ensure_ascii=False, indent=1)
    (folder / "index.json").write_text(text + "\n", encoding="utf-8")
    return index
