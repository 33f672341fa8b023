"""All parts of attention at once: random calls beside a loop over keys.

A layer, a cache, a rule, a bias, pads, positions and other parts are drawn, and
then what is done to the cache: chunks are read, rows cropped and reordered. The
reference is written from the definitions, and knows a token by its row, its
number and its position.
"""

import math
import random
import re
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from attnref import (
    Alibi,
    Bias,
    Causal,
    Chunk,
    Documents,
    DynamicNtk,
    Everything,
    GrowingKVCache,
    KVCache,
    LongRope,
    Prefix,
    RelativeBias,
    RingKVCache,
    Rope,
    Scores,
    Window,
    padding_mask,
)
from tests.cores import ATTEND, CORES
from tests.kit import sampled
from tests.kit.caches import unchanged
from tests.kit.compare import relative_error
from tests.kit.layers import B, E, H, tokens
from tests.kit.other_caches import Backwards
from tests.variants import DECODERS, VARIANTS, variant

MOST = 26  # tokens of a row
TRAINED = 9  # beyond so many, RoPE has other angles
BACK = [0, 0, 1, 1, 2, 2, 3, 4, 6]


class Token(NamedTuple):
    x: Tensor  # (E,)
    at: int  # its position
    real: bool
    length: int  # of the text when its key was rotated


class Kind(NamedTuple):
    """A rule in numbers `i`, `j` and positions `a`, `b` of query and key."""

    rule: Callable[[Tensor], Any]
    sees: Callable[[list[int], int, int, int, int], bool]
    # What keeps enough, and how it loses tokens: their first, and its size.
    rings: tuple[tuple[int, int, int], ...] = ()


RULES = {
    "everything": Kind(lambda ids: Everything(), lambda ids, i, j, a, b: True),
    "causal": Kind(lambda ids: Causal(), lambda ids, i, j, a, b: j <= i),
    "window": Kind(
        lambda ids: Window(4),
        lambda ids, i, j, a, b: j <= i and a - b < 4,
        ((4, 0, 0), (4, 0, 4), (5, 2, 3)),
    ),
    "first": Kind(
        lambda ids: Window(3, first=2),
        lambda ids, i, j, a, b: j <= i and (a - b < 3 or b < 2),
        ((3, 2, 0), (3, 2, 4)),
    ),
    "chunk": Kind(
        lambda ids: Chunk(4),
        lambda ids, i, j, a, b: j <= i and a // 4 == b // 4,
        ((4, 0, 0), (4, 0, 3)),
    ),
    "prefix": Kind(
        lambda ids: Prefix(3), lambda ids, i, j, a, b: j <= i or b < 3
    ),
    "documents": Kind(
        lambda ids: Causal() & Documents(ids),
        lambda ids, i, j, a, b: j <= i and ids[i] == ids[j],
    ),
}


class Uneven(Bias):
    """Nothing of it cancels: neither where it begins nor in which order."""

    n_heads = H

    def __call__(self, h, i, j):
        return 2 * torch.cos(h + 0.3 * i.double() + 1.7 * j.double())


def alibi(h, a, b):
    """Of ten heads: the slopes of 8, and every other one of 16."""
    slope = 2.0 ** -(h + 1) if h < 8 else 2.0 ** -(0.5 + h - 8)
    return -slope * abs(a - b)


TABLE = 2 * torch.randn(6, H, generator=torch.Generator().manual_seed(1))


def relative(h, a, b):
    """Distances 0, 1 and 2, and from 3 to 12 two powers; later keys are 0."""
    far = max(a - b, 0)
    steps = math.log(far / 3) / math.log(12 / 3) * 3 if far > 3 else 0
    return TABLE[far if far < 3 else min(3 + int(steps), 5), h].item()


BIASES = {
    None: (None, None),
    "uneven": (Uneven(), lambda h, a, b: 2 * math.cos(h + 0.3 * a + 1.7 * b)),
    "alibi": (Alibi(H), alibi),
    "relative": (RelativeBias(TABLE.double(), 12), relative),
}
FIXED = {
    "none": None,
    "theta": Rope(50.0),
    "interleaved": Rope(50.0, layout="interleaved"),
}
BY_LENGTH = {
    "dynamic": Rope(50.0, scaling=DynamicNtk(4.0, TRAINED)),
    "long": Rope(50.0, scaling=LongRope([1, 2], [3, 5], TRAINED, 4.0)),
}


def turned(x, at, rope, length):
    """Keys or queries `(n, heads, D)`, each pair by the angle of its place."""
    if rope is None:
        return x
    D, size = x.shape[-1], 1.0
    frequencies = [rope.theta ** (-2 * p / D) for p in range(D // 2)]
    if isinstance(rope.scaling, DynamicNtk) and length > TRAINED:
        theta = rope.theta * (4 * length / TRAINED - 3) ** (D / (D - 2))
        frequencies = [theta ** (-2 * p / D) for p in range(D // 2)]
    elif isinstance(rope.scaling, LongRope):
        slower = (1, 2) if length <= TRAINED else (3, 5)
        frequencies = [f / s for f, s in zip(frequencies, slower, strict=True)]
        size = math.sqrt(1 + math.log(4) / math.log(TRAINED))
    angles = torch.tensor(at).double()[:, None, None] * torch.tensor(
        frequencies, dtype=torch.float64
    )
    by = torch.polar(torch.full_like(angles, size), angles)
    if rope.layout == "interleaved":
        pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).clone())
        return torch.view_as_real(pairs * by).flatten(-2)
    pairs = torch.complex(*(y.clone() for y in x.chunk(2, dim=-1))) * by
    return torch.cat((pairs.real, pairs.imag), dim=-1)


def heads_of(layer, x, at, length):
    """Queries, keys and values `(n, H, width)` of the tokens `x` `(n, E)`."""
    rope = layer.rope
    if not hasattr(layer, "kv_lora_rank"):
        q, k, v = (
            p(x).unflatten(-1, (-1, layer.head_dim))
            for p in (layer.q_proj, layer.k_proj, layer.v_proj)
        )
        q, k = (turned(y, at, rope, length) for y in (q, k))
        k, v = (y.repeat_interleave(H // y.shape[1], dim=1) for y in (k, v))
        return q, k, v, layer.head_dim**-0.5
    Dn, Dr = layer.qk_nope_head_dim, layer.qk_rope_head_dim
    q, q_rope = layer.q_proj(x).unflatten(-1, (H, -1)).split((Dn, Dr), dim=-1)
    c, k_rope = layer.kv_a_proj_with_mqa(x).split((layer.kv_lora_rank, Dr), -1)
    c = c * (c.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
    c = c * layer.kv_a_layernorm.weight
    k, v = (
        layer.kv_b_proj(c)
        .unflatten(-1, (H, -1))
        .split((Dn, layer.v_head_dim), dim=-1)
    )
    q_rope = turned(q_rope, at, rope, length)
    k_rope = turned(k_rope[:, None], at, rope, length).expand(-1, H, -1)
    q, k = torch.cat((q, q_rope), dim=-1), torch.cat((k, k_rope), dim=-1)
    return q, k, v, (Dn + Dr) ** -0.5


def row_of(layer, row, new, sees, bias):
    """The outputs of the last `new` tokens of a row, `(new, E)`; pads are 0."""
    x, at = torch.stack([t.x for t in row]), [t.at for t in row]
    q, k, v, scale = heads_of(layer, x, at, row[-1].length)
    scores_of, outs = layer.scores, []
    for i in range(len(row) - new, len(row)):
        seen = [
            j
            for j, key in enumerate(row)
            if key.real and sees(i, j, at[i], at[j])
        ]
        scores = scale * torch.einsum("hd,shd->hs", q[i], k[seen])
        if bias is not None:
            added = [[bias(h, at[i], at[j]) for j in seen] for h in range(H)]
            scores = scores + torch.tensor(added, dtype=torch.float64)
        if scores_of.softcap is not None:
            scores = 2 * torch.tanh(scores / 2)
        weights, sink = scores.exp(), 0.0
        if scores_of.sinks:
            sink = layer.sinks.exp()[:, None]
        weights = weights / (weights.sum(-1, keepdim=True) + sink)
        heads = torch.einsum("hs,shd->hd", weights, v[seen])
        outs.append(layer.o_proj(heads.flatten()) * row[i].real)
    return torch.stack(outs)


class History:
    """What is drawn, the layer and its cache, and beside them lists."""

    def __init__(self, draw):
        self.draw, pick = draw, draw.choice
        self.name = pick([name for name in DECODERS if name != "dsa"])
        self.core = pick([*ATTEND, "sdpa", "sdpa", "fused"])
        ringed = [rule for rule, its in RULES.items() if its.rings]
        self.kind = rule = pick([*RULES, *ringed, *ringed])
        offers = CORES[self.core].offers
        bias = pick([*BIASES, "uneven", "relative"])
        self.bias = bias = bias if offers("bias") else None
        rope = pick([*FIXED, *BY_LENGTH])
        self.rope = (FIXED | BY_LENGTH)[rope]
        self.pads = pick(["none", "left", "amid"])
        self.places = pick(["numbers", "counted", "gaps"])
        ring = pick([None, *RULES[rule].rings])
        own = {
            "softcap": pick([None, None, 2.0]) if offers("softcap") else None,
            "sinks": offers("sinks") and pick([False, False, True]),
        }
        # What reads positions; else they are refused.
        counts = self.kind not in ("everything", "causal", "documents")
        if not (counts or self.rope or bias):
            self.places = "numbers"
        # A ring drops by number: pads between tokens, and pads before the
        # first ones, make a rule see what it has dropped, which is refused.
        if ring and self.places != "numbers" and self.pads != "none":
            self.pads = "none" if rule == "first" else "left"
        self.window, self.first, self.size = 0, 0, MOST
        if ring:
            self.window, self.first, reserve = ring
            self.size = self.window + reserve
            self.cache = RingKVCache(
                self.window, first=self.first, reserve=reserve
            )
        else:
            kind = pick(["room", "growing", "backwards"])
            kinds = {"growing": GrowingKVCache, "backwards": Backwards}
            self.cache = kinds.get(kind, lambda: KVCache(MOST))()
        # ALiBi is rounded to float32.
        self.exact = 1e-5 if bias == "alibi" else 1e-10
        self.ids = torch.randint(3, (B, MOST)).sort(dim=-1).values
        width = {"qk_rope_head_dim": 4} if "mla" in self.name else {}
        self.layer = variant(
            self.name,
            **width,
            rope=self.rope,
            causal=RULES[rule].rule(self.ids),
            scores=Scores(**own, bias=BIASES[bias][0]),
            attend=ATTEND[self.core],
        )
        self.shown = [self.name, self.core, rule, bias, rope, self.pads]
        self.shown += [self.places, ring or kind]
        self.shown += [(name, x) for name, x in own.items() if x]
        self.steps = []
        # flex is slow; what a ring loses shows late.
        self.n_steps = 8 if self.core == "flex" else 60 if ring else 20
        self.forget()

    def forget(self):
        self.cache.reset()
        self.rows = [[] for _ in range(B)]
        # Of each row, the tokens that a ring has overwritten.
        self.gone = [set() for _ in range(B)]

    def same(self, length):
        """What makes two lengths rotate alike."""
        if self.rope is None or self.rope.scaling is None:
            return 0
        dynamic = isinstance(self.rope.scaling, DynamicNtk)
        return max(length, TRAINED) if dynamic else length > TRAINED

    def read(self):
        n = self.draw.choice([0, 1, 1, 1, 1, 2, 3, 7])
        if max(map(len, self.rows)) + n > MOST:
            return self.crop()
        before = [len(row) for row in self.rows]
        new = tokens(B, n, E)
        rows = [[*row] for row in self.rows]
        for row, xs in zip(rows, new, strict=True):
            begun = any(t.real for t in row)
            pads = self.draw.randint(0, 3) if self.pads == "left" else 0
            for m, x in enumerate(xs):
                real = begun or m >= pads
                if self.pads == "amid":
                    real = self.draw.random() < 0.75
                at = len(row)
                if self.places != "numbers":
                    step = self.draw.randint(1, 3)
                    at = row[-1].at if row else -1
                    at += real * (1 if self.places == "counted" else step)
                    at = max(at, 0)
                row.append(Token(x, at, real, 0))
        fresh = [row[end:] for row, end in zip(rows, before, strict=True) if n]
        length = max((t.at + 1 for row in fresh for t in row), default=0)
        rows = [
            row[:end] + [t._replace(length=length) for t in row[end:]]
            for row, end in zip(rows, before, strict=True)
        ]
        self.steps.append(("read", n))
        options = dict(VARIANTS[self.name].forward)
        if self.places != "numbers":
            at = [[t.at for t in row] for row in fresh]
            options["positions"] = torch.tensor(at).view(B, n).long()
        if self.pads != "none":
            # Beyond its end, a row's mask says nothing.
            valid = torch.rand(B, max(before) + n) < 0.5
            for r, row in enumerate(rows):
                valid[r, : len(row)] = torch.tensor([t.real for t in row])
            options["mask"] = padding_mask(valid)
        stale = n and any(
            self.same(t.length) != self.same(length)
            for row in self.rows
            for t in row
        )
        if stale:
            says = re.escape("the cached keys were rotated for a text of")
            with (
                unchanged(self.cache),
                pytest.raises(ValueError, match=says),
            ):
                self.layer(new, cache=self.cache, **options)
            return self.forget()
        got = self.layer(new, cache=self.cache, **options)
        if n:
            _, term = BIASES[self.bias]
            want = []
            for row, ids in zip(rows, self.ids.tolist(), strict=True):
                sees = partial(RULES[self.kind].sees, ids)
                want.append(row_of(self.layer, row, n, sees, term))
            want = torch.stack(want)
            real = torch.tensor([[t.real for t in row] for row in fresh])
            assert relative_error(got * real[..., None], want) <= self.exact
        self.rows = rows
        for gone, start, row in zip(self.gone, before, rows, strict=True):
            for j in range(start - self.size, len(row) - self.size):
                gone |= {j} if j >= self.first else set()
        assert self.cache.length == max(map(len, rows))
        return None

    def crop(self):
        if not any(self.rows):
            return
        ends = [len(row) for row in self.rows]
        each = self.draw.random() < 0.6 and not isinstance(
            self.cache, Backwards
        )
        if each:
            to = [max(0, n - self.draw.choice(BACK)) for n in ends]
            given = torch.tensor(to)
        else:
            given = max(0, max(ends) - self.draw.choice(BACK))
            to = [min(n, given) for n in ends]
        self.steps.append(("crop", to))
        # What the next token would see may have been overwritten.
        if any(
            gone & {*range(n - self.window + 1, n)}
            for n, gone in zip(to, self.gone, strict=True)
        ):
            with (
                unchanged(self.cache),
                pytest.raises(ValueError, match="kept from"),
            ):
                self.cache.crop(given)
            return
        self.cache.crop(given)
        self.rows = [row[:n] for row, n in zip(self.rows, to, strict=True)]
        self.gone = [
            {j for j in gone if j < n}
            for n, gone in zip(to, self.gone, strict=True)
        ]
        if len({*to}) == 1:  # a ring then takes the rows for one
            self.gone = [set.union(*self.gone) for _ in range(B)]

    def reorder(self):
        if any(self.rows):
            order = [self.draw.randrange(B) for _ in range(B)]
            self.steps.append(("reorder", order))
            self.cache.reorder(torch.tensor(order))
            self.rows = [self.rows[r] for r in order]
            self.gone = [{*self.gone[r]} for r in order]


@pytest.mark.filterwarnings("ignore")  # flex asks to be compiled
@pytest.mark.parametrize("seed", sampled(range(60), range(10)))
@torch.no_grad()
def test_a_history_is_the_loop_over_keys(seed):
    for n in range(24 * seed, 24 * seed + 24):
        draw = random.Random(n)
        torch.manual_seed(n)
        history = History(draw)
        steps = [history.read] * 3 + [history.crop] * 2 + [history.reorder]
        try:
            for _ in range(history.n_steps):
                draw.choice(steps)()
        except BaseException as error:
            error.add_note(f"{n=}: {history.shown}\n{history.steps}")
            raise
