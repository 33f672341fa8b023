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

from attnref.check.catalogue import Lines, Plain, place_of


@contextmanager
def one_thread() -> Iterator[None]:
    """Small inputs: several threads take longer, most of all if others use
    the processors too."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


ROOM = 4101  # tokens in a cache of a plain form: more than are asked


class Form(NamedTuple):
    """`make` gives a solution from the plain forms (of `package`: from a second
    attnref). A change of one of `modules` can show in it, unless it is in a
    function, class or method that is `unused`."""

    modules: frozenset[str]
    make: Callable[[Any], object]
    package: bool = False
    unused: frozenset[str] = frozenset()

    def runs(self, lines: Lines) -> bool:
        """Whether these lines run in it."""
        return lines.module in self.modules and not self.unused & {
            *place_of(lines)
        }


def _form(
    make: Callable[[Any], object], *modules: str, unused: str = ""
) -> Form:
    return Form(frozenset(modules), make, unused=frozenset(unused.split()))


def _of_package(make: Callable[[Any], object], *modules: str) -> Form:
    return Form(frozenset(modules), make, package=True)


def _own(p: Plain) -> Plain:
    """The same texts in modules of its own, whose names may be replaced."""
    other = Plain()
    other.texts = p.texts
    return other


def attend(p: Plain, through: str, inner: Any = None) -> SimpleNamespace:
    """In place of torch.nn.functional: its core, or plain.attention, or what
    takes `inner` for it."""

    def core(q: Any, k: Any, v: Any, mask: Any = None, **others: Any) -> Any:
        if through != "attention":
            return F.scaled_dot_product_attention(q, k, v, mask, **others)
        if others.get("enable_gqa"):
            G = q.shape[1] // k.shape[1]
            k, v = (y.repeat_interleave(G, dim=1) for y in (k, v))
        if others.get("is_causal"):
            mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril()
        width = q.shape[-1]
        q = q * (others.get("scale", width**-0.5) * width**0.5)
        if mask is not None and mask.all():  # as if there were none
            mask = None
        return (inner or p.attention.attention)(q, k, v, mask)

    changed = vars(F) | {"scaled_dot_product_attention": core}
    return SimpleNamespace(**changed)


def _called(
    layer: torch.nn.Module, weights: dict[str, Tensor], *given: Any, **form: Any
) -> Any:
    for name, w in weights.items():
        if name in layer._modules:
            getattr(layer, name)._parameters["weight"] = w
    return layer(*given, **form)


def _proj(w_q: Tensor, w_k: Tensor, w_v: Tensor, w_o: Tensor) -> Any:
    return {"q_proj": w_q, "k_proj": w_k, "v_proj": w_v, "o_proj": w_o}


def _made(kind: Any, *sizes: Any, **others: Any) -> Any:
    """A layer of its own attributes, as a call may leave some."""
    return copy(_first_made(kind, *sizes, **others))


@lru_cache(maxsize=256)
def _first_made(kind: Any, *sizes: Any, **others: Any) -> Any:
    # The weights come with the call.
    drawn = patch.object(torch.nn.Linear, "reset_parameters", lambda _: None)
    with torch.device("meta"), drawn:
        return kind(*sizes, **others).eval()


class Valid:
    """What a layer takes for `valid`, and makes any mask of."""

    def __init__(self, mask: Tensor) -> None:
        self.mask, self.shape = mask, mask.shape

    def __getitem__(self, _: object) -> Tensor:
        return self.mask


def _unmasked(p: Plain, stem: str) -> Any:
    """A plain form without its causal mask: its triangles are whole, or what
    is `hidden` there."""
    text = re.sub(r"\.tri[lu]\([^()]*\)", "", p.text(f"plain.{stem}"))
    ones = "torch.ones_like(scores[:1, :1], dtype=torch.bool)"
    other = _own(p)
    other.texts = p.texts | {f"plain.{stem}": text.replace(ones, "hidden")}
    return getattr(other, stem)


def _whole(mask: Tensor | None, T: int) -> tuple[Tensor, bool]:
    """A mask, and whether it is the causal one, which a layer has itself."""
    every = torch.ones(T, T, dtype=torch.bool)
    mask = every if mask is None else mask
    return mask, mask.dim() == 2 and mask.equal(every.tril())


def _softmax(p: Plain) -> object:
    """By attention: keys of one element, and as values the unit vectors."""

    def softmax(x: Tensor, dim: int = -1) -> Tensor:
        rows = x.movedim(dim, -1)
        keys = rows.reshape(-1, 1, rows.shape[-1], 1)
        seen = (keys != -torch.inf).transpose(2, 3)
        keys = keys.where(keys != -torch.inf, 0)
        values = torch.eye(rows.shape[-1], dtype=x.dtype)
        one = torch.ones_like(keys[:, :, :1])
        out: Tensor = p.attention.attention(one, keys, values, seen)
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


def _self(p: Plain, through: str) -> object:
    """mha, mqa or gqa: plain.gqa without its rotation and with any mask."""
    forms = _unmasked(p, "gqa"), _own(p).gqa
    for form in forms:
        form.rope, form.F = lambda x, *_: x, attend(p, through)

    def attention(*given: Any, mask: Tensor | None = None) -> Any:
        x, w_q, w_k, w_v, w_o, H, *K = given
        E = x.shape[2]
        whole, causal = _whole(mask, x.shape[1])
        valid = None if causal else Valid(whole)
        layer = _made(forms[causal].GQA, E, H, *K or [len(w_k) * H // E])
        return _called(layer, _proj(w_q, w_k, w_v, w_o), x, valid=valid)

    return attention


def _mqa(p: Plain, through: str) -> object:
    """plain.mqa with any mask: its rows are all heads of a token."""
    forms = _unmasked(p, "mqa"), _own(p).mqa
    core = attend(p, through)

    def mqa(*given: Any, mask: Tensor | None = None) -> Any:
        (x, w_q, w_k, w_v, w_o, H) = given
        B, T, E = x.shape
        whole, causal = _whole(mask, T)
        rows = whole.expand(B, H, T, T).transpose(1, 2).reshape(B, 1, -1, T)

        def attend(q: Any, k: Any, v: Any, mask: Any) -> Any:
            return core.scaled_dot_product_attention(q, k, v, mask & rows)

        form = forms[causal]
        form.F = SimpleNamespace(scaled_dot_product_attention=attend)
        layer = _made(form.MQA, E, H)
        return _called(layer, _proj(w_q, w_k, w_v, w_o), x)

    return mqa


def _mha(p: Plain) -> object:
    """plain.mha; with its own mask where it is asked for this one."""
    forms = _unmasked(p, "mha"), _own(p).mha

    def mha(*given: Any, mask: Tensor | None = None) -> Any:
        x, w_q, w_k, w_v, w_o, n_heads = given
        whole, causal = _whole(mask, x.shape[1])
        whole = whole[(None,) * (4 - whole.dim())]
        seen = whole.any(-1, keepdim=True)
        form = forms[causal]
        form.hidden = seen & ~whole
        layer = _made(form.MHA, x.shape[2], n_heads)

        # It is causal: no row of its own is empty, and would be NaN.
        def zero(_: object, given: tuple[Tensor]) -> Tensor:
            heads: Tensor = given[0].unflatten(2, (n_heads, -1))
            heads = heads.nan_to_num(0.0)
            if not seen.all():
                heads = heads * seen.transpose(1, 2)
            return heads.flatten(2)

        with layer.o_proj.register_forward_pre_hook(zero):
            return _called(layer, _proj(w_q, w_k, w_v, w_o), x)

    return mha


def _mha_again(p: Plain) -> object:
    """plain.mha over all inputs so far, which are the cache."""

    def mha_cached(
        *given: Any, cache: Tensor | None = None
    ) -> tuple[Any, Tensor]:
        x, w_q, w_k, w_v, w_o, n_heads = given
        every = x if cache is None else torch.cat((cache, x), dim=1)
        layer = _made(p.mha.MHA, x.shape[2], n_heads)
        out = _called(layer, _proj(w_q, w_k, w_v, w_o), every)
        return out[:, -x.shape[1] :], every

    return mha_cached


def _cached(p: Plain, through: str) -> object:
    """llama, or without its rotation mha_cached."""
    p = _own(p)

    def attention(
        *given: Any, theta: float = 10000.0, cache: Any = None
    ) -> tuple[Any, Any]:
        x, w_q, w_k, w_v, w_o, H, *K = given
        if not K:
            p.gqa.rope = lambda x, *_: x
        p.gqa.F = attend(p, through)
        layer = _made(p.gqa.GQA, x.shape[2], H, *K or [H], theta=theta)
        cache = p.gqa.KVCache(ROOM) if cache is None else cache
        return _called(layer, _proj(w_q, w_k, w_v, w_o), x, cache), cache

    return attention


def _cross(p: Plain, through: str) -> object:
    p = _own(p)

    def cross(*given: Any, mask: Tensor | None = None) -> Any:
        x, context, w_q, w_k, w_v, w_o, n_heads = given
        p.cross.F = attend(p, through)
        sizes = x.shape[2], n_heads, context.shape[2]
        layer = _made(p.cross.CrossAttention, *sizes)
        valid = None if mask is None else Valid(mask)
        return _called(layer, _proj(w_q, w_k, w_v, w_o), x, context, valid)

    return cross


def _mla(p: Plain, through: str, *, absorbed: bool) -> object:
    p = _own(p)

    def mla(
        *given: Any, theta: float = 10000.0, cache: Any = None
    ) -> tuple[Any, Any]:
        x, w_q, w_kv_a, w_norm, w_kv_b, w_o, H = given
        R = len(w_norm)
        Dr, Dv = len(w_kv_a) - R, w_o.shape[1] // H
        Dn = len(w_q) // H - Dr
        p.mla.F = attend(p, through)
        layer = _made(p.mla.MLA, x.shape[2], H, R, Dn, Dr, Dv, theta=theta)
        weights = {"q_proj": w_q, "kv_a_proj_with_mqa": w_kv_a, "o_proj": w_o}
        weights |= {"kv_a_layernorm": w_norm, "kv_b_proj": w_kv_b}
        cache = p.mla.KVCache(ROOM) if cache is None else cache
        return _called(layer, weights, x, cache, absorbed=absorbed), cache

    return mla


def _gated_delta(p: Plain) -> object:
    """In at least float32, as its state is."""

    def gated_delta(
        *given: Any, valid: Tensor | None = None, cache: Any = None
    ) -> tuple[Any, Any]:
        *tensors, K = given
        wide = torch.promote_types(given[0].dtype, torch.float32)
        x, qkv, z, b, a, conv, A_log, dt_bias, norm, o = (
            each.to(wide) for each in tensors
        )
        H, Dv = len(A_log), len(norm)
        sizes = K, H, (len(qkv) - H * Dv) // (2 * K), Dv, conv.shape[1]
        layer = _made(p.gated_delta.GatedDeltaNet, x.shape[2], *sizes)
        layer._parameters.update(A_log=A_log, dt_bias=dt_bias)
        weights = {"in_proj_qkv": qkv, "in_proj_z": z, "in_proj_b": b}
        weights |= {"in_proj_a": a, "conv1d": conv[:, None], "norm": norm}
        weights["out_proj"] = o
        cache = p.gated_delta.State() if cache is None else cache
        out = _called(layer, weights, x, cache, valid)
        return out.to(given[0].dtype), cache

    return gated_delta


def _dsa(p: Plain, through: str) -> object:
    """The choice of plain.dsa, without its projections and rotation."""
    core = attend(p, through)

    def dsa(*given: Any, mask: Tensor | None = None) -> Any:
        q, k, v, q_index, k_index, weights, topk = given
        B, Hi, T, _ = q_index.shape
        every = torch.ones(B, 1, T, k.shape[2], dtype=torch.bool)
        seen = (every if mask is None else every & mask)[:, 0]
        same: Any = {"wq_b": _as_it_is, "weights_proj": _as_it_is}
        same |= {"turn": lambda x, at: x, "Hi": Hi, "topk": topk}
        rows = q_index.transpose(1, 2).flatten(2)
        how = SimpleNamespace(**same), weights, rows, None, k_index, seen
        chosen = p.dsa.Indexer.forward(*how)
        seen = seen & torch.zeros_like(seen).scatter(2, chosen, True)
        return core.scaled_dot_product_attention(q, k, v, seen[:, None])

    return dsa


def _as_it_is(x: Tensor) -> Tensor:
    return x


def _flash(flash: Callable[..., Any]) -> object:
    def tiled(
        *given: Any, mask: Any = None, tile: tuple[int, int] = (2, 4)
    ) -> Any:
        return flash(*given, mask, tile=tile)

    return tiled


def _split_sinks(p: Any) -> object:
    """By parts of the keys that are merged."""

    def attention_with_sinks(*given: Any, mask: Tensor | None = None) -> Any:
        q, k, v, sinks = given
        return p.split_kv(q, k, v, mask, sinks=sinks, splits=2)

    return {**vars(Plain().sinks), "attention_with_sinks": attention_with_sinks}


def _order(p: Plain) -> object:
    def todays_heads(*given: Any) -> Any:
        *first, positions, softcap, sinks, mask = given

        def turn(x: Tensor) -> Any:
            return p.rope.rope(x, positions)

        return p.order.todays_heads(*first, turn, softcap, sinks, mask)

    return todays_heads


def _pooled(p: Any) -> object:
    def mha_to_gqa(*given: Any) -> tuple[Tensor, Tensor]:
        w_k, w_v, n_heads, n_kv_heads = given
        sizes = {"d_model": w_k.shape[1], "n_heads": n_heads}
        sizes["head_dim"] = len(w_k) // n_heads
        mha = _made(p.MultiHeadAttention, **sizes)
        for name, w in _proj(w_k, w_k, w_v, w_k.mT).items():
            getattr(mha, name).weight = torch.nn.Parameter(w, False)
        gqa = p.mha_to_gqa(mha, n_kv_heads)
        return gqa.k_proj.weight.detach(), gqa.v_proj.weight.detach()

    return mha_to_gqa


def _both(
    make: Callable[..., object], module: str, unused: str = "", **how: Any
) -> list[Form]:
    """By the core of PyTorch, as it stands there, and by plain.attention."""
    through = partial(make, through="attention", **how)
    return [
        _form(partial(make, through="F", **how), module, unused=unused),
        _form(through, module, "plain.attention", unused=unused),
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
        _of_package(lambda p: p.sdpa, "core.sdpa", "core.softmax"),
        _of_package(lambda p: p.fused, "core.fused", "core.inputs"),
    ],
    "mha": [
        *_both(_self, "plain.gqa", "rope KVCache"),
        _form(_mha, "plain.mha"),
    ],
    "mha_cached": [
        *_both(_cached, "plain.gqa", "rope"),
        _form(_mha_again, "plain.mha"),
    ],
    "mqa": [
        *_both(_mqa, "plain.mqa"),
        *_both(_self, "plain.gqa", "rope KVCache"),
    ],
    "gqa": _both(_self, "plain.gqa", "rope KVCache"),
    "llama": _both(_cached, "plain.gqa"),
    "cross": _both(_cross, "plain.cross"),
    "rope": [_form(lambda p: p.rope.rope, "plain.rope")],
    "kv_cache": [
        _form(lambda p: p.kv_cache.KVCache, "plain.kv_cache"),
        _of_package(lambda p: p.KVCache, "caches.kv_cache"),
    ],
    "mla_latent": [
        *_both(_mla, "plain.mla", "absorbed", absorbed=False),
        *_both(_mla, "plain.mla", "per_head", absorbed=True),
    ],
    "mla_absorbed": _both(_mla, "plain.mla", "per_head", absorbed=True),
    "dsa": _both(_dsa, "plain.dsa", "rope KVCache DSA key turn __init__"),
    "mha_to_gqa": [_of_package(_pooled, "layers.convert")],
    "flash": [
        _form(lambda p: _flash(p.flash.flash), "plain.flash"),
        _of_package(lambda p: _flash(p.flash_lse), "core.flash"),
    ],
    "merge": [
        _form(lambda p: p.merge.merge, "plain.merge"),
        _of_package(lambda p: p.merge, "core.merge"),
    ],
    "sinks": [
        _form(lambda p: p.sinks, "plain.sinks"),
        _of_package(_split_sinks, "core.merge"),
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
}
