"""The questions of `attnref conform`, one small input each.

questions.toml says in words what each asks, and in which order: the first five
settle in which conventions the others are asked.
"""

from itertools import product
from math import log
from typing import Any

import torch
from torch import Tensor

from attnref.judge.catalogue import Plain
from attnref.judge.conform import Conventions, Question

RIGHT = Plain()


def drawn(*shape: int, seed: int = 0) -> Tensor:
    """Sharp enough that every convention shows, and exact in float32."""
    generator = torch.Generator().manual_seed(seed)
    return (2 * torch.randn(*shape, generator=generator)).round(decimals=3)


def heads(
    B: int = 3, H: int = 4, K: int = 4, T: int = 3, S: int = 5, D: int = 16
) -> tuple[Tensor, Tensor, Tensor]:
    """All sizes differ where they may: an axis that is mistaken shows."""
    q, k = drawn(B, H, T, D, seed=1), drawn(B, K, S, D, seed=2)
    return q, k, drawn(B, K, S, D, seed=3)


def some(*shape: int) -> Tensor:
    """A mask whose rows have both values, and no two rows are the same."""
    generator = torch.Generator().manual_seed(4)
    mask = torch.rand(*shape, generator=generator) > 0.4
    mask[..., 0], mask[..., 1] = True, False
    return mask


def inputs(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> dict[str, Any]:
    """In float32, as most engines compute."""
    tensors = {"q": q, "k": k, "v": v, **options}
    return {
        name: x.float()
        if isinstance(x, Tensor) and x.is_floating_point()
        else x
        for name, x in tensors.items()
    }


def asked(
    c: Conventions,
    qkv: tuple[Tensor, Tensor, Tensor],
    *,
    right: str = "right",
    mask: Tensor | None = None,
    others: dict[str, Tensor] | None = None,
    faults: tuple[str, ...] = (),
    **options: Any,
) -> Question:
    """An answer by the plain forms, named `right`, and others beside it."""
    numbers = {x: y for x, y in options.items() if x in ("softcap", "sinks")}

    def form(plain: Any) -> Tensor:
        return c.attend(plain, *qkv, mask, **numbers)

    if mask is not None:
        options["mask"] = c.bools(mask)
    answers = {right: form(RIGHT), **(others or {})}
    given = inputs(*qkv, **options)
    return Question(given, answers, form, faults)


def mean(c: Conventions, qkv: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """(B, H, 1, Dv): what equal weights for all keys give."""
    q, _, v = qkv
    return c.shared(v.double(), q.shape[1]).mean(dim=2, keepdim=True)


def rows(
    c: Conventions, qkv: tuple[Tensor, Tensor, Tensor], mask: Tensor
) -> dict[str, Tensor]:
    """What an engine may give a query that sees no key."""
    right = c.attend(RIGHT, *qkv, mask)
    empty = ~mask.any(dim=-1, keepdim=True)
    fills = {
        "zero": torch.zeros_like(right),
        "mean": mean(c, qkv),
        "nan": torch.full_like(right, torch.nan),
        "as-if-open": c.attend(RIGHT, *qkv, mask | empty),
    }
    return {
        name: torch.where(empty, fill, right) for name, fill in fills.items()
    }


# ------------------------------------------------ the five that settle the rest


def default_scale(c: Conventions) -> Question:
    qkv = heads()
    one = Conventions(scale="one").attend(RIGHT, *qkv)
    result = asked(c, qkv, right="width", others={"one": one})
    q, k, v = qkv
    wrong = {"values-as-keys": c.attend(RIGHT, q, v, k)}
    for name, out in result.answers.items():
        # By token and head, and read by head and token.
        wrong[f"{name}-mixed"] = out.transpose(1, 2).reshape(out.shape)
    named = dict.fromkeys(wrong, "merge-without-transpose")
    named["values-as-keys"] = "keys-and-values-exchanged"
    return result._replace(answers={**result.answers, **wrong}, named=named)


def head_order(c: Conventions) -> Question:
    qkv = heads(H=6, K=2)
    answers = {
        order: Conventions(c.scale, order).attend(RIGHT, *qkv)
        for order in ("contiguous", "interleaved")
    }
    q, *kv = qkv
    for one, other in product(("contiguous", "interleaved"), repeat=2):
        if one != other:
            k, v = (
                Conventions(heads=order).shared(x, 6)
                for order, x in zip((one, other), kv, strict=True)
            )
            answers[f"keys-{one}"] = c.attend(RIGHT, q, k, v)
    named = {x: "groups-tiled" for x in answers if x.startswith("keys-")}
    return Question(inputs(*qkv), answers, named=named)


def mask_polarity(c: Conventions) -> Question:
    qkv, mask = heads(), some(1, 1, 3, 5)
    hidden = c.attend(RIGHT, *qkv, ~mask)
    result = asked(c, qkv, right="true-may-attend", mask=mask)
    return result._replace(answers={**result.answers, "true-is-hidden": hidden})


def alignment(c: Conventions) -> Question:
    qkv = heads()
    answers = {
        side: c.attend(RIGHT, *qkv, mask)
        for side, mask in {
            "top-left": torch.ones(3, 5, dtype=torch.bool).tril(),
            "bottom-right": torch.ones(3, 5, dtype=torch.bool).tril(2),
        }.items()
    }

    def form(plain: Any) -> Tensor:
        mask = plain.masks.causal_mask(3, 5)
        return c.attend(plain, *qkv, mask)

    return Question(inputs(*qkv, causal=True), answers, form)


def window_count(c: Conventions) -> Question:
    qkv = heads(T=6, S=6)

    def form(plain: Any, size: int = 2) -> Tensor:
        return c.attend(plain, *qkv, plain.masks.window_mask(6, 6, size))

    answers = {"W": form(RIGHT), "W-and-one": form(RIGHT, 3)}
    return Question(inputs(*qkv, causal=True, window=2), answers, form)


# -------------------------------------------------------------------- causality


def causal(c: Conventions) -> Question:
    qkv = heads(T=5)

    def form(plain: Any) -> Tensor:
        return c.attend(plain, *qkv, plain.masks.causal_mask(5))

    answers = {"itself-and-before": form(RIGHT)}
    return Question(inputs(*qkv, causal=True), answers, form)


def one_query(c: Conventions) -> Question:
    qkv = heads(T=1)
    first = torch.arange(5).expand(1, 5) == 0
    others = {"the-first": c.attend(RIGHT, *qkv, first)}
    return asked(c, qkv, right="all", others=others, causal=True)


def more_queries_than_keys(c: Conventions) -> Question:
    qkv = heads(T=5, S=3)
    ones = torch.ones(5, 3, dtype=torch.bool)
    answers = {"top-left": rows(c, qkv, ones.tril())["zero"]}
    for name, out in rows(c, qkv, ones.tril(-2)).items():
        answers[f"bottom-right-{name}"] = out
    return Question(inputs(*qkv, causal=True), answers)


def causal_with_mask(c: Conventions) -> Question:
    qkv = heads(T=5)
    valid = torch.ones(3, 1, 5, 5, dtype=torch.bool)
    valid[1, ..., 3:], valid[2, ..., 2:] = False, False
    causal = RIGHT.masks.causal_mask(5)

    def form(plain: Any) -> Tensor:
        return c.attend(plain, *qkv, plain.masks.causal_mask(5) & valid)

    answers = {
        "both": form(RIGHT),
        "mask-alone": c.attend(RIGHT, *qkv, valid),
        "causal-alone": c.attend(RIGHT, *qkv, causal),
    }
    given = inputs(*qkv, causal=True, mask=c.bools(valid))
    return Question(given, answers, form)


# ---------------------------------------------------------------------- windows


def window_alone(c: Conventions) -> Question:
    qkv = heads(T=6, S=6)
    i, j = torch.arange(6)[:, None], torch.arange(6)
    size = 2 if c.window == "W" else 3
    masks = {
        "past": (j <= i) & (j > i - size),
        "both-sides": (i - j).abs() < size,
        "ahead-open": j > i - size,
        "ignored": j == j + 0 * i,
    }
    answers = {x: c.attend(RIGHT, *qkv, mask) for x, mask in masks.items()}
    return Question(inputs(*qkv, window=2), answers)


def window_with_cache(c: Conventions) -> Question:
    qkv = heads(T=2, S=6)
    size = 2 if c.window == "W" else 3
    i, j = torch.arange(2)[:, None], torch.arange(6)
    masks = {
        "last-tokens": (j <= i + 4) & (j > i + 4 - size),
        "first-tokens": (j <= i) & (j > i - size),
    }
    answers = {x: c.attend(RIGHT, *qkv, mask) for x, mask in masks.items()}
    return Question(inputs(*qkv, causal=True, window=2), answers)


# ------------------------------------------------------------------------ masks


def empty_row(c: Conventions) -> Question:
    qkv, mask = heads(), some(1, 1, 3, 5)
    mask[..., 1, :] = False
    given = inputs(*qkv, mask=c.bools(mask))
    return Question(given, rows(c, qkv, mask))


def empty_row_of_minus_infinity(c: Conventions) -> Question:
    return hidden_by(c, -torch.inf)


def empty_row_of_the_least_number(c: Conventions) -> Question:
    return hidden_by(c, torch.finfo(torch.float32).min)


def hidden_by(c: Conventions, number: float) -> Question:
    """A row is empty in a mask of 0 and this number."""
    qkv, mask = heads(), some(1, 1, 3, 5)
    mask[..., 1, :] = False
    added = torch.zeros(mask.shape).masked_fill(~mask, number)
    answers = rows(c, qkv, mask)
    if c.numbers == "nonzero-may-attend":  # then 0 hides, and a row sees all
        answers[c.numbers] = c.attend(RIGHT, *qkv, ~mask)
    return Question(inputs(*qkv, mask=added), answers)


def mask_of_numbers(c: Conventions) -> Question:
    (q, k, v), added = heads(), drawn(1, 1, 3, 5, seed=5)

    def form(plain: Any, scale: float = 1.0) -> Tensor:
        return c.attend(plain, q, k, v, bias=added * scale)

    answers = {"added": form(RIGHT), "added-before-scale": form(RIGHT, 0.25)}
    answers["nonzero-may-attend"] = c.attend(RIGHT, q, k, v, added != 0)
    nothing = rows(c, (q, k, v), added == 0)
    answers["nonzero-is-hidden"] = nothing["zero"]
    if c.polarity == "true-is-hidden":
        for fill in ("mean", "nan"):
            answers[f"nonzero-is-hidden-{fill}"] = nothing[fill]
    return Question(inputs(q, k, v, mask=added), answers, form)


def mask_of_integers(c: Conventions) -> Question:
    qkv, mask = heads(), some(1, 1, 3, 5)
    answers = {
        "one-may-attend": c.attend(RIGHT, *qkv, mask),
        "one-is-hidden": c.attend(RIGHT, *qkv, ~mask),
        "added": c.attend(RIGHT, *qkv, bias=mask.double()),
    }
    return Question(inputs(*qkv, mask=mask.long()), answers)


def mask_per_head(c: Conventions) -> Question:
    return asked(c, heads(), right="each-its-own", mask=some(3, 4, 3, 5))


def mask_of_two_axes(c: Conventions) -> Question:
    return asked(c, heads(), right="for-all", mask=some(3, 5))


def mask_of_keys(c: Conventions) -> Question:
    return asked(c, heads(), right="hidden", mask=some(3, 1, 1, 5))


def mask_batch_or_queries(c: Conventions) -> Question:
    qkv, mask = heads(), some(3, 5)
    batch = c.attend(RIGHT, *qkv, mask[:, None, None])
    return asked(c, qkv, right="queries", mask=mask, others={"batch": batch})


def mask_batch_or_heads(c: Conventions) -> Question:
    qkv, mask = heads(H=3, K=3, T=2), some(3, 2, 5)
    batch = c.attend(RIGHT, *qkv, mask[:, None])
    return asked(c, qkv, right="heads", mask=mask, others={"batch": batch})


# ------------------------------------------------------------------------ heads


def one_key_head(c: Conventions) -> Question:
    return asked(c, heads(K=1), right="shared")


def value_width(c: Conventions) -> Question:
    q, k, _ = heads()
    v = drawn(3, 4, 5, 3, seed=6)
    narrow = c.attend(RIGHT, q.double() * (16 / 3) ** 0.5, k, v)
    return asked(
        c,
        (q, k, v),
        right="of-keys",
        others={"of-values": narrow},
        faults=("of-values",),
    )


def odd_width(c: Conventions) -> Question:
    return asked(c, heads(D=5), right="right")


def scale_passed(c: Conventions) -> Question:
    q, k, v = heads()
    one = Conventions(scale="one", heads=c.heads)
    answers = {
        "multiplied": one.attend(RIGHT, q * 0.75, k, v),
        "divided": one.attend(RIGHT, q / 0.75, k, v),
        "on-top": one.attend(RIGHT, q * 0.75 / 4, k, v),
        "ignored": c.attend(RIGHT, q, k, v),
    }
    return Question(inputs(q, k, v, scale=0.75), answers)


# ---------------------------------------------------------------------- softcap


def softcap(c: Conventions) -> Question:
    return asked(c, heads(), right="after-scale", softcap=2.0)


def softcap_and_mask(c: Conventions) -> Question:
    mask = some(1, 1, 3, 5)
    return asked(c, heads(), right="hidden", mask=mask, softcap=2.0)


def softcap_and_numbers(c: Conventions) -> Question:
    (q, k, v), added = heads(), drawn(1, 1, 3, 5, seed=5)

    def form(plain: Any) -> Tensor:
        return c.attend(plain, q, k, v, softcap=2.0, bias=added)

    scale = 1.0 if c.scale == "one" else 0.25
    z = scores(c, q, k)
    late = (2.0 * (z / 2.0).tanh() + added).softmax(dim=-1) @ v.double()
    early = (scale * 2.0 * (z / scale / 2.0).tanh() + added).softmax(dim=-1)
    answers = {"capped-too": form(RIGHT), "not-capped": late}
    answers["capped-before-scale"] = early @ v.double()
    # None of these numbers is 0: read as bools, they are all the same.
    if c.numbers == "nonzero-may-attend":
        answers[c.numbers] = c.attend(RIGHT, q, k, v, softcap=2.0)
    elif c.numbers.startswith("nonzero-is-hidden"):
        fill = c.numbers.removeprefix("nonzero-is-hidden").strip("-")
        nothing = rows(c, (q, k, v), added == 0)
        answers[c.numbers] = nothing[fill or "zero"]
    given = inputs(q, k, v, mask=added, softcap=2.0)
    return Question(given, answers, form)


def softcap_of_zero(c: Conventions) -> Question:
    qkv = heads()
    right = c.attend(RIGHT, *qkv)
    answers = {"none": right, "scores-of-zero": mean(c, qkv).expand_as(right)}
    answers["nan"] = torch.full_like(right, torch.nan)
    return Question(inputs(*qkv, softcap=0.0), answers)


# ------------------------------------------------------------------------ sinks


def sinks(c: Conventions) -> Question:
    sinks = torch.tensor([0.5, -1.0, 2.0, 1.0])
    return asked(c, heads(), right="one-for-each-head", sinks=sinks)


def sinks_and_mask(c: Conventions) -> Question:
    sinks = torch.tensor([0.5, -1.0, 2.0, 1.0])
    return asked(c, heads(), right="right", mask=some(1, 1, 3, 5), sinks=sinks)


def sinks_in_an_empty_row(c: Conventions) -> Question:
    mask, sinks = some(1, 1, 3, 5), torch.tensor([0.5, -1.0, 2.0, 1.0])
    mask[..., 1, :] = False
    result = asked(c, heads(), right="zero", mask=mask, sinks=sinks)
    odd = result.answers["zero"].clone()
    odd[:, :, 1] = torch.nan
    return result._replace(answers={**result.answers, "nan": odd})


def large_sink(c: Conventions) -> Question:
    q, k, v = heads()
    sinks = torch.full((4,), 1e3)
    result = asked(c, (q + 40, k + 40, v), right="right", sinks=sinks)
    odd = torch.full_like(result.answers["right"], torch.nan)
    answers = {**result.answers, "nan": odd}
    return result._replace(answers=answers, faults=("nan",))


# ------------------------------------------------------------------ log-sum-exp


def scores(c: Conventions, q: Tensor, k: Tensor) -> Tensor:
    scale = q.shape[-1] ** -0.5 if c.scale == "width" else 1.0
    return q.double() @ c.shared(k, q.shape[1]).double().mT * scale


def second(outputs: list[Tensor]) -> Tensor:
    """The log-sum-exp, behind the output."""
    return outputs[1]


def log_sum_exp(c: Conventions) -> Question:
    q, k, v = heads()
    natural = scores(c, q, k).logsumexp(dim=-1)  # (B, H, T)
    bases = {"natural": natural, "base-2": natural / log(2)}
    answers = {
        name + ("" if axes == "BHT" else "-by-token"): x
        if axes == "BHT"
        else x.mT
        for (name, x), axes in product(bases.items(), ("BHT", "BTH"))
    }
    given = inputs(q, k, v, log_sum_exp=True)
    return Question(given, answers, read=second)


def log_sum_exp_of_an_empty_row(c: Conventions) -> Question:
    (q, k, v), mask = heads(), some(1, 1, 3, 5)
    mask[..., 1, :] = False
    hidden = scores(c, q, k).masked_fill(~mask, -torch.inf)
    right = hidden.logsumexp(dim=-1)
    if c.log_sum_exp.startswith("base-2"):
        right = right / log(2)
    if c.log_sum_exp.endswith("by-token"):
        right = right.mT
    answers = {"minus-infinity": right}
    fills = {"plus-infinity": torch.inf, "nan": torch.nan, "zero": 0.0}
    for name, fill in fills.items():
        answers[name] = right.masked_fill(right == -torch.inf, fill)
    given = inputs(q, k, v, mask=c.bools(mask), log_sum_exp=True)
    return Question(given, answers, read=second)


# --------------------------------------------------------- numbers out of range


def large_scores(c: Conventions) -> Question:
    q, k, v = heads()
    result = asked(c, (q + 40, k + 40, v), right="right")
    odd = torch.full_like(result.answers["right"], torch.nan)
    answers = {**result.answers, "nan": odd}
    return result._replace(answers=answers, faults=("nan",))


def rows_far_apart(c: Conventions) -> Question:
    q, k, v = heads()
    k[..., 0], q[:, :, 0, 0], q[:, :, 1, 0] = 40.0, 200.0, -200.0
    return asked(c, (q, k, v), right="right")


def hidden_score_far_above(c: Conventions) -> Question:
    (q, k, v), mask = heads(), some(3, 1, 1, 5).repeat(1, 1, 3, 1)
    q[..., 0], k[..., 0] = 40.0, 0.0
    k[:, :, 1, 0] = 400.0  # some() hides the second key
    return asked(c, (q, k, v), right="right", mask=mask)


def visible_scores_far_below(c: Conventions) -> Question:
    """All are whole numbers near -262,144, which float32 has without error."""
    (q, k, v), mask = heads(), some(3, 1, 1, 5).repeat(1, 1, 3, 1)
    q, k = torch.zeros_like(q), torch.zeros_like(k)
    q[..., 0], q[..., 1] = -256.0, 4.0
    k[..., 0], k[..., 1] = 4096.0, torch.tensor([1.0, 2.0, 0.0, 3.0, 2.0])
    k[:, :, 1, 0] = 0.0  # some() hides the second key
    return asked(c, (q, k, v), right="right", mask=mask)


def nan_in_a_hidden_value(c: Conventions) -> Question:
    (q, k, v), mask = heads(), some(3, 1, 1, 5).repeat(1, 1, 3, 1)
    mask[..., -1] = False
    right = c.attend(RIGHT, q, k, v, mask)
    v[:, :, -1] = torch.nan
    answers = {"kept-out": right, "spreads": torch.full_like(right, torch.nan)}
    return Question(inputs(q, k, v, mask=c.bools(mask)), answers)


def nan_in_a_hidden_key(c: Conventions) -> Question:
    (q, k, v), mask = heads(), some(3, 1, 1, 5).repeat(1, 1, 3, 1)
    mask[..., -1] = False
    right = c.attend(RIGHT, q, k, v, mask)
    k[:, :, -1] = torch.nan
    answers = {"kept-out": right, "spreads": torch.full_like(right, torch.nan)}
    answers["zero"] = torch.zeros_like(right)  # NaN weights were set to 0
    return Question(inputs(q, k, v, mask=c.bools(mask)), answers)


def scores_of_half_precision(c: Conventions) -> Question:
    q, k, v = (x.half() for x in heads())
    q, k = q + 8, k + 8
    right = c.attend(RIGHT, q, k, v)
    rounded = scores(c, q, k).half().double().softmax(dim=-1)
    half = rounded @ c.shared(v, 4).double()
    unscaled = (q.double() @ c.shared(k, 4).double().mT).half().double()
    scale = 0.25 if c.scale == "width" else 1.0
    late = (unscaled * scale).half().double().softmax(dim=-1)
    answers = {"kept-wide": right, "rounded": half}
    answers["rounded-twice"] = late @ c.shared(v, 4).double()
    return Question({"q": q, "k": k, "v": v}, answers, tolerance=0.01)


def output_dtype(c: Conventions) -> Question:
    """Compared are the dtypes of the output, as their places in a list."""
    q, k, v = (x.half() for x in heads())
    dtypes = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
    names = "of-the-inputs", "bfloat16", "float32", "float64"
    answers = {x: torch.tensor(float(n)) for n, x in enumerate(names)}

    def place(outputs: list[Tensor]) -> Tensor:
        dtype = outputs[0].dtype
        n = dtypes.index(dtype) if dtype in dtypes else len(dtypes)
        return torch.tensor(float(n))

    return Question({"q": q, "k": k, "v": v}, answers, read=place)


def float64(c: Conventions) -> Question:
    """Two keys differ by 1e-6 of 100: in float32 they are the same."""
    q = torch.full((1, 1, 1, 2), 1e6, dtype=torch.float64)
    k = torch.zeros(1, 1, 2, 2, dtype=torch.float64)
    k[..., 0] = torch.tensor([1e2, 1e2 + 1e-6], dtype=torch.float64)
    v = torch.tensor([0.0, 1.0], dtype=torch.float64).view(1, 1, 2, 1)
    v = v.expand(1, 1, 2, 2).clone()
    answers = {"kept": c.attend(RIGHT, q, k, v)}
    answers["rounded-to-float32"] = torch.full((1, 1, 1, 2), 0.5)
    return Question({"q": q, "k": k, "v": v}, answers)


# ----------------------------------------------------------------- empty inputs


def no_queries(c: Conventions) -> Question:
    q, k, v = heads()
    return Question(inputs(q[:, :, :0], k, v), {"empty": q[:, :, :0]})


def no_keys(c: Conventions) -> Question:
    q, k, v = heads()
    nothing = torch.zeros_like(q)
    answers = {"zero": nothing, "nan": nothing + torch.nan}
    return Question(inputs(q, k[:, :, :0], v[:, :, :0]), answers)


def no_batch(c: Conventions) -> Question:
    q, k, v = heads()
    return Question(inputs(q[:0], k[:0], v[:0]), {"empty": q[:0]})


# --------------------------------------------------------- what must not matter


def strides(c: Conventions) -> Question:
    views = tuple(
        x.transpose(1, 2).contiguous().transpose(1, 2) for x in heads()
    )
    q, k, v = views
    return asked(c, (q, k, v), right="right")


def one_key(c: Conventions) -> Question:
    return asked(c, heads(S=1), right="right")


def equal_scores(c: Conventions) -> Question:
    q, k, v = heads()
    return asked(c, (q * 0, k, v), right="right")


def one_row(c: Conventions) -> Question:
    q, k, v = (x[:1] for x in heads())
    return asked(c, (q, k, v), right="right")


def long_row(c: Conventions) -> Question:
    q = torch.zeros(1, 1, 1, 8, dtype=torch.float16)
    k = torch.zeros(1, 1, 4096, 8, dtype=torch.float16)
    v = torch.ones(1, 1, 4096, 8, dtype=torch.float16)
    right = torch.ones(1, 1, 1, 8)
    answers = {"right": right, "twice": right * 2, "half": right / 2}
    return Question({"q": q, "k": k, "v": v}, answers)


# ---------------------------------------------------------------------- dropout


def dropout(c: Conventions) -> Question:
    """Values are 1, so each output is the sum of its weights."""
    q = torch.zeros(1, 1, 1, 8)
    k, v = torch.zeros(1, 1, 65536, 8), torch.ones(1, 1, 65536, 8)
    v = v.to(torch.float32)
    one = torch.ones(1, 1, 1, 8)
    answers = {"right": one, "not-scaled": one / 2}
    given = {"q": q, "k": k, "v": v, "dropout": 0.5}
    return Question(given, answers, tolerance=0.05)


# -------------------------------------------------------------------- gradients


def flat(tensors: list[Tensor]) -> Tensor:
    return torch.cat([x.flatten() for x in tensors])


def backward(
    c: Conventions,
    qkv: tuple[Tensor, Tensor, Tensor],
    right: str,
    mask: Tensor | None = None,
) -> tuple[Question, list[Tensor]]:
    """Inputs with a cotangent, and the gradients by autograd."""
    B, H, T, _ = qkv[0].shape
    cotangent = drawn(B, H, T, qkv[2].shape[-1], seed=7)

    def grads(plain: Any) -> list[Tensor]:
        leaves = [x.to(c.dtype).requires_grad_() for x in qkv]
        out = c.attend(plain, leaves[0], leaves[1], leaves[2], mask)
        result = torch.autograd.grad(
            out, leaves, cotangent.to(out.dtype), materialize_grads=True
        )
        return [*result]

    given = inputs(*qkv, cotangent=cotangent)
    if mask is not None:
        given["mask"] = c.bools(mask)
    answers = {right: flat(grads(RIGHT))}
    question = Question(given, answers, lambda x: flat(grads(x)), read=flat)
    return question, grads(RIGHT)


def gradients(c: Conventions) -> Question:
    return backward(c, heads(), "right")[0]


def gradients_of_shared_heads(c: Conventions) -> Question:
    question, (dq, dk, dv) = backward(c, heads(H=6, K=2), "summed")
    averaged = flat([dq, dk / 3, dv / 3])
    return question._replace(answers={**question.answers, "averaged": averaged})


def gradients_of_an_empty_row(c: Conventions) -> Question:
    mask = some(1, 1, 3, 5)
    mask[..., 1, :] = False
    question, (dq, dk, dv) = backward(c, heads(), "zero", mask)
    odd = dq.clone()
    odd[:, :, 1] = torch.nan
    share = question.inputs["cotangent"][:, :, 1:2] / 5
    answers = {
        **question.answers,
        # Each key gets a share of that query's cotangent.
        "of-the-mean": flat([dq, dk, dv + share]),
        "nan-of-the-query": flat([odd, dk, dv]),
        "nan-of-scores": flat([odd, dk * torch.nan, dv]),
        "nan": flat([odd, dk * torch.nan, dv * torch.nan]),
    }
    return question._replace(answers=answers, form=None)


# ----------------------------------------------------------------------- RoPE


def turned(x: Tensor, positions: Tensor, layout: str, sign: int = 1) -> Tensor:
    x, p = x.double(), sign * positions
    if layout == "half":
        half: Tensor = RIGHT.rope.rope(x, p)
        return half
    apart = torch.cat((x[..., 0::2], x[..., 1::2]), dim=-1)
    a, b = RIGHT.rope.rope(apart, p).chunk(2, dim=-1)
    return torch.stack((a, b), dim=-1).flatten(-2)


def rotation(positions: Tensor) -> Question:
    x = drawn(3, 4, len(positions), 8, seed=8)
    layouts = {
        layout + ("" if sign > 0 else "-backwards"): turned(
            x, positions, layout, sign
        )
        for layout, sign in product(("half", "interleaved"), (1, -1))
    }
    answers = layouts | {"not-rotated": x.double()}
    given = {"x": x, "positions": positions, "theta": 10000.0}
    return Question(given, answers)


def rope_layout(c: Conventions) -> Question:
    return rotation(torch.arange(5))


def rope_far_positions(c: Conventions) -> Question:
    return rotation(torch.arange(99_995, 100_000))
