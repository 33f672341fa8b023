"""Caches that keep a part of the past, or in another order, beside a full
pass: those of tests/kit/other_caches.py."""

import re
from dataclasses import FrozenInstanceError
from functools import partial
from itertools import product

import pytest
import torch
from torch import nn
from transformers.masking_utils import (
    chunked_causal_mask_function,
    sliding_window_causal_mask_function,
)

from attnref import (
    Block,
    Cache,
    Causal,
    Chunk,
    Decoder,
    Everything,
    GrowingKVCache,
    KVCache,
    RingKVCache,
    Rope,
    Rule,
    Window,
    causal_mask,
    decoder_mask,
    greedy,
    padding_mask,
)
from tests.kit import sampled
from tests.kit.caches import Lists, refused
from tests.kit.compare import relative_error
from tests.kit.layers import B, C, E, H, tokens
from tests.kit.other_caches import Backwards, ChunkCache
from tests.kit.refusals import refusals
from tests.variants import (
    APPENDING,
    ONCE,
    SERVING,
    VARIANTS,
    inputs,
    run,
    takes,
    variant,
)
from tests.variants import rule as rule_of

T = 23
CPU = torch.device("cpu")


def oracle(rule, T):
    """The dense mask, by transformers where it has one."""
    i, j = torch.arange(T)[:, None], torch.arange(T)
    if isinstance(rule, Chunk):
        theirs = chunked_causal_mask_function(rule.size, torch.zeros(1).int())
        return theirs(0, 0, i, j)
    window = sliding_window_causal_mask_function(rule.size)(0, 0, i, j)
    return window | ((j < rule.first) & (j <= i))


# A rule, and caches that keep enough for it.
RULES = {
    "window": (Window(5), lambda: RingKVCache(5)),
    "window, larger ring": (Window(5), lambda: RingKVCache(5, reserve=2)),
    "window, all kept": (Window(5), lambda: KVCache(T)),
    "first and window": (Window(5, first=3), lambda: RingKVCache(5, first=3)),
    "first, all kept": (Window(5, first=3), GrowingKVCache),
    "first, backwards": (Window(5, first=3), Backwards),
    "window, more than it": (
        Window(4, first=1),
        lambda: RingKVCache(5, first=3),
    ),
    "chunk": (Chunk(5), lambda: ChunkCache(5)),
    "chunk, all kept": (Chunk(5), lambda: KVCache(T)),
    "chunk, backwards": (Chunk(5), Backwards),
    "chunk, in a ring": (Chunk(5), lambda: RingKVCache(5)),
}
rules = pytest.mark.parametrize(("rule", "make"), RULES.values(), ids=RULES)
SCHEDULES = {
    "one by one": [1] * T,
    "longer than the ring, then one by one": [13] + [1] * 10,
    "ragged": [2, 1, 9, 3, 0, 1, 1, 6],
    "whole": [T],
}
# Those that can be told another rule.
WITH_RULES = [name for name in ONCE if takes(name, "causal")]


def layer(name="gqa", **options):
    return variant(name, rope=Rope(100.0), **options)


def same(one, name="gqa", **options):
    """The same weights under another rule."""
    other = layer(name, **options)
    other.load_state_dict(one.state_dict())
    return other


def left_padded():
    return torch.arange(T) >= torch.tensor([[0], [4], [11]])


# All that is kept with one layer, and each layer with one that drops tokens.
@pytest.mark.parametrize(
    ("name", "way"),
    sampled(
        product(WITH_RULES, RULES),
        lambda pair: pair[0] == "gqa" or pair[1] == "first and window",
    ),
)
@torch.no_grad()
def test_a_part_of_the_past_gives_the_full_pass_with_a_dense_mask(name, way):
    rule, make = RULES[way]
    plain, x = layer(name, causal=False), tokens(B, T, E)
    dense, valid = oracle(rule, T), left_padded()
    ours = same(plain, name, causal=rule)
    assert relative_error(ours(x), plain(x, mask=dense)) <= 1e-12
    hidden = relative_error(ours(x), same(plain, name)(x))
    assert hidden > 0.1, "hides nothing"
    for pads in (None, valid):
        whole = dense if pads is None else dense & padding_mask(pads)
        want = plain(x, mask=whole)
        for sizes in SCHEDULES.values():
            cache, got, end = make(), [], 0
            for chunk in x.split(sizes, dim=1):
                end += chunk.shape[1]
                # The caller speaks of all tokens so far, kept or not.
                mask = None if pads is None else padding_mask(pads[:, :end])
                got.append(ours(chunk, mask=mask, cache=cache))
            assert cache.length == T
            assert relative_error(torch.cat(got, dim=1), want) <= 1e-12


@torch.no_grad()
def test_keys_of_a_context_may_come_in_any_order():
    x, back, context = tokens(B, T, E), Backwards(), tokens(B, T, C)
    cross, mask = variant("cross"), padding_mask(left_padded())
    want = cross(x[:, :7], context, mask=mask)
    got = [
        cross(x[:, :4], context, mask=mask, cache=back),
        cross(x[:, 4:7], mask=mask, cache=back),
    ]
    assert relative_error(torch.cat(got, dim=1), want) <= 1e-12


@refusals(
    """
    >>> ours(causal=True)(x, cache=RingKVCache(4))
    ValueError: rule is Causal(), and RingKVCache keeps Window(size=4, first=0):
        pass a cache that keeps as much; KVCache and GrowingKVCache keep
        everything
    >>> ours(causal=False)(x, cache=RingKVCache(4))
    ValueError: rule is Everything(), and RingKVCache keeps
    >>> ours(causal=Window(8))(x, cache=RingKVCache(4))
    ValueError: rule is Window(size=8, first=0), and RingKVCache keeps
        Window(size=4,
    >>> ours(causal=Window(4, first=1))(x, cache=RingKVCache(4))
    ValueError: Window(size=4, first=1), and RingKVCache keeps Window(size=4,
        first=0
    >>> ours(causal=Window(4))(x, cache=ChunkCache(4))
    ValueError: rule is Window(size=4, first=0), and ChunkCache keeps
        Chunk(size=4)
    >>> ours(causal=Chunk(6))(x, cache=ChunkCache(4))
    ValueError: keeps Chunk(size=4)
    >>> ours(causal=True)(x, cache=ChunkCache(4))
    ValueError: rule is Causal(), and Chunk
    """
)
@torch.no_grad()
def test_a_cache_that_keeps_too_little_is_refused(call, error, message):
    """At the first token, not at the first that is missing."""
    x = tokens(B, T, E)[:, :1]
    for name in WITH_RULES:
        names = {"ours": partial(layer, name), "x": x}
        with pytest.raises(error, match=message):
            eval(call, globals() | names)


PARTS = {
    "ring": lambda max_len: RingKVCache(4),
    "ring after the first": lambda max_len: RingKVCache(2, first=3),
    "chunk": lambda max_len: ChunkCache(3),
    "backwards": lambda max_len: Backwards(),
}


@pytest.mark.parametrize("make", PARTS.values(), ids=PARTS)
def test_what_is_kept_is_what_a_list_keeps(make):
    Lists.run(make)


@pytest.mark.parametrize("name", VARIANTS)
@torch.no_grad()
def test_each_layer_refuses_the_caches_that_keep_too_little(name):
    """And no other. A context is kept whole."""
    layer, makes, served = variant(name), [*APPENDING.values()], []
    makes += PARTS.values()
    for make in makes:
        cache = make(99)
        if cache.keeps.covers(rule_of(layer)):
            run(name, layer, inputs(name), cache=cache)
            served.append(make)
        else:
            with refused(f"the layer's rule is {rule_of(layer)}, and", cache):
                run(name, layer, inputs(name), cache=cache)
    needed = {PARTS["backwards"], *SERVING[name].values()}
    assert needed <= {*served} < {*makes}


@torch.no_grad()
def test_what_the_refusal_prevents():
    """Plain GQA on a ring that lies: no error, and another result."""

    class Liar(RingKVCache):
        def __init__(self, window):
            super().__init__(window)
            self.keeps = Lie(window)

    class Lie(Window):
        def covers(self, other):
            return True

    ours, x, cache = layer(), tokens(B, T, E), Liar(5)
    got = [ours(token, cache=cache) for token in x.split(1, dim=1)]
    assert relative_error(torch.cat(got, dim=1), ours(x)) > 0.3


def test_a_cache_has_to_keep_something_and_to_say_what():
    class Silent(Cache):
        append = Backwards.append

    class Idle(Cache):
        keeps = Everything()

    class Says(Silent):
        def __init__(self, rule):
            self.keeps = rule
            super().__init__()

    with pytest.raises(TypeError, match="Silent has no `keeps`: set it to"):
        Silent()
    with pytest.raises(TypeError, match=r"abstract method '?append"):
        Idle()
    half = Says(Window(4))
    with refused("rule is Causal(), and Says keeps Window(size=4, ", half):
        layer()(tokens(B, T, E), cache=half)


def decoder(*rules):
    model = Decoder(
        [Block(layer(causal=rule), d_model=E, d_ff=17) for rule in rules],
        n_tokens=101,
        d_model=E,
    )
    for p in model.parameters():
        nn.init.normal_(p, std=3.0 if p.dim() == 1 else 0.6)
    return model.double().eval()


@torch.no_grad()
def test_a_decoder_mixes_caches_and_generates_the_same():
    """Left-padded, as any batch: the mask speaks of dropped tokens too."""
    model = decoder(Window(4), True, Window(4, first=2), Chunk(4))
    prompt, valid = torch.randint(101, (B, 9)), left_padded()[:, -17:-8]
    assert not valid.all()
    caches = [
        RingKVCache(4),
        KVCache(28),
        RingKVCache(4, first=2),
        ChunkCache(4),
    ]
    want = greedy(model, prompt, 20, valid=valid)
    got = greedy(model, prompt, 20, valid=valid, caches=caches)
    assert torch.equal(got, want)
    assert len(got[:, 9:].unique()) > 12
    assert caches[0].nbytes < caches[1].nbytes / 6


@torch.no_grad()
def test_a_decoder_refuses_before_the_first_layer_writes():
    model = decoder(True, Window(8))
    caches = [GrowingKVCache(), RingKVCache(4)]
    with refused(
        "rule is Window(size=8, first=0), and RingKVCache keeps", *caches
    ):
        model(torch.zeros(B, 1, dtype=torch.int64), caches=caches)
    model.layers.append(nn.Identity())  # says nothing of what it sees
    caches = [GrowingKVCache(), RingKVCache(8), RingKVCache(8)]
    with refused("rule is Everything(), and RingKVCache keeps", *caches):
        model(torch.zeros(B, 1, dtype=torch.int64), caches=caches)


@pytest.mark.audit  # compiles; test_properties does with the caches shipped
@torch.no_grad()
def test_ten_requests_on_rings_take_few_graphs():
    model, graphs = decoder(Window(4), Window(4, first=2)), []
    torch.compiler.reset()

    def counted(graph, inputs):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(model, fullgraph=True, backend=counted)
    x = torch.randint(101, (B, 12))
    for request in range(10):
        caches = [RingKVCache(4), RingKVCache(4, first=2)]
        parts = x.split([5] + [1] * 7, dim=1)
        got = [compiled(part, caches=caches) for part in parts]
        if request == 1:
            few = len(graphs)
    assert few == len(graphs) <= 3
    assert relative_error(torch.cat(got, dim=1), model(x)) <= 1e-12


@rules
@torch.no_grad()
def test_positions_are_made_where_the_keys_are_and_never_looked_at(rule, make):
    """A meta tensor has no numbers; on an accelerator, to look is to wait."""
    ours, cache = layer(causal=rule).to("meta"), make()
    for new in (7, 1, 1, 3):
        out = ours(torch.empty(B, new, E, device="meta").double(), cache=cache)
        assert out.shape == (B, new, E)


class Narrower(Causal):
    """What is made from a rule may hide more than it."""


class Odd(Rule):
    """Without sizes, it needs no decorator of its own."""


def test_a_rule_is_a_value():
    for kind in (Odd, Narrower, Causal, Everything):
        assert kind() == kind()
        assert kind().covers(kind())
        assert len({kind(), kind(), Window(5), Window(5)}) == 2
    assert not Narrower().covers(Causal())
    for rule in (Rule(), Causal(), Everything(), Window(5)):
        with pytest.raises(FrozenInstanceError):
            rule.size = 4  # layers share it


def test_where_nothing_is_hidden_no_mask_is_made():
    full, given = (B, H, 1, 7), torch.rand(B, 1, 1, 7) < 0.5
    for rule, there in (
        (True, False),
        (False, False),
        (Causal(), False),
        (Window(7), False),
        (Window(6), True),
        (Chunk(7), False),
        (Chunk(6), True),
        (Narrower(), True),
    ):
        made = decoder_mask(None, full, causal=rule, device=CPU)
        assert (made is not None) is there
        made = decoder_mask(given, full, causal=rule, device=CPU)
        assert (made is not given) is there
    at = torch.tensor([5, 6, -1])
    made = decoder_mask(None, full, causal=True, device=CPU, positions=at)
    assert made.dense().tolist() == [[True, True, False]]


@pytest.mark.parametrize(("T", "S"), [(1, 5), (3, 5), (5, 5), (4, 2)])
def test_the_rule_on_all_positions_is_the_causal_mask(T, S):
    i = torch.arange(S - T, S)[:, None]
    seen = Causal()(i, torch.arange(S))
    assert torch.equal(seen, causal_mask(T, S))
    assert not Causal()(i, torch.tensor(-1)).any()


def test_a_mask_that_does_not_speak_of_what_was_dropped_is_refused():
    ours, x, cache = layer(causal=Window(4)), tokens(B, T, E), RingKVCache(4)
    with torch.no_grad():
        ours(x[:, :9], cache=cache)
        mask = torch.ones(B, 1, 1, 4, dtype=torch.bool)
        says = re.escape("shape (3, 1, 1, 4), which does not broadcast to")
        with pytest.raises(ValueError, match=says):
            ours(x[:, 9:10], mask=mask, cache=cache)
    assert cache.length == 9
