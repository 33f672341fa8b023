"""The plain forms in the shape of solutions, as they are or with a mistake.

A mistake is planted in a plain form, and every form that runs this one shows
it: a wrong attention shows in all layers. The first form of an exercise gives
the right answers.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from functools import lru_cache, partial
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor

from attnref.judge.catalogue import Lines, Plain, place_of


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread: with several, small inputs take longer, most of
    all on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


MAX_LEN = 4101  # tokens in a cache of a plain form: no exercise has more


class Form(NamedTuple):
    """A solution of an exercise, made of plain forms.

    `make` takes the plain forms, or with `package` a second attnref. A change
    in one of `modules` can change what the solution computes, unless it is in a
    function, class or method that is `unused`.
    """

    modules: frozenset[str]
    make: Callable[[Any], object]
    package: bool = False
    unused: frozenset[str] = frozenset()

    def runs(self, lines: Lines) -> bool:
        """Whether the solution runs these lines."""
        return lines.module in self.modules and not self.unused & {
            *place_of(lines)
        }


def _form(
    make: Callable[[Any], object], *modules: str, unused: str = ""
) -> Form:
    return Form(frozenset(modules), make, unused=frozenset(unused.split()))


def _package_form(make: Callable[[Any], object], *modules: str) -> Form:
    return Form(frozenset(modules), make, package=True)


def functional(attention: Callable[..., Any]) -> SimpleNamespace:
    """torch.nn.functional, but with this function for attention.

    `attention(q, k, v, mask)` has neither groups nor a scale.
    """

    def sdpa(q: Any, k: Any, v: Any, mask: Any = None, **options: Any) -> Any:
        if options.get("enable_gqa"):
            G = q.shape[1] // k.shape[1]
            k, v = (y.repeat_interleave(G, dim=1) for y in (k, v))
        if options.get("is_causal"):
            mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril()
        D = q.shape[-1]
        q = q * (options.get("scale", D**-0.5) * D**0.5)
        if mask is not None and mask.all():
            mask = None
        return attention(q, k, v, mask)

    functions = vars(F) | {"scaled_dot_product_attention": sdpa}
    return SimpleNamespace(**functions)


def by_plain_attention(p: Plain) -> SimpleNamespace:
    """torch.nn.functional, but with attention of plain/attention.py."""
    return functional(lambda *inputs: p.attention.attention(*inputs))


def by_torch(p: Plain) -> Any:
    return F


# In which functions a layer finds its attention: `F` of its module.
Functions = Callable[[Plain], Any]


def _call(
    layer: torch.nn.Module,
    weights: dict[str, Tensor],
    *inputs: Any,
    **options: Any,
) -> Any:
    for name, weight in weights.items():
        if name in layer._modules:
            getattr(layer, name)._parameters["weight"] = weight
    return layer(*inputs, **options)


def _projections(w_q: Tensor, w_k: Tensor, w_v: Tensor, w_o: Tensor) -> Any:
    return {"q_proj": w_q, "k_proj": w_k, "v_proj": w_v, "o_proj": w_o}


def _layer(kind: Any, *sizes: Any, **options: Any) -> Any:
    """A layer that shares its modules, but no attributes that a call sets."""
    return copy(_shared_layer(kind, *sizes, **options))


@lru_cache(maxsize=256)
def _shared_layer(kind: Any, *sizes: Any, **options: Any) -> Any:
    # The weights come with the call.
    draw = patch.object(torch.nn.Linear, "reset_parameters", lambda _: None)
    with torch.device("meta"), draw:
        return kind(*sizes, **options).eval()


class Valid:
    """Any mask in the place of `valid`, of which a layer makes its mask."""

    def __init__(self, mask: Tensor) -> None:
        self.mask, self.shape = mask, mask.shape

    def __getitem__(self, _: object) -> Tensor:
        return self.mask


def _maskless_text(p: Plain, stem: str) -> str:
    """The text of a plain form without its causal mask.

    Nothing of a triangle is cut off, and plain.mha hides what its name `hidden`
    stands for.
    """
    text = re.sub(r"\.tri[lu]\([^()]*\)", "", p.text(f"plain.{stem}"))
    ones = "torch.ones_like(scores[:1, :1], dtype=torch.bool)"
    return text.replace(ones, "hidden")


def _modules(p: Plain, stem: str, **names: Any) -> tuple[Any, Any]:
    """A plain form without its causal mask, and as it is."""
    text = _maskless_text(p, stem)
    return p.module(stem, text=text, **names), p.module(stem, **names)


def _square_mask(mask: Tensor | None, T: int) -> tuple[Tensor, bool]:
    """A mask, and whether it is the causal one, which a layer has itself."""
    ones = torch.ones(T, T, dtype=torch.bool)
    mask = ones if mask is None else mask
    return mask, mask.dim() == 2 and mask.equal(ones.tril())


def _identity(x: Tensor, *_: Any) -> Tensor:
    """In the place of RoPE and of projections."""
    return x


def _softmax(p: Plain) -> object:
    """Softmax by attention: keys have one element, values are unit vectors."""

    def softmax(x: Tensor, dim: int = -1) -> Tensor:
        rows = x.movedim(dim, -1)
        keys = rows.reshape(-1, 1, rows.shape[-1], 1)
        mask = (keys != -torch.inf).transpose(2, 3)
        keys = keys.where(keys != -torch.inf, 0)
        values = torch.eye(rows.shape[-1], dtype=x.dtype)
        query = torch.ones_like(keys[:, :, :1])
        out: Tensor = p.attention.attention(query, keys, values, mask)
        return out.reshape(rows.shape).movedim(-1, dim)

    return softmax


def _masks(p: Plain) -> object:
    """Documents by causal_mask, as many write it."""

    def document_mask(ids: Tensor) -> Tensor:
        same = ids[:, None, :, None] == ids[:, None, None]
        mask: Tensor = same & p.masks.causal_mask(ids.shape[1])
        return mask

    return SimpleNamespace(
        causal_mask=p.masks.causal_mask,
        padding_mask=p.masks.padding_mask,
        window_mask=p.masks.window_mask,
        document_mask=document_mask,
    )


def _self_attention(p: Plain, functions: Functions) -> object:
    """mha, mqa or gqa: plain.gqa without its rotation and with any mask."""
    modules = _modules(p, "gqa", rope=_identity, F=functions(p))

    def attention(*inputs: Any, mask: Tensor | None = None) -> Any:
        x, w_q, w_k, w_v, w_o, H, *K = inputs
        E = x.shape[2]
        mask, causal = _square_mask(mask, x.shape[1])
        valid = None if causal else Valid(mask)
        layer = _layer(modules[causal].GQA, E, H, *K or [len(w_k) * H // E])
        return _call(layer, _projections(w_q, w_k, w_v, w_o), x, valid=valid)

    return attention


def _mqa(p: Plain, functions: Functions) -> object:
    """plain.mqa with any mask: its rows are all heads of a token."""
    modules = _modules(p, "mqa")
    sdpa = functions(p).scaled_dot_product_attention

    def mqa(*inputs: Any, mask: Tensor | None = None) -> Any:
        x, w_q, w_k, w_v, w_o, H = inputs
        B, T, E = x.shape
        mask, causal = _square_mask(mask, T)
        rows = mask.expand(B, H, T, T).transpose(1, 2).reshape(B, 1, -1, T)

        def masked_sdpa(q: Any, k: Any, v: Any, mask: Any) -> Any:
            return sdpa(q, k, v, mask & rows)

        module = modules[causal]
        module.F = SimpleNamespace(scaled_dot_product_attention=masked_sdpa)
        layer = _layer(module.MQA, E, H)
        return _call(layer, _projections(w_q, w_k, w_v, w_o), x)

    return mqa


def _mha(p: Plain) -> object:
    """plain.mha with any mask; with its own one, if that is asked for."""
    modules = _modules(p, "mha")

    def mha(*inputs: Any, mask: Tensor | None = None) -> Any:
        x, w_q, w_k, w_v, w_o, n_heads = inputs
        mask, causal = _square_mask(mask, x.shape[1])
        mask = mask[(None,) * (4 - mask.dim())]
        has_key = mask.any(-1, keepdim=True)
        module = modules[causal]
        module.hidden = has_key & ~mask
        layer = _layer(module.MHA, x.shape[2], n_heads)

        # plain.mha is causal: none of its rows is empty, which would be NaN.
        def zero(_: object, inputs: tuple[Tensor]) -> Tensor:
            heads: Tensor = inputs[0].unflatten(2, (n_heads, -1))
            heads = heads.nan_to_num(0.0)
            if not has_key.all():
                heads = heads * has_key.transpose(1, 2)
            return heads.flatten(2)

        with layer.o_proj.register_forward_pre_hook(zero):
            return _call(layer, _projections(w_q, w_k, w_v, w_o), x)

    return mha


def _mha_again(p: Plain) -> object:
    """plain.mha over all inputs so far, which are the cache."""

    def mha_cached(
        *inputs: Any, cache: Tensor | None = None
    ) -> tuple[Any, Tensor]:
        x, w_q, w_k, w_v, w_o, n_heads = inputs
        tokens = x if cache is None else torch.cat((cache, x), dim=1)
        layer = _layer(p.mha.MHA, x.shape[2], n_heads)
        out = _call(layer, _projections(w_q, w_k, w_v, w_o), tokens)
        return out[:, -x.shape[1] :], tokens

    return mha_cached


def _llama(p: Plain, functions: Functions, **names: Any) -> object:
    """plain.gqa with its cache: llama, or without its rotation mha_cached."""
    module = p.module("gqa", F=functions(p), **names)

    def attention(
        *inputs: Any, theta: float = 10000.0, cache: Any = None
    ) -> tuple[Any, Any]:
        x, w_q, w_k, w_v, w_o, H, *K = inputs
        layer = _layer(module.GQA, x.shape[2], H, *K or [H], theta=theta)
        cache = module.KVCache(MAX_LEN) if cache is None else cache
        weights = _projections(w_q, w_k, w_v, w_o)
        return _call(layer, weights, x, cache), cache

    return attention


def _cross(p: Plain, functions: Functions) -> object:
    module = p.module("cross", F=functions(p))

    def cross(*inputs: Any, mask: Tensor | None = None) -> Any:
        x, context, w_q, w_k, w_v, w_o, n_heads = inputs
        sizes = x.shape[2], n_heads, context.shape[2]
        layer = _layer(module.CrossAttention, *sizes)
        valid = None if mask is None else Valid(mask)
        weights = _projections(w_q, w_k, w_v, w_o)
        return _call(layer, weights, x, context, valid)

    return cross


def _mla(p: Plain, functions: Functions, *, absorbed: bool) -> object:
    module = p.module("mla", F=functions(p))

    def mla(
        *inputs: Any, theta: float = 10000.0, cache: Any = None
    ) -> tuple[Any, Any]:
        x, w_q, w_kv_a, w_norm, w_kv_b, w_o, H = inputs
        R = len(w_norm)
        Dr, Dv = len(w_kv_a) - R, w_o.shape[1] // H
        Dn = len(w_q) // H - Dr
        layer = _layer(module.MLA, x.shape[2], H, R, Dn, Dr, Dv, theta=theta)
        weights = {"q_proj": w_q, "kv_a_proj_with_mqa": w_kv_a, "o_proj": w_o}
        weights |= {"kv_a_layernorm": w_norm, "kv_b_proj": w_kv_b}
        cache = module.KVCache(MAX_LEN) if cache is None else cache
        return _call(layer, weights, x, cache, absorbed=absorbed), cache

    return mla


def _gated_delta(p: Plain) -> object:
    """plain.gated_delta in at least float32, as its state is."""

    def gated_delta(
        *inputs: Any, valid: Tensor | None = None, cache: Any = None
    ) -> tuple[Any, Any]:
        *tensors, K = inputs
        dtype = torch.promote_types(tensors[0].dtype, torch.float32)
        x, qkv, z, b, a, conv, A_log, dt_bias, norm, o = (
            tensor.to(dtype) for tensor in tensors
        )
        H, Dv = len(A_log), len(norm)
        sizes = K, H, (len(qkv) - H * Dv) // (2 * K), Dv, conv.shape[1]
        layer = _layer(p.gated_delta.GatedDeltaNet, x.shape[2], *sizes)
        layer._parameters.update(A_log=A_log, dt_bias=dt_bias)
        weights = {"in_proj_qkv": qkv, "in_proj_z": z, "in_proj_b": b}
        weights |= {"in_proj_a": a, "conv1d": conv[:, None], "norm": norm}
        weights["out_proj"] = o
        cache = p.gated_delta.State() if cache is None else cache
        if valid is not None:  # the exercise has it of the new tokens alone
            valid = F.pad(valid, (cache.length, 0), value=True)
        out = _call(layer, weights, x, cache, valid)
        return out.to(inputs[0].dtype), cache

    return gated_delta


def _dsa(p: Plain, functions: Functions) -> object:
    """The choice of plain.dsa, without its projections and rotation."""
    sdpa = functions(p).scaled_dot_product_attention

    def dsa(*inputs: Any, mask: Tensor | None = None) -> Any:
        q, k, v, q_index, k_index, weights, topk = inputs
        B, Hi, T, _ = q_index.shape
        ones = torch.ones(B, 1, T, k.shape[2], dtype=torch.bool)
        mask = (ones if mask is None else ones & mask)[:, 0]
        parts: Any = {"wq_b": _identity, "weights_proj": _identity}
        parts |= {"turn": _identity, "Hi": Hi, "topk": topk}
        rows = q_index.transpose(1, 2).flatten(2)
        indexer = SimpleNamespace(**parts)
        indexer.scores = partial(p.dsa.Indexer.scores, indexer)
        choose = p.dsa.Indexer.forward
        chosen = choose(indexer, weights, rows, None, k_index, mask)
        mask = mask & torch.zeros_like(mask).scatter(2, chosen, True)
        out = sdpa(q, k, v, mask[:, None])
        if hasattr(indexer, "soft"):  # a choice with a gradient is planted
            soft = indexer.soft.take_along_dim(chosen, dim=2).sum(dim=-1)
            soft = soft.nan_to_num()[:, None, :, None].to(out.dtype)
            out = out * (1 + soft - soft.detach())
        return out

    return dsa


def _flash(flash: Callable[..., Any]) -> object:
    def attention(
        *inputs: Any, mask: Any = None, tile: tuple[int, int] = (2, 4)
    ) -> Any:
        return flash(*inputs, mask, tile=tile)

    return attention


def _split_sinks(p: Any) -> object:
    """Attention with sinks by parts of the keys, which are then merged."""

    def attention_with_sinks(*inputs: Any, mask: Tensor | None = None) -> Any:
        q, k, v, sinks = inputs
        return p.split_kv(q, k, v, mask, sinks=sinks, splits=2)

    return {**vars(Plain().sinks), "attention_with_sinks": attention_with_sinks}


def _order(p: Plain) -> object:
    def todays_heads(*inputs: Any) -> Any:
        *tensors, positions, softcap, sinks, mask = inputs

        def rotate(x: Tensor) -> Any:
            return p.rope.rope(x, positions)

        return p.order.todays_heads(*tensors, rotate, softcap, sinks, mask)

    return todays_heads


def _pool(p: Any) -> object:
    def mha_to_gqa(*inputs: Any) -> tuple[Tensor, Tensor]:
        w_k, w_v, n_heads, n_kv_heads = inputs
        sizes = {"d_model": w_k.shape[1], "n_heads": n_heads}
        sizes["head_dim"] = len(w_k) // n_heads
        mha = _layer(p.MultiHeadAttention, **sizes)
        for name, weight in _projections(w_k, w_k, w_v, w_k.mT).items():
            getattr(mha, name).weight = torch.nn.Parameter(weight, False)
        gqa = p.mha_to_gqa(mha, n_kv_heads)
        return gqa.k_proj.weight.detach(), gqa.v_proj.weight.detach()

    return mha_to_gqa


class AllGather(torch.autograd.Function):
    """x of all ranks, stacked; the gradients of all go back to each."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        result: Tensor = group.gather(x)
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.group.swap(grad).sum(0), None


gather: Callable[..., Tensor] = AllGather.apply


class Whole(torch.autograd.Function):
    """The parts of a weight, for a layer that each rank computes as a whole:
    its gradient is whole, too. Of several copies of a part, the first."""

    @staticmethod
    def forward(ctx: Any, w: Tensor, group: Any, copies: int = 1) -> Tensor:
        ctx.part = group.rank // copies
        result: Tensor = group.gather(w)[::copies]
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return grad[ctx.part], None, None


whole: Callable[..., Tensor] = Whole.apply


class Copied(torch.autograd.Function):
    """A weight of which each rank of a group has a copy."""

    @staticmethod
    def forward(ctx: Any, w: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return w.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.group.total(grad), None


copied: Callable[..., Tensor] = Copied.apply


def _with_sinks(
    p: Plain, q: Tensor, k: Tensor, v: Tensor, sinks: Any, mask: Tensor
) -> Any:
    if sinks is None:
        sinks = q.new_full((q.shape[1],), -torch.inf)
    return p.sinks.attention_with_sinks(q, k, v, sinks, mask)


def _without_sinks(
    p: Plain, q: Tensor, k: Tensor, v: Tensor, _: None, mask: Tensor
) -> Any:
    return p.attention.attention(q, k, v, mask)


def _all_keys(p: Plain, attention: Callable[..., Any]) -> object:
    """Attention as on one device, to the keys of all ranks."""

    def attend(
        *inputs: Any, first: Tensor | None = None, sinks: Tensor | None = None
    ) -> Any:
        q, k, v, i, group = inputs
        k, v, j = (
            torch.cat([*gather(x, group)], dim=-2) for x in (k, v, i[..., None])
        )
        i, j = i[:, :, None], j.mT
        mask = (j >= 0) & (j <= i)
        if first is not None:
            mask &= j >= first[:, :, None]
        G = q.shape[1] // k.shape[1]
        inputs = q, *(x.repeat_interleave(G, dim=1) for x in (k, v))
        return attention(p, *inputs, sinks, mask[:, None])

    return attend


_all_heads = partial(_all_keys, attention=_without_sinks)


def _ring_attention(p: Plain) -> object:
    ring = p.ring_attention

    def attend(
        *inputs: Any, first: Tensor | None = None, sinks: Tensor | None = None
    ) -> Any:
        def rule(i: Tensor, j: Tensor) -> Any:
            keep = ring.causal(i, j)
            return keep if first is None else keep & (j >= first[:, :, None])

        return ring.ring_attention(*inputs, rule, sinks)

    return attend


def _split_heads(
    ulysses: Callable[[Plain], Any], layer: Callable[[Plain], Any]
) -> Callable[[Plain], object]:
    return lambda p: {"ulysses": ulysses(p), "tensor_parallel": layer(p)}


def _whole_layer(p: Plain) -> object:
    """The whole layer, computed on each rank."""

    def tensor_parallel(*inputs: Any) -> Tensor:
        x, *weights, H, K, group = inputs
        copies = 1, max(1, group.size // K), max(1, group.size // K), 1
        parts = (
            whole(w, group, n) for w, n in zip(weights, copies, strict=True)
        )
        q, k, v, o = (torch.cat([*w], dim=n // 3) for n, w in enumerate(parts))
        heads = zip((q, k, v), (H, K, K), strict=True)
        q, k, v = (
            F.linear(x, w).unflatten(2, (n, -1)).transpose(1, 2)
            for w, n in heads
        )
        k, v = (y.repeat_interleave(H // K, dim=1) for y in (k, v))
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        out = p.attention.attention(q, k, v, mask).transpose(1, 2).flatten(2)
        return F.linear(out, o)

    return tensor_parallel


def _tensor_parallel(p: Plain) -> object:
    def tensor_parallel(*inputs: Any) -> Any:
        x, q, k, v, o, H, K, group = inputs
        copies = p.tensor_parallel.copies(K, group)
        k, v = (copied(w, copies) for w in (k, v))
        D = len(q) * group.size // H
        return p.tensor_parallel.gqa(x, q, k, v, o, D, group)

    return tensor_parallel


def _two_forms(
    make: Callable[..., object], module: str, unused: str = "", **options: Any
) -> list[Form]:
    """A form with attention of PyTorch, as its text has it, and one with
    plain.attention."""
    make = partial(make, **options)
    by_plain = partial(make, functions=by_plain_attention)
    return [
        _form(partial(make, functions=by_torch), module, unused=unused),
        _form(by_plain, module, "plain.attention", unused=unused),
    ]


FORMS: dict[str, list[Form]] = {
    "softmax": [
        _form(
            lambda p: p.softmax.softmax,
            "plain.softmax",
            unused="online_softmax",
        ),
        _form(_softmax, "plain.attention"),
    ],
    "online_softmax": [
        _form(
            lambda p: p.softmax.online_softmax,
            "plain.softmax",
            unused="softmax",
        )
    ],
    "masks": [
        _form(lambda p: p.masks, "plain.masks"),
        _form(_masks, "plain.masks"),
    ],
    "sdpa": [
        _form(lambda p: p.attention.attention, "plain.attention"),
        _package_form(lambda p: p.sdpa, "core.sdpa", "core.softmax"),
        _package_form(lambda p: p.fused, "core.fused", "core.inputs"),
    ],
    "mha": [
        *_two_forms(_self_attention, "plain.gqa", "rope KVCache"),
        _form(_mha, "plain.mha"),
    ],
    "mha_cached": [
        *_two_forms(_llama, "plain.gqa", "rope", rope=_identity),
        _form(lambda p: p.mha_cached.mha_cached, "plain.mha_cached"),
        _form(_mha_again, "plain.mha"),
    ],
    "mqa": [
        *_two_forms(_mqa, "plain.mqa"),
        *_two_forms(_self_attention, "plain.gqa", "rope KVCache"),
    ],
    "gqa": _two_forms(_self_attention, "plain.gqa", "rope KVCache"),
    "llama": _two_forms(_llama, "plain.gqa"),
    "cross": _two_forms(_cross, "plain.cross"),
    "rope": [_form(lambda p: p.rope.rope, "plain.rope")],
    "kv_cache": [
        _form(lambda p: p.kv_cache.KVCache, "plain.kv_cache"),
        _package_form(lambda p: p.KVCache, "caches.kv_cache"),
    ],
    "mla_latent": [
        *_two_forms(_mla, "plain.mla", "absorbed", absorbed=False),
        *_two_forms(_mla, "plain.mla", "per_head", absorbed=True),
    ],
    "mla_absorbed": _two_forms(_mla, "plain.mla", "per_head", absorbed=True),
    "dsa": _two_forms(_dsa, "plain.dsa", "rope KVCache DSA key turn __init__"),
    "mha_to_gqa": [_package_form(_pool, "layers.convert")],
    "flash": [
        _form(lambda p: _flash(p.flash.flash), "plain.flash"),
        _package_form(lambda p: _flash(p.flash_lse), "core.flash"),
    ],
    "merge": [
        _form(lambda p: p.merge.merge, "plain.merge"),
        _package_form(lambda p: p.merge, "core.merge"),
    ],
    "sinks": [
        _form(lambda p: p.sinks, "plain.sinks"),
        _package_form(_split_sinks, "core.merge"),
    ],
    "alibi": [_form(lambda p: p.alibi, "plain.alibi")],
    "order": [
        _form(
            _order,
            *("plain.order", "plain.rope"),
            unused="norm_of_all_heads query_and_gate",
        )
    ],
    "scaling": [_form(lambda p: p.scaling, "plain.scaling")],
    "ring": [_form(lambda p: p.ring, "plain.ring")],
    "paged": [_form(lambda p: p.paged.Pool, "plain.paged")],
    "gated_delta": [_form(_gated_delta, "plain.gated_delta")],
    "ring_attention": [
        _form(partial(_all_keys, attention=_with_sinks), "plain.sinks"),
        _form(_ring_attention, "plain.ring_attention"),
    ],
    "split_heads": [
        _form(_split_heads(_all_heads, _whole_layer), "plain.attention"),
        _form(
            _split_heads(lambda p: p.ulysses.ulysses, _tensor_parallel),
            *("plain.ulysses", "plain.tensor_parallel"),
            unused="mla columns rows",
        ),
    ],
}
