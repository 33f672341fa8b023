"""A layer says what does not fit, in numbers, and leaves the cache alone."""

import re

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import DynamicCache

from attnref import Decoder, KVCache, Rope
from tests.kit.attention import wrong_masks
from tests.kit.caches import refused, unchanged
from tests.kit.layers import B, C, D, E, H, K, S
from tests.kit.refusals import refusals, refused_calls
from tests.variants import (
    CACHES,
    DECODERS,
    LAYERS,
    ONCE,
    SERVING,
    VARIANTS,
    built,
    each_cache_of,
    each_decoder,
    each_layer,
    every_mixer,
    inputs,
    needs,
    once,
    pairs,
    rule,
    run,
    takes,
)

T, PAST = 2, 7
each_of_all = pytest.mark.parametrize("name", once(LAYERS))
WIDTHS = [name for name in ONCE if takes(name, "head_dim")]
SIZES = [(name, size) for name in once(LAYERS) for size in LAYERS[name].sizes]
wholes = st.integers(1, 12)
thetas = st.none() | st.just(100.0)


def filled(make, *widths, K=K, **made):
    """A cache that another layer has written to."""
    cache = make(PAST + T)
    cache.append(*(numbers(B, K, PAST, width, **made) for width in widths))
    return cache


def after(make, name, layer=None, *, rows=B, length=PAST, max_len=PAST + T):
    """A cache that a layer of this kind has written to."""
    layer, cache = layer or built(name), make(max_len)
    kind = next(layer.parameters()).dtype
    given = (numbers(rows, length, layer.d_model, dtype=kind),)
    if takes(name, "context"):
        given += (numbers(rows, length, C),)
    run(name, layer, given, cache=cache)
    return cache


def numbers(*shape, **made):
    return torch.randn(*shape, **made)


def true(*shape):
    return torch.ones(*shape, dtype=torch.bool)


@given(
    name=st.sampled_from(WIDTHS),
    d_model=st.integers(1, 24),
    n_heads=wholes,
    n_kv_heads=wholes,
    head_dim=st.none() | wholes,
    theta=thetas,
)
def test_a_layer_is_built_if_and_only_if_its_sizes_fit(
    name, d_model, n_heads, n_kv_heads, head_dim, theta
):
    sizes = VARIANTS[name].sizes | {"d_model": d_model, "n_heads": n_heads}
    sizes["head_dim"], wrong = head_dim, []
    if "n_kv_heads" in sizes:
        sizes["n_kv_heads"] = n_kv_heads
        if n_heads % n_kv_heads:
            wrong.append(f"{n_kv_heads=} does not divide {n_heads=}")
    if head_dim is None and d_model % n_heads:
        wrong.append(f"{n_heads=} does not divide {d_model=}; pass head_dim")
    if takes(name, "rope"):
        sizes["rope"] = theta and Rope(theta)
        D = head_dim or d_model // n_heads
        if theta and D % 2:
            wrong.append(f"head_dim={D} is odd")
    if wrong:
        with pytest.raises(ValueError, match="|".join(wrong)):
            VARIANTS[name].layer(**sizes)
    else:
        given = (numbers(B, T, d_model),)
        if takes(name, "context"):
            given += (numbers(B, S, C),)
        out = VARIANTS[name].layer(**sizes)(*given)
        assert out.shape == given[0].shape


@given(
    which=st.sampled_from(SIZES),
    value=st.integers(max_value=0),
)
def test_sizes_are_above_0(which, value):
    name, size = which
    short = size.removeprefix("qk_rope_")
    with pytest.raises(ValueError, match=f"{short}={value} must be at least 1"):
        built(name, **{size: value})


@given(
    which=st.sampled_from(SIZES),
    value=st.floats() | st.booleans() | st.just("6"),
)
def test_sizes_are_whole_numbers(which, value):
    name, size = which
    what, short = type(value).__name__, size.removeprefix("qk_rope_")
    with pytest.raises(TypeError, match=f"{short} is {what}; pass an int"):
        built(name, **{size: value})


@each_of_all
def test_sizes_may_be_whole_numbers_of_numpy(name):
    """Those of 64 bits, which numpy makes: narrower ones would overflow."""
    sizes = {size: numpy.int64(n) for size, n in LAYERS[name].sizes.items()}
    layer, same = built(name, **sizes), built(name)
    make = next(iter(SERVING[name].values()))
    cache = make(numpy.int64(S))
    same.load_state_dict(layer.state_dict())
    given = tuple(t.float() for t in inputs(name))
    with torch.no_grad():
        got = run(name, layer, given, cache=cache)
        assert torch.equal(got, run(name, same, given, cache=make(S)))
    if "crop" in cache.can:
        cache.crop(numpy.int64(2))
        assert type(cache.length) is type(cache.max_len) is int
    with pytest.raises(TypeError, match="d_model is int32; pass an int"):
        built(name, d_model=numpy.int32(E))


@given(
    name=st.sampled_from(ONCE),
    value=st.floats(max_value=-1e-9) | st.floats(min_value=1) | st.just(1),
)
def test_dropout_is_below_1_and_not_below_0(name, value):
    message = f"dropout={value} must be at least 0 and below 1"
    with pytest.raises(ValueError, match=re.escape(message)):
        built(name, dropout=value)


@given(name=st.sampled_from(ONCE), value=st.floats(0, 1, exclude_max=True))
def test_every_dropout_between_is_accepted(name, value):
    assert built(name, dropout=value).dropout == value


@each_layer
def test_nan_is_no_dropout(name):
    with pytest.raises(ValueError, match="dropout=nan must be at least 0"):
        built(name, dropout=torch.nan)


@given(
    name=st.sampled_from(DECODERS),
    value=st.floats(max_value=0) | st.just(torch.nan),
)
def test_theta_is_above_0(name, value):
    message = f"theta={value} must be positive"
    with pytest.raises(ValueError, match=re.escape(message)):
        built(name, rope=Rope(value))
    assert built(name, rope=Rope(0.5)).rope.theta == 0.5


@each_of_all
def test_sizes_are_given_by_name(name):
    with pytest.raises(TypeError, match="positional argument"):
        LAYERS[name].layer(E, H)


@each_layer
def test_what_is_no_function_is_not_called_on_the_heads(name):
    with pytest.raises(TypeError, match=r"^attend='fused' is not callable"):
        built(name, attend="fused")


@pytest.mark.parametrize("option", ["causal", "rope"])
def test_cross_attention_has_no_order_of_positions(option):
    with pytest.raises(TypeError, match=option):
        built("cross", **{option: 1})


CALLS = refused_calls(
    """
    >>> call(x=numbers(T, E))
    ValueError: x has shape (2, 13); it needs 3 axes: batch, positions, width
    >>> call(x=numbers(B, H, T, E))
    ValueError: x has shape (3, 10, 2, 13); it needs 3 axes
    >>> call(x=numbers(B, T, 14))
    ValueError: x has width 14, the layer was built for 13
    >>> call(mask=true(B, 1, 1, T))
    ValueError: mask has shape (3, 1, 1, 2), which does not broadcast to (B, H,
        T, S) = (3, 10, 2, 9)
    >>> call(x=numbers(B, 1, E), mask=true(B, 1, 1, 1))
    ValueError: mask has shape (3, 1, 1, 1) for 8 keys: it must cover every
        key, cached ones included
    >>> call(positions=torch.arange(4))
    ValueError: positions has shape (4,); 3 rows of 2 tokens need (2,) or (3,
        2)
    >>> call(positions=torch.arange(9))
    ValueError: positions has shape (9,); 3 rows of 2 tokens need (2,) or (3,
        2)
    >>> call(positions=torch.zeros(5, T))
    ValueError: positions has shape (5, 2); 3 rows of 2 tokens need (2,) or (3,
        2)
    >>> call(positions=torch.zeros(B, 1, T))
    ValueError: positions has shape (3, 1, 2); 3 rows of 2 tokens need
    >>> call(positions=torch.arange(T, device="meta"))
    ValueError: positions are on meta, q on cpu
    >>> call(positions=true(B, T))
    TypeError: positions are torch.bool; pass real numbers
    """
)


@every_mixer
@torch.no_grad()
def test_a_cache_of_another_kind_is_refused_by_name(name, make):
    layer, given = built(name), tuple(t.float() for t in inputs(name))
    for other in CACHES.values():
        cache = other(S)
        if needs(name) not in cache.can:
            kind = type(cache).__name__
            with refused(f"{kind} cannot", cache, error=TypeError):
                run(name, layer, given, cache=cache)
    rows = make(S)
    run(name, layer, given, cache=rows)
    with refused("the cache ", rows):
        run(name, layer, tuple(t[:2, :T] for t in given), cache=rows)


@every_mixer
@torch.no_grad()
def test_tokens_of_another_width_or_of_no_batch_are_refused(name, make):
    """By every mixer, also those that are no attention."""
    layer, cache = built(name), make(S)
    for shape in ((T, E), (B, 1, T, E)):
        with refused(f"x has shape {shape}; it needs 3 axes", cache):
            layer(numbers(*shape), cache=cache)
    with refused("x has width 14, the layer was built for 13", cache):
        layer(numbers(B, T, 14), cache=cache)


@pairs(DECODERS)
@torch.no_grad()
def test_refused_calls_leave_the_cache_alone(name, make):
    layer, cache = built(name, rope=Rope(100.0)), after(make, name)

    def call(**options):
        options = VARIANTS[name].forward | options
        return layer(**{"x": numbers(B, T, E), "cache": cache} | options)

    for text, error, message in CALLS:
        with unchanged(cache), pytest.raises(error, match=message):
            eval(text)
    for mask, error, says in wrong_masks(B, H, T, PAST + T).values():
        with refused(says, cache, error=error):
            call(mask=mask)
    call()
    assert cache.length == PAST + T


@each_decoder
@torch.no_grad()
def test_positions_need_rope(name):
    layer, cache = built(name, rope=None), after(KVCache, name)
    for given_ in (None, cache):
        with refused("rope is None", cache):
            layer(numbers(B, T, E), cache=given_, positions=torch.arange(T))


def strangers(name):
    """Layers whose cache may be another: of other kinds, of other sizes."""
    yield from ((theirs, built(theirs)) for theirs in DECODERS)
    for size, number in VARIANTS[name].sizes.items():
        yield name, built(name, **{size: 2 * number})
    yield name, built(name).double()


@pairs(DECODERS)
@torch.no_grad()
def test_the_cache_of_another_layer_is_refused(name, make):
    """Unless it holds what this layer would have stored itself."""
    own = [(t.shape, t.dtype) for t in after(make, name).stored]
    layer, accepted, declined = built(name), 0, 0
    caches = [
        after(make, theirs, other)
        for theirs, other in strangers(name)
        if make(PAST).keeps.covers(rule(other))
    ]
    for cache in (*caches, after(make, name, rows=5), filled(make, D, D, D)):
        if [(t.shape, t.dtype) for t in cache.stored] == own:
            accepted += 1
            run(name, layer, (numbers(B, T, E),), cache=cache)
            continue
        declined += 1
        with refused("the cache holds ", cache):
            run(name, layer, (numbers(B, T, E),), cache=cache)
    assert accepted >= 2 and declined >= 4


@each_decoder
@torch.no_grad()
def test_a_full_cache_is_refused(name):
    for past, says in (
        (6, "6 stored and 2 new make 8 > max_len=7"),
        (7, "7 stored and 2 new make 9 > max_len=7"),
    ):
        cache = after(KVCache, name, length=past, max_len=7)
        with refused(says, cache):
            run(name, built(name), (numbers(B, T, E),), cache=cache)


@every_mixer
def test_training_with_a_cache_is_refused(name, make):
    with torch.no_grad():
        filled, empty = after(make, name), make(S)
    given = tuple(t.float() for t in inputs(name))
    with refused("a cache keeps no gradients", empty):
        run(name, built(name), given, cache=empty)
    if not takes(name, "context"):
        with refused("a cache keeps no gradients", filled):
            run(name, built(name), (given[0][:, :T],), cache=filled)


def cross(x=(B, T, E), context=(B, S, C), **options):
    context = None if context is None else numbers(*context)
    return built("cross")(numbers(*x), context, **options)


@each_cache_of("cross", None)
@refusals(
    """
    >>> cross(context=(S, C), cache=cache)
    ValueError: context has shape (11, 17); it needs 3 axes: batch, positions,
        width
    >>> cross(context=(B, S, E), cache=cache)
    ValueError: context has width 13, the layer was built for 17
    >>> cross(context=(5, S, C), cache=cache)
    ValueError: x has B=3, context has B=5
    >>> cross(context=None, cache=cache)
    ValueError: context is None and no filled cache is given
    >>> cross((T, E), cache=cache)
    ValueError: x has shape (2, 13); it needs 3 axes
    >>> cross((B, T, C), cache=cache)
    ValueError: x has width 17, the layer was built for 13
    >>> cross(mask=true(T, T), cache=cache)
    ValueError: mask has shape (2, 2), which does not broadcast to
    >>> cross(mask=true(B, 1, T, 1), cache=cache)
    ValueError: mask has shape (3, 1, 2, 1) for 11 keys
    """
)
@torch.no_grad()
def test_a_context_that_does_not_fit_fills_no_cache(make, call, error, message):
    cache = make and make(S)
    with pytest.raises(error, match=message):
        eval(call)
    assert cache is None or cache.nbytes == 0


@each_cache_of("cross")
@refusals(
    """
    >>> cross(cache=cache)
    ValueError: the cache already holds a context of 7 tokens: pass no context
    >>> cross((5, T, E), None, cache=cache)
    ValueError: the cache holds tensors of shapes [(3, 5, 7, 4), (3, 5, 7, 4)];
        expected two of (5, 5, 7, 4)
    >>> cross((B, T, C), None, cache=cache)
    ValueError: x has width 17
    """
)
@torch.no_grad()
def test_a_refused_reading_leaves_the_context_alone(make, call, error, message):
    cache = after(make, "cross")
    with unchanged(cache), pytest.raises(error, match=message):
        eval(call)


@each_cache_of("cross")
@torch.no_grad()
def test_masks_that_do_not_fit_a_context_are_refused(make):
    for context, keys, cache in (
        ((B, S, C), S, make(S)),
        (None, PAST, after(make, "cross")),
    ):
        for mask, error, says in wrong_masks(B, H, T, keys).values():
            with refused(says, cache, error=error):
                cross(context=context, mask=mask, cache=cache)


@each_cache_of("cross")
@refusals(
    """
    >>> filled(make, 16, K=1)
    ValueError: of shapes [(3, 1, 7, 16)]; expected two of (3, 5, 7, 4)
    >>> filled(make, D, D, D)
    ValueError: (3, 5, 7, 4), (3, 5, 7, 4), (3, 5, 7, 4)]; expected two of
        (3, 5, 7, 4)
    >>> filled(make, D, D, K=H)
    ValueError: [(3, 10, 7, 4), (3, 10, 7, 4)]; expected two of (3, 5, 7, 4)
    >>> filled(make, D, 10)
    ValueError: [(3, 5, 7, 4), (3, 5, 7, 10)]; expected two of (3, 5, 7, 4)
    >>> filled(make, D, D, dtype=torch.float64)
    TypeError: is torch.float64
    """
)
@torch.no_grad()
def test_a_context_that_another_layer_stored_is_refused(
    make, call, error, message
):
    cache = eval(call)
    with unchanged(cache), pytest.raises(error, match=message):
        cross(context=None, cache=cache)


@torch.no_grad()
def test_a_context_larger_than_the_cache_is_refused():
    cache = KVCache(max_len=10)
    with refused("0 stored and 11 new make 11 > max_len=10", cache):
        cross(cache=cache)


@each_cache_of("cross")
@torch.no_grad()
def test_a_context_of_no_tokens_is_a_context(make):
    """It fills the cache: later calls pass none, and read nothing."""
    cache, layer, x = make(S), built("cross"), numbers(B, T, E)
    got = [layer(x, numbers(B, 0, C), cache=cache), layer(x, cache=cache)]
    assert all(torch.equal(out, torch.zeros(B, T, E)) for out in got)
    with refused("the cache already holds a context of 0 tokens", cache):
        layer(x, numbers(B, S, C), cache=cache)
    cache.reset()
    layer(x, numbers(B, S, C), cache=cache)
    assert cache.length == S


@each_cache_of("cross")
@torch.no_grad()
def test_cross_attention_takes_no_positions(make):
    cache = make(S)
    with refused("positions", cache, error=TypeError):
        cross(cache=cache, positions=torch.arange(T))


NO_CACHES = {
    "a list": ([KVCache(9)], "cache is list; pass one cache, such as KVCache("),
    "a class": (KVCache, "cache is the class KVCache; pass one cache, such as"),
    "of transformers": (DynamicCache(), "cache is DynamicCache; pass one"),
    "its size": (9, "cache is int; pass one cache"),
    "yes": (True, "cache is bool; pass one cache"),
}


@pytest.mark.parametrize(("cache", "says"), NO_CACHES.values(), ids=NO_CACHES)
@torch.no_grad()
def test_what_is_no_cache_is_refused(cache, says):
    for name in LAYERS:
        given = tuple(t.float() for t in inputs(name))
        with pytest.raises(TypeError, match=re.escape(says)):
            run(name, built(name), given, cache=cache)
    decoder = Decoder([torch.nn.Identity()], n_tokens=5, d_model=E)
    with pytest.raises(TypeError, match=re.escape(says)):
        decoder(torch.zeros(B, T, dtype=torch.int64), caches=[cache])
    if not isinstance(cache, list):
        with pytest.raises(TypeError, match=r"caches is .*; pass a list of"):
            decoder(torch.zeros(B, T, dtype=torch.int64), caches=cache)
