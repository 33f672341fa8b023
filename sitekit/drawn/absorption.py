"""Cost and rounding of the three forms of MLA."""

from collections.abc import Iterator
from unittest.mock import Mock, patch

import torch
from markupsafe import Markup
from torch import Tensor

import attnref
from attnref.numbers.cost import Cost, mla_cost
from attnref.numbers.kv_memory import size
from sitekit.drawing import steps
from sitekit.drawing.steps import Frame, Steps
from sitekit.drawn.mla import FORMS, V3, WIDTHS, absorbed, v3
from sitekit.markdown.render import Row, Word


def _apart(form: str, new: int) -> Cost:
    """A step of `new` tokens after 4096, without the shared projections."""
    cost = mla_cost(**V3, form=form, new=new, past=4096)
    shared = sum(
        p.numel()
        for name, p in v3().named_parameters()
        if p.dim() == 2 and "kv_b" not in name
    )
    return cost._replace(projections=cost.projections - 2 * new * shared)


def numbers() -> dict[str, object]:
    """What the text says of a step and of chunks."""
    expanded, _, absorbed = (_apart(form, 1) for form in FORMS)
    attention = absorbed.scores + absorbed.values
    return {
        "intensity": attention / (2 * absorbed.cached),
        "times_flops": absorbed.flops / expanded.flops,
        "mib_expanded": 2 * expanded.cached / 2**20,
        "crossover": attnref.crossover(**WIDTHS),
    }


def step() -> Iterator[Row]:
    for form in FORMS:
        cost = _apart(form, 1)
        attention, held = cost.scores + cost.values, 2 * cost.cached
        yield [
            Word(form),
            f"{cost.projections / 1e6:,.0f}",
            f"{attention / 1e6:,.0f}",
            size(held),
            f"{cost.flops / held:,.1f}",
        ]


def _part(kind: str, x: float, y: float, word: str) -> Markup:
    ink = "on" if kind == "latent" or kind == "key" else kind
    box = steps.box(kind, x - 29, y - 19, 58, 38, 5)
    return box + steps.text(ink, x, y, word)


def sliding() -> Steps:
    """W_UK on the side of the keys, when they are stored and when they are
    read, and on that of the query; and the bytes that a step reads."""
    q, k, c, W = ("query", "q"), ("key", "k"), ("latent", "c"), "W\u1d41\u1d37"
    again, mapped = ("recomputed", "k"), ("query", "q\u2032")
    places = {
        "expanded": [q, ("off", "\u00b7"), k],
        "latent": [q, ("off", "\u00b7"), again, ("weights-of", W), c],
        "absorbed": [q, ("weights-of", W), mapped, ("off", "\u00b7"), c],
    }
    read = {form: 2 * _apart(form, 1).cached for form in FORMS}
    frames = []
    for form in FORMS:
        parts = places[form]
        at = [190 + 74 * (i - (len(parts) - 1) / 2) for i in range(len(parts))]
        at = [*at[:-1], 338.0]
        if len(parts) == 3:
            at = [42.0, 190.0, 338.0]
        marks = [steps.path("wire", [complex(42, 40), complex(338, 40)])]
        if form == "expanded":  # once, when the token is stored
            ends = [complex(190, 104), complex(338, 104), complex(338, 40)]
            marks.append(steps.path("wire ray", ends))
            marks.append(_part("off", 190, 104, "c"))
            marks.append(_part("weights-of", 264, 104, W))
        for x, (kind, word) in zip(at, parts, strict=True):
            if word == "\u00b7":
                marks.append(steps.circle("dot-of", x, 40, 13))
                marks.append(steps.text("", x, 40, word))
            else:
                marks.append(_part(kind, x, 40, word))
        kind = "key" if form == "expanded" else "latent"
        share = 352 * read[form] / max(read.values())
        marks.append(steps.box(kind, 14, 168, share, 16, 2))
        label = f"{{read}}: {size(read[form])}"
        marks.append(steps.text("start", 14, 150, label))
        up = f"{_apart(form, 1).projections / 1e6:,.0f}"
        frames.append(Frame(marks, {"bytes": size(read[form]), "up": up}))
    return Steps(380, 190, frames)


def chunks() -> Iterator[Row]:
    for new in (1, 16, 64, 128, 171, 256, 512):
        absorbed, latent = _apart("absorbed", new), _apart("latent", new)
        yield [str(new), f"{absorbed.flops / latent.flops:.2f}"]


def calls() -> Iterator[Row]:
    """The form that each call takes, and what `fused` then passes on, on one
    thread: on many, or for fewer heads, it does not call PyTorch for a step."""
    sizes = V3 | {"d_model": 16, "n_heads": 8, "q_lora_rank": None}
    given, passed = Mock(wraps=attnref.fused), Mock(side_effect=_like_values)
    layer = attnref.MultiHeadLatentAttention(**sizes, attend=given)
    for name, new, past, cached in (
        ("training", 4096, 0, False),
        ("prompt", 4096, 0, True),
        ("chunk", 512, 4096, True),
        ("draft", 64, 4096, True),
        ("step", 1, 4096, True),
    ):
        cache = attnref.KVCache(past + new) if cached else None
        if past and cache is not None:
            cache.append(torch.zeros(1, 1, past, 576))
        form = attnref.form_of(layer, new, past, cached=cached)
        to = "torch.nn.functional.scaled_dot_product_attention"
        alone = patch("torch.get_num_threads", return_value=1)
        with torch.no_grad(), patch(to, passed), alone:
            layer(torch.zeros(1, new, 16), cache=cache)
        k, v = given.call_args.args[1:3]
        call = passed.call_args.kwargs
        how = "keys" if call["value"] is k else "widened"
        assert call["value"].shape[3] == k.shape[3] > v.shape[3]
        assert call["key"] is k  # neither copied nor widened
        yield [Word(name), form, f"{k.shape[3]} / {v.shape[3]}", Word(how)]


def _like_values(query: Tensor, value: Tensor, **_: object) -> Tensor:
    return torch.zeros(*query.shape[:3], value.shape[3])


def merged() -> Iterator[Row]:
    layer = v3()
    query, output = absorbed()
    up = layer.kv_b_proj.weight.numel() // 2  # half for keys, half for values
    for name, apart, product in (
        ("query", layer.q_b_proj.weight, query),
        ("output", layer.o_proj.weight, output),
    ):
        count = apart.numel() + up
        whole = layer.n_heads * product.numel()
        yield [Word(name), f"{count / 1e6:.1f}", f"{whole / 1e6:.1f}"]


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
        rounded = [layer(x, form=form).double() for form in FORMS]
        exact = layer.double()(x.double())
    for form, out in zip(FORMS, rounded, strict=True):
        off = [(out - y).norm() / exact.norm() for y in (exact, rounded[0])]
        yield [Word(form), *(f"{share:.2%}" for share in off)]
