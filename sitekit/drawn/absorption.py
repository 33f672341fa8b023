"""Cost and rounding of the three forms of MLA."""

from collections.abc import Iterator
from functools import cache, partial
from typing import Any
from unittest.mock import Mock, patch

import torch
from torch import Tensor

import attnref
from attnref.numbers.cost import mla_cost
from attnref.numbers.kv_memory import size
from attnref.numbers.shapes import Mla
from attnref.released.specs import find_model
from sitekit.drawing.terms import Terms, terms
from sitekit.drawn.memory import stored
from sitekit.drawn.mla import FORMS, V3, WIDTHS, absorbed, v3
from sitekit.drawn.operations import H100
from sitekit.markdown.render import Row, Word

# --- the live figure ----------------------------------------------------------

MODELS = ("deepseek-v3", "kimi-k2", "deepseek-v2-lite", "glm-4.7-flash", "minicpm3-4b")
# The names of sizes on this site, and those of configurations.
LONG = {
    "H": "n_heads",
    "R": "kv_lora_rank",
    "Dn": "qk_nope_head_dim",
    "Dr": "qk_rope_head_dim",
    "Dv": "v_head_dim",
}


def sizes() -> dict[str, dict[str, int]]:
    """The sizes of the models that the live figures know."""
    groups = {id: find_model(id).groups[0] for id in MODELS}
    return {
        id: {name: getattr(group, long, group.q_heads) for name, long in LONG.items()}
        | {"layers": group.layers}
        for id, group in groups.items()
        if isinstance(group, Mla)
    }


def costs(new: int, past: int, **shape: int) -> list[list[int]]:
    """A step of each form: FLOPs of W_UK and W_UV, FLOPs of scores and values,
    bytes of the cache. The projections that all forms share are left out: they
    are what a first token costs beside a token that is only expanded."""
    widths = {LONG[name]: width for name, width in shape.items()}
    layer: Any = partial(mla_cost, d_model=1, **widths)  # type: ignore[arg-type]
    rows = []
    first, again = (layer(form=form, past=1).projections for form in ("expanded", "latent"))
    shared = first - (again - first)
    for form in FORMS:
        cost = layer(form=form, new=new, past=past)
        rows.append([cost.projections - new * shared, cost.scores + cost.values, 2 * cost.cached])
    return rows


@cache
def priced() -> list[list[Terms]]:
    """`costs` for a script: T new tokens, S with those in the cache."""

    def one(form: int, part: int, T: int, S: int, **shape: int) -> int:
        return costs(T, S - T, **shape)[form][part]

    least = {"T": 1, "S": 2, **dict.fromkeys(LONG, 1)}
    return [[terms(partial(one, i, j), **least) for j in range(3)] for i in range(3)]


def live() -> dict[str, Any]:
    """What the live figure of this page knows."""
    return {"models": sizes(), "costs": priced(), "gpu": [H100.peak, H100.bandwidth]}


def live_mla() -> dict[str, Any]:
    """What that of MLA knows: bytes, and the FLOPs of W_UK and W_UV by form."""
    return {"models": sizes(), "costs": [form[0] for form in priced()], "stored": stored()}


# --- the tables ---------------------------------------------------------------


def _step(new: int) -> dict[str, list[int]]:
    """`costs` of DeepSeek-V3 after 4096 tokens, by form."""
    shape = {name: sizes()["deepseek-v3"][name] for name in LONG}
    return dict(zip(FORMS, costs(new, 4096, **shape), strict=True))


def numbers() -> dict[str, object]:
    """What the text says of a step and of chunks."""
    rows = _step(1)
    expanded, absorbed = rows["expanded"], rows["absorbed"]
    return {
        "intensity": absorbed[1] / absorbed[2],
        "times_flops": sum(absorbed[:2]) / sum(expanded[:2]),
        "mib_expanded": expanded[2] / 2**20,
        "crossover": attnref.crossover(**WIDTHS),
        "crossover_4096": attnref.crossover(**WIDTHS, past=4096),
    }


def step() -> Iterator[Row]:
    for form, (up, attention, read) in _step(1).items():
        millions = [f"{n / 1e6:,.0f}" for n in (up, attention)]
        yield [Word(form), *millions, size(read), f"{(up + attention) / read:,.1f}"]


def chunks() -> Iterator[Row]:
    for chunk in (1, 16, 64, 128, 164, 256, 512):
        rows = _step(chunk)
        absorbed, latent = (sum(rows[form][:2]) for form in ("absorbed", "latent"))
        yield [str(chunk), f"{absorbed / latent:.2f}"]


def calls() -> Iterator[Row]:
    """The form that each call takes, and what `fused` then passes on, on one
    thread: on many, or for fewer heads, it does not call PyTorch for a step."""
    sizes = V3 | {"d_model": 16, "n_heads": 8, "q_lora_rank": None}
    core, kernel = Mock(wraps=attnref.fused), Mock(side_effect=_like_values)
    layer = attnref.MultiHeadLatentAttention(**sizes, attend=core)
    for name, new, past, has_cache in (
        ("training", 4096, 0, False),
        ("prompt", 4096, 0, True),
        ("chunk", 512, 4096, True),
        ("draft", 64, 4096, True),
        ("step", 1, 4096, True),
    ):
        cache = attnref.KVCache(past + new) if has_cache else None
        if past and cache is not None:
            cache.append(torch.zeros(1, 1, past, 576))
        form = attnref.form_of(layer, new, past, cached=has_cache)
        sdpa_name = "torch.nn.functional.scaled_dot_product_attention"
        one_thread = patch("torch.get_num_threads", return_value=1)
        with torch.no_grad(), patch(sdpa_name, kernel), one_thread:
            layer(torch.zeros(1, new, 16), cache=cache)
        k, v = core.call_args.args[1:3]
        call = kernel.call_args.kwargs
        word = "keys" if call["value"] is k else "widened"
        assert call["value"].shape[3] == k.shape[3] > v.shape[3]
        assert call["key"] is k  # neither copied nor widened
        yield [Word(name), form, f"{k.shape[3]} / {v.shape[3]}", Word(word)]


def _like_values(query: Tensor, value: Tensor, **_: object) -> Tensor:
    return torch.zeros(*query.shape[:3], value.shape[3])


def merged() -> Iterator[Row]:
    layer = v3()
    query, output = absorbed()
    up = layer.kv_b_proj.weight.numel() // 2  # half for keys, half for values
    for name, weight, product in (
        ("query", layer.q_b_proj.weight, query),
        ("output", layer.o_proj.weight, output),
    ):
        n_separate = weight.numel() + up
        n_merged = layer.n_heads * product.numel()
        yield [Word(name), f"{n_separate / 1e6:.1f}", f"{n_merged / 1e6:.1f}"]


def wrong() -> Iterator[Row]:
    E, keys, R = 5120, 128 * 128, 512
    yield [Word("latent"), f"{(E * R + R * keys) / 1e6:.1f}", f"{R:,}"]
    yield [Word("merged"), f"{E * keys / 1e6:.1f}", f"{keys:,}"]


def rounding() -> Iterator[Row]:
    """Error of each form in bfloat16: from float64, and from expanded."""
    torch.manual_seed(0)
    sizes = V3 | {"d_model": 1024, "n_heads": 8, "q_lora_rank": 256}
    layer = attnref.MultiHeadLatentAttention(**sizes)
    x = torch.randn(2, 64, 1024)
    with torch.no_grad():
        layer.q_b_proj.weight.mul_(8)  # so that softmax decides
        layer, x = layer.bfloat16(), x.bfloat16()
        outs = [layer(x, form=form).double() for form in FORMS]
        exact = layer.double()(x.double())
    for form, out in zip(FORMS, outs, strict=True):
        errors = [(out - y).norm() / exact.norm() for y in (exact, outs[0])]
        yield [Word(form), *(f"{share:.2%}" for share in errors)]
