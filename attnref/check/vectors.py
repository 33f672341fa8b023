"""Known answers: inputs, weights, steps, outputs, and outputs of mistakes, for
attention in any language.

A case of vectors.toml calls plain forms. Its steps are the values that have a
shape comment there; its mistakes are those of the catalogue that can be planted
in what it calls. All is computed in float64 and rounded once, from inputs and
weights that float16 and bfloat16 hold exactly.
"""
# pyright: reportPossiblyUnboundVariable=false

import json
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import cache, partial
from hashlib import sha256
from math import log2
from pathlib import Path
from typing import Any
from unittest.mock import patch
from zlib import crc32

import torch
from torch import Tensor, nn

from attnref.check.catalogue import (
    PACKAGE,
    PAGES,
    PLAIN,
    Plain,
    Variant,
    catalogue,
    every_variant,
    files,
    place_of,
)
from attnref.check.forms import attend, one_thread
from attnref.check.shapes import Comment, Watch
from attnref.released.expression import value_of
from attnref.released.record import AttentionRecord, mixers_of, records_of
from attnref.words import hint, message, version

APART = 1e-3  # of the largest element: less does not tell two outputs apart
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
DTYPES |= {"float16": torch.float16}
ROUNDING = 4  # another order of sums may round so many times as much
GRID = 64  # inputs and weights are multiples of 1 / GRID
MOST = 1300  # elements of a step that is stored
SIZES = {"B": 3, "T": 5, "S": 11, "E": 7, "H": 6, "K": 2, "D": 10, "Dv": 13}
OPTIONS = {"output": "B T E", "chunks": [], "pads": [], "held": 0, "never": []}
OPTIONS |= {"config": {}, "record": {}}
OPTIONS |= dict.fromkeys(("hidden", "masked", "whole", "real"), False)
OPTIONS |= dict.fromkeys(("softcap", "chunk"), None)
# What the letters of a case are called in a record.
FIELDS = {"E": "d_model", "K": "n_heads", "D": "key_dim", "Dv": "value_dim"}
FIELDS |= {"R": "kv_rank", "Rq": "q_rank", "Dr": "rope_dim"}
FIELDS |= {"Hi": "index_heads", "Di": "index_dim", "topk": "index_topk"}


@cache
def _table() -> dict[str, dict[str, Any]]:
    text = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


@cache
def cases() -> dict[str, dict[str, Any]]:
    """What a case is given, by its name. One that is `like` another has all
    that this one has."""
    result: dict[str, dict[str, Any]] = {}
    for name, case in _table().items():
        base = result.get(case.get("like", ""), SIZES | OPTIONS)
        config = base["config"] | case.get("config", {})
        result[name] = base | case | {"config": config}
    return {name: case for name, case in result.items() if "run" in case}


def check_case(name: str) -> None:
    """An error suggests similar ones."""
    if name not in cases():
        meant = hint(name, {each: each for each in cases()})
        raise ValueError(message("there is no case {!r}", name) + meant)


class Draws:
    """What a case is given, in one dtype: each tensor is drawn once, from a
    seed of its own; and what a cache holds after each call."""

    def __init__(self, name: str, known: dict[str, Tensor], dtype: Any) -> None:
        self.name, self.known, self.dtype = name, known, dtype
        self.case = dict(cases()[name])
        self.letters: dict[str, str] = {}
        self.kept: dict[str, Tensor] = {}
        self.used: set[str] = set()

    def __getitem__(self, option: str) -> Any:
        self.used.add(option)
        return self.case[option]

    def __getattr__(self, option: str) -> Any:
        return self[option]

    def sized(self, sizes: dict[str, Any]) -> None:
        """Sizes that its config says."""
        self.case |= sizes
        self.used |= sizes.keys()

    def __call__(
        self, name: str, letters: str, largest: float = 2.0, start: float = 0.0
    ) -> Tensor:
        """An input: `start`, more or less by at most `largest`."""
        own: Any = self
        shape = [value_of(letter, own) for letter in letters.split()]
        self.letters[f"input/{name}"] = letters
        return self.drawn(f"input/{name}", shape, largest, start)

    def drawn(
        self, name: str, shape: Any, largest: float, start: float = 0.0
    ) -> Tensor:
        if name not in self.known:
            seed = crc32(f"{self.name} {name}".encode())
            by = torch.Generator().manual_seed(seed)
            n = round(largest * GRID)
            steps = torch.randint(-n, n + 1, tuple(shape), generator=by)
            self.known[name] = start + steps.double() / GRID
        return self.known[name].to(self.dtype, copy=True)

    def given(self, name: str, value: Tensor) -> Tensor:
        """An input that the case computes."""
        if self.dtype == torch.float64:
            self.known[f"input/{name}"] = value
        return value

    def layer(self, kind: Any, *sizes: Any, **more: Any) -> Any:
        with torch.device("meta"):
            made = kind(*sizes, **more)
        return self.weighted(made)

    def weighted(self, layer: nn.Module) -> Any:
        """With weights so large that the softmax decides."""
        drawn = {}
        for name, w in layer.state_dict().items():
            norm = "norm" in name and not name.endswith("bias")
            largest = 1.0 if w.dim() > 1 else 0.5
            full = f"weight/{name}"
            drawn[name] = self.drawn(full, w.shape, largest, float(norm))
        layer.load_state_dict(drawn, assign=True)
        return layer.eval()

    def read(self, layer: Any, cache: Any = None, **more: Any) -> Tensor:
        """The layer reads x, whole or in chunks; the outputs of real tokens.
        Pads are on the left, and hold noise."""
        x, outs, end = self("x", "B T E"), [], 0
        if self.pads:
            at = torch.arange(self.T)
            pads = torch.tensor(self.pads)[:, None]
            more["valid"] = self.given("valid", at >= pads)
        for n, new in enumerate(x.split(self.chunks or [self.T], dim=1)):
            end += new.shape[1]
            if "valid" in more:
                more["valid"] = self.known["input/valid"][:, :end]
            outs.append(layer(new, cache, **more))
            for name, value in vars(cache).items() if cache else ():
                if isinstance(value, Tensor):
                    if name == "stored":
                        value = value[..., : cache.length, :]
                    if value.numel() <= MOST:
                        self.kept[f"cache/after/{n}/{name}"] = value.clone()
        out = torch.cat(outs, dim=1)
        return out[self.known["input/valid"]] if self.pads else out


# --------------------------------------------------------------------- cases


def _repeated(k: Tensor, H: int) -> Tensor:
    return k.repeat_interleave(H // k.shape[1], dim=1)


def _qkv(c: Draws, heads: str = "H") -> tuple[Tensor, Tensor, Tensor]:
    q, k = c("q", "B H T D"), c("k", f"B {heads} S D")
    return q, k, c("v", f"B {heads} S Dv")


def _some(c: Draws) -> Tensor:
    """Any mask, which is drawn as numbers, and later stays as it is; one query
    sees no key."""
    mask = c("mask", "B H T S", 1.0, 0.5) > 0
    mask[1, 2, 3] = False
    return c.given("mask", mask)


def _causal(p: Any, c: Draws) -> Any:
    return c.given("mask", p.masks.causal_mask(c.T, c.S))


def _softmax(p: Any, c: Draws) -> Any:
    x = c("x", "B T S", 4.0)
    if c.hidden:
        x[0, 1], x[1, 2:, 3:] = -torch.inf, -torch.inf
        c.given("x", x)
    if c.chunk:
        return p.softmax.online_softmax(x, c.chunk)
    return p.softmax.softmax(x)


def _sdpa(p: Any, c: Draws) -> Any:
    mask = _some(c) if c.masked else None
    return p.attention.attention(*_qkv(c), mask)


def _masks(p: Any, c: Draws) -> Any:
    if c.kind == "padding":
        at, pads = torch.arange(c.T), torch.tensor(c.pads)[:, None]
        return p.masks.padding_mask(c.given("valid", at >= pads))
    if c.kind == "document":
        ids = (torch.arange(c.S) + torch.arange(c.B)[:, None]) // 4
        return p.masks.document_mask(c.given("ids", ids))
    if c.kind == "streaming":
        return p.sinks.streaming_mask(c.T, c.S, c.first, c.W)
    if c.kind == "window":
        return p.masks.window_mask(c.T, c.S, c.W)
    return p.masks.causal_mask(c.T, c.S)


def _rope(p: Any, c: Draws) -> Any:
    x = c("x", "B H T D")
    at = c.given("positions", torch.arange(c.T) * c.step + c.first)
    if c.kind in ("rope", "mla"):
        return getattr(p, c.kind).rope(x, at, c.theta)
    f = p.scaling.frequencies(c.D, c.theta)
    f = getattr(p.scaling, c.kind)(f, *c.scaling)
    f, size = f if isinstance(f, tuple) else (f, 1.0)
    return p.scaling.rotate(x, at, f, size)


def _mha(p: Any, c: Draws) -> Any:
    return c.layer(p.mha.MHA, c.E, c.H)(c("x", "B T E"))


def _mqa(p: Any, c: Draws) -> Any:
    p.mqa.F = attend(p, "attention")
    cache = p.kv_cache.KVCache(c.T) if c.chunks else None
    return c.read(c.layer(p.mqa.MQA, c.E, c.H), cache)


def _gqa(p: Any, c: Draws) -> Any:
    """Behind c.held keys that are in the cache already."""
    p.gqa.F = attend(p, "attention")
    layer = c.layer(p.gqa.GQA, c.E, c.H, c.K, c.D, theta=c.theta)
    cache = p.gqa.KVCache(c.room) if c.chunks else None
    if cache and c.held:
        cache.append(*(c(f"cache/{n}", "B K held D") for n in "kv"))
    return c.read(layer, cache)


def _cross(p: Any, c: Draws) -> Any:
    p.cross.F = attend(p, "attention")
    layer = c.layer(p.cross.CrossAttention, c.E, c.H, c.C)
    x, context, valid = c("x", "B T E"), c("context", "B S C"), None
    if c.real:
        valid = torch.arange(c.S) < torch.tensor(c.real)[:, None]
        c.given("valid_context", valid)
    return layer(x, context, valid)


def _mla(p: Any, c: Draws) -> Any:
    p.mla.F = attend(p, "attention")
    sizes = c.E, c.H, c.R, c.Dn, c.Dr, c.Dv, c.Rq
    cache = p.mla.KVCache(c.T) if c.chunks else None
    layer = c.layer(p.mla.MLA, *sizes, theta=c.theta)
    return c.read(layer, cache, absorbed=c.absorbed)


@cache
def _record(name: str, layer: int) -> Any:
    config = cases()[name]["config"]
    return {**records_of(config), **mixers_of(config)}[layer]


def _sized(c: Draws) -> None:
    """By the record of its config, if the case has one."""
    if c.config:
        r = _record(c.name, 0)
        given = {mine: getattr(r, its, 0) for mine, its in FIELDS.items()}
        given["H"] = getattr(r, "n_v_heads", r.n_heads)
        given["Dn"] = getattr(r, "head_dim", 0) - given["Dr"]
        given["Dv"] = given["Dv"] or getattr(r, "v_head_dim", 0)
        given["theta"] = r.rope_theta
        c.sized({name: size for name, size in given.items() if size > 0})


def _dsa(p: Any, c: Draws) -> Any:
    _sized(c)
    p.dsa.F = attend(p, "attention")
    index = (c.Hi, c.Di, c.topk), c.theta, False
    sizes = c.E, c.H, c.R, c.Dn, c.Dr, c.Dv, c.Rq, *index
    cache = p.dsa.KVCache(c.T) if c.chunks else None
    return c.read(c.layer(p.dsa.DSA, *sizes), cache)


def _gated_delta(p: Any, c: Draws) -> Any:
    _sized(c)
    kind, state = p.gated_delta.GatedDeltaNet, p.gated_delta.State()
    return c.read(c.layer(kind, c.E, c.K, c.H, c.D, c.Dv), state)


def _window(p: Any, c: Draws) -> Any:
    p.window.F = attend(p, "attention")
    return p.window.window_attention(*_qkv(c, "K"), c.W, size=c.tile)


def _ring(p: Any, c: Draws) -> Any:
    q, k, v = c("q", "B H S D"), c("k", "B K S D"), c("v", "B K S D")
    cache, outs, end = p.ring.RingKVCache(c.W), [], 0
    for T in c.chunks:
        rows = slice(end, end := end + T)
        keys, values, at = cache.append(k[:, :, rows], v[:, :, rows])
        mask = p.ring.sees(torch.arange(end - T, end), at, c.W)
        both = _repeated(keys, c.H), _repeated(values, c.H)
        outs.append(p.attention.attention(q[:, :, rows], *both, mask))
    return torch.cat(outs, dim=2)


def _sinks(p: Any, c: Draws) -> Any:
    sinks = c("sinks", "H", 4.0)
    return p.sinks.attention_with_sinks(*_qkv(c), sinks, _causal(p, c))


def _alibi(p: Any, c: Draws) -> Any:
    q, k, v = _qkv(c)
    bias = None
    if c.softcap is None:
        bias = p.alibi.alibi(c.H, c.T, c.S).to(q.dtype)
    return p.alibi.biased_attention(q, k, v, bias, c.softcap, _causal(p, c))


def _order(p: Any, c: Draws) -> Any:
    """QK-norm, RoPE, softcap, sinks and gates."""
    x = c("x", "B H T D"), c("q_norm", "D", 0.5, 1.0)
    if c.whole:
        return p.order.norm_of_all_heads(x[0], c("norm", "H*D", 0.5, 1.0))
    heads = x[0], c("k", "B H T D"), c("v", "B H T D"), c("gate", "B H T D")
    norms, sinks = (x[1], c("k_norm", "D", 0.5, 1.0)), c("sinks", "H")
    mask = c.given("mask", p.masks.causal_mask(c.T))
    turn = partial(p.rope.rope, positions=torch.arange(c.T), theta=c.theta)
    return p.order.todays_heads(*heads, *norms, turn, c.softcap, sinks, mask)


def _flash(p: Any, c: Draws) -> Any:
    """The last column is the log-sum-exp of the scores."""
    q, k, v = _qkv(c)
    mask = _some(c) if c.masked else None
    out, lse = p.flash.flash(q, k, v, mask, tile=tuple(c.tile))
    return torch.cat((out, lse[..., None]), dim=-1)


def _merge(p: Any, c: Draws) -> Any:
    """Of three parts, two of which hide all keys of a query."""
    outs, lses = [], []
    for n in range(3):
        outs.append(c(f"out_{n}", "B H T Dv"))
        lses.append(c(f"lse_{n}", "B H T", 4.0))
        if n != 1:
            lses[n][1, 2, 3] = -torch.inf
            c.given(f"lse_{n}", lses[n])
    out, lse = p.merge.merge(outs, lses)
    return torch.cat((out, lse[..., None]), dim=-1)


def _paged(p: Any, c: Draws) -> Any:
    """Two sequences that share how they begin."""
    parts = [c(name, f"2 K {T} D") for name, T in c.parts.items()]
    pool = p.paged.Pool(c.blocks, c.size, (2, c.K, c.D), dtype=c.dtype)
    tokens, table = [*range(parts[0].shape[2])], list[int]()
    pool.append(table, tokens, parts[0])
    both = []
    for n, rows in ((1, table), (2, pool.fork(table))):
        read = [*tokens, *range(100 * n, 100 * n + parts[n].shape[2])]
        both.append((rows, len(read)))
        pool.append(rows, read, parts[n])
    return torch.cat([pool.gather(*each) for each in both], dim=2)


# ----------------------------------------------------------- released models


def _frequencies(p: Any, r: AttentionRecord) -> Tensor:
    f: Tensor = p.scaling.frequencies(r.rope_width, r.rope_theta)
    long = r.rope_factor, r.rope_length
    if r.rope_kind == "linear":
        f = p.scaling.linear(f, r.rope_factor)
    elif r.rope_kind == "llama3":
        f = p.scaling.llama3(f, *long, r.rope_low, r.rope_high)
    elif r.rope_kind == "yarn":
        ends = patch.multiple(Tensor, floor=Tensor.clone, ceil=Tensor.clone)
        with nullcontext() if r.rope_truncate else ends:
            f = p.scaling.yarn(f, *long, r.rope_high, r.rope_low)[0]
    return f


def _released(p: Any, c: Draws) -> Any:
    """GQA or MLA with what the record of a layer adds to it."""
    r = _record(c.name, c.layer_number)
    r = replace(r, **{x: value_of(y, vars(r)) for x, y in c.record.items()})
    c.used.add("config")
    sizes = {"E": r.d_model, "H": r.n_heads, "K": r.n_kv_heads}
    c.sized(sizes | {"D": r.head_dim, "Dv": r.v_head_dim})
    module, f = p.mla if r.kv_rank else p.gqa, _frequencies(p, r)
    gates: list[Tensor] = []
    with torch.device("meta"):
        if r.kv_rank:
            Dn = r.head_dim - r.rope_dim
            parts = r.kv_rank, Dn, r.rope_dim, r.v_head_dim, r.q_rank
            own: Any = module.MLA(r.d_model, r.n_heads, *parts)
        else:
            own = module.GQA(r.d_model, r.n_heads, r.n_kv_heads, r.head_dim)
            biases = r.qkv_bias, r.qkv_bias, r.qkv_bias, r.o_bias
            for name, bias in zip("qkvo", biases, strict=True):
                rows, columns = getattr(own, f"{name}_proj").weight.shape
                rows *= 1 + (name == "q" and bool(r.gate))
                new = nn.Linear(columns, rows, bias=bias)
                setattr(own, f"{name}_proj", new)
        if r.norm:
            own.q_norm, own.k_norm = (nn.RMSNorm(r.head_dim) for _ in "qk")
        if r.with_sinks:
            own.sinks = nn.Parameter(torch.zeros(r.n_heads))
    whole = "weight/qkv_proj.weight"
    rows = [f"weight/{x}_proj.weight" for x in ("qkv" if r.fused else "")]
    if whole in c.known:  # a mistake must not draw others
        wide, narrow = r.n_heads * r.head_dim, r.n_kv_heads * r.head_dim
        split = c.known[whole].split((wide, narrow, narrow))
        c.known |= zip(rows, split, strict=True)
    c.weighted(own)
    if rows:
        c.known[whole] = torch.cat([c.known.pop(part) for part in rows])

    def normed(x: Any, name: str) -> Any:
        """Of a mistake, `norm` says with which weights: "qq"."""
        norms = r.norm if len(r.norm or "") == 2 else "qk"
        if not r.norm or (norm := norms["qk".index(name)]) == "-":
            return x
        one = r.norm_weight in ("1 + w", f"1 + w of {name}")
        weight = getattr(own, f"{norm}_norm").weight + one
        return p.order.rms_norm(x, weight, r.norm_eps)

    def by_heads(out: Any, name: str) -> Any:
        if name == "q" and r.gate:
            x, gate = p.order.query_and_gate(out, r.n_heads)
            gates.append(gate.transpose(1, 2).flatten(2))
        else:
            x = out.unflatten(-1, (-1, r.head_dim)).transpose(1, 2)
        x = x if r.norm_late else normed(x, name)
        return x.transpose(1, 2).flatten(2)

    def turn(x: Any, at: Tensor, *_: Any) -> Any:
        if r.rope_layout == "interleaved":  # the scores are those of halves
            x = x.unflatten(-1, (-1, 2)).mT.flatten(-2)
        x, rest = x.tensor_split((2 * len(f),), dim=-1)
        x = p.scaling.rotate(x, at + c.first, f, r.rope_size)
        x = torch.cat((x, rest), dim=-1)
        name = "q" if x.shape[1] == r.n_heads else "k"
        return normed(x, name) if r.norm_late else x

    def inner(q: Tensor, k: Tensor, v: Tensor, mask: Any) -> Any:
        q = q * (r.scale * r.head_dim**0.5)
        if r.window:  # instead of the causal one
            mask = p.masks.window_mask(q.shape[2], k.shape[2], r.window)
        if r.with_sinks:
            return p.sinks.attention_with_sinks(q, k, v, own.sinks, mask)
        return p.attention.attention(q, k, v, mask)

    for name in "qk" if r.norm or r.gate else "":
        getattr(own, f"{name}_proj").register_forward_hook(
            lambda _, given, out, name=name: by_heads(out, name)
        )
    if r.gate:
        act = (vars(torch) | vars(nn.functional))[r.gate_act]
        own.o_proj.register_forward_pre_hook(
            lambda _, given: given[0] * act(gates.pop())
        )
    module.rope, module.F = turn, attend(p, "attention", inner)
    return c.read(own)


# ------------------------------------------------------------------ computed


class Steps(Watch):
    """The values with shape comments, in order."""

    def __init__(self, modules: tuple[str, ...]) -> None:
        p = Plain()
        super().__init__(
            {
                str(PACKAGE / f"{m.replace('.', '/')}.py"): p.text(m)
                for m in modules
            }
        )
        self.values: list[tuple[str, str, Tensor]] = []
        self.called: set[str] = set()

    def _call(self, frame: Any, event: str, arg: Any) -> Any:
        self.called.add(frame.f_code.co_name)
        return super()._call(frame, event, arg)

    def done(
        self, c: Comment, target: str, value: Any, frame: Any, letters: Any
    ) -> None:
        name = f"{frame.f_code.co_name}.{target.replace('self.', '')}"
        if isinstance(value, Tensor) and value.numel() <= MOST:
            name = name.removeprefix("forward.")
            number = f"step/{len(self.values):02}/{name}"
            self.values.append((number, c.text, value.clone()))


@torch.no_grad()
def ran(
    name: str,
    p: Plain,
    known: dict[str, Tensor],
    dtype: Any = torch.float64,
    record: Any = None,
) -> tuple[Tensor, Draws]:
    """What nobody has written is 0, or two runs would differ."""
    c = Draws(name, known, dtype)
    c.case["record"] = record or {}
    unwritten = patch.object(Tensor, "new_empty", Tensor.new_zeros)
    with unwritten, patch.object(nn.Linear, "reset_parameters", lambda _: None):
        out: Tensor = globals()[f"_{c.run}"](p, c)
    return out, c


def _modules(p: Plain) -> tuple[str, ...]:
    return tuple(PLAIN + stem for stem in sorted(vars(p)) if stem != "texts")


def apart(a: Tensor, b: Tensor) -> float:
    """The largest difference. Infinities and NaN are equal to themselves."""
    if a.shape != b.shape:
        return torch.inf
    a, b = a.double(), b.double()
    same = (a == b) | (a.isnan() & b.isnan())
    gap = (a - b).abs().where(~same, 0)
    return float(gap.nan_to_num(torch.inf).max()) if gap.numel() else 0.0


def largest(x: Tensor) -> float:
    finite = x.double().abs().nan_to_num(0.0, 0.0)
    return float(finite.max()) if x.numel() else 0.0


def _planted(name: str, modules: Any) -> Iterator[tuple[str, Variant, Any]]:
    """The mistakes that can be made in a case, by id: lines of these modules,
    or another record of a released model."""
    case, wrong = cases()[name], _table()["wrong"]
    for id, mistake in catalogue().items():
        for variant in every_variant(mistake):
            own = {lines.module for lines in variant} <= {*modules}
            if own and id not in case["never"]:
                yield id, variant, {}
    if case["run"] == "released":
        r = _record(name, case["layer_number"])
        for when in filter(partial(value_of, fields=vars(r)), wrong):
            for id, records in wrong[when].items():
                yield from ((id, (), record) for record in records)


def _wrong(
    name: str,
    right: Tensor,
    known: dict[str, Tensor],
    p: Plain,
    called: set[str],
) -> tuple[dict[str, Tensor], dict[str, list[str]]]:
    """Outputs of mistakes, as stored, each apart from the right one and from
    the others, and the ids of all that give it; of those that do not raise."""
    bound = APART * largest(right)
    step = 2.0 ** round(log2(bound or 1) - 3)  # half as much to download
    outputs: dict[str, Tensor] = {}
    ids: dict[str, list[str]] = {}
    for id, variant, record in _planted(name, _modules(p)):
        places = {place for x in variant for place in place_of(x)[-1:]}
        if variant and not called & places:
            continue
        before = torch.get_rng_state()
        try:
            out, _ = ran(name, Plain(variant), known, record=record)
            if out.is_floating_point():
                out = (out / step).round() * step
            out = _stored(out)
        except Exception:
            continue
        drawn = not before.equal(torch.get_rng_state())  # another at each run
        if drawn or out.shape != right.shape or apart(out, right) <= bound:
            continue
        near = (x for x, y in outputs.items() if apart(out, y) <= bound)
        if (same := next(near, None)) is None:
            earlier = sum(x.split("/")[0] == id for x in outputs)
            same = f"{id}/{earlier + 1}" if earlier else id
            outputs[same], ids[same] = out, []
        if id not in ids[same]:
            ids[same].append(id)
    return outputs, ids


def source(name: str) -> str:
    """The sha256 of all that a case is computed from."""
    p = Plain()
    ran(name, p, {})
    modules = _modules(p)
    own = (PACKAGE / f"check/{stem}.py" for stem in ("vectors", "forms"))
    texts = [path.read_text(encoding="utf-8") for path in own]
    texts += [p.text(module) for module in modules]
    texts += [repr(each) for each in _planted(name, modules)]
    texts += [json.dumps(cases()[name]), version()]
    return sha256("\0".join(texts).encode()).hexdigest()


@one_thread()
def computed(name: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of a case, and what its file says of them."""
    known, p, runs = dict[str, Tensor](), Plain(), {}
    ran(name, p, known)
    modules, tensors = _modules(p), dict(known)
    for kind, dtype in {"": torch.float64, **DTYPES}.items():
        p = Plain()
        with Steps(modules) as steps:
            out, c = ran(name, p, known, dtype)
        values = {x: value for x, _, value in steps.values}
        runs[kind] = {**values, **c.kept, "output": out}
        if not kind:
            letters = {x: text for x, text, _ in steps.values}
            called = steps.called
            letters |= {x: _letters(text) for x, text in c.letters.items()}
            case = c.case
            given = {x: case[x] for x in case if x in c.used and x != "run"}
            given = {x: y for x, y in given.items() if y not in ([], {}, None)}
    right = runs.pop("")
    wrong, ids = _wrong(name, _stored(right["output"]), known, p, called)
    letters["output"] = _letters(case["output"])
    tensors |= right
    tensors |= {f"mistake/{x}/output": out for x, out in wrong.items()}
    tensors = {x: _stored(value) for x, value in tensors.items()}
    texts = {id: catalogue()[id].title for each in ids.values() for id in each}
    stems = {m.id: stem for stem, own in files().items() for m in own}
    about = {
        "case": name,
        "version": version(),
        "source": source(name),
        "plain": [module.removeprefix(PLAIN) for module in modules],
        "oracle": case["oracle"],
        "given": given,
        "letters": letters,
        "tolerance": {
            kind: {x: _rounding(right[x], run[x], DTYPES[kind]) for x in right}
            for kind, run in runs.items()
        },
        "mistakes": ids,
        "titles": {
            id: {**text._asdict(), "page": f"{PAGES[stems[id]]}/#{id}"}
            for id, text in texts.items()
        },
    }
    return tensors, about


def _letters(text: str) -> str:
    return f"({', '.join(text.split())})"


def _rounding(right: Tensor, rounded: Tensor, dtype: Any) -> float:
    if not right.is_floating_point():
        return 0.0
    own = apart(
        right.where(right.isfinite(), 0), rounded.where(right.isfinite(), 0)
    )
    own = ROUNDING * own + torch.finfo(dtype).eps * largest(right)
    return float(f"{own:.2g}")


def _stored(value: Tensor) -> Tensor:
    kind = torch.float32 if value.is_floating_point() else value.dtype
    return value.to(kind).contiguous()


def write(folder: Path, names: Iterable[str]) -> dict[str, Any]:
    """A file for each case, and index.json of all of them."""
    from safetensors.torch import save

    folder.mkdir(parents=True, exist_ok=True)
    index: dict[str, Any] = {"version": version(), "cases": {}}
    for name in names:
        tensors, about = computed(name)
        # One entry: safetensors writes several in any order.
        text = json.dumps(about, ensure_ascii=False, sort_keys=True)
        data = save(tensors, {"attnref": text})
        (folder / f"{name}.safetensors").write_bytes(data)
        index["cases"][name] = {
            "file": f"{name}.safetensors",
            "sha256": sha256(data).hexdigest(),
            **{x: about[x] for x in ("source", "oracle", "plain")},
            "output": [*tensors["output"].shape],
            "mistakes": len(about["titles"]),
        }
    text = json.dumps(index, ensure_ascii=False, indent=1)
    (folder / "index.json").write_text(text + "\n", encoding="utf-8")
    return index
