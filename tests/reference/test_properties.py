"""What holds of every mixer, of all attention and of every cache.

Which layers and caches there are, and what each offers, is found: see
`tests/variants.py`.
"""

import inspect
from importlib import import_module
from itertools import product

import pytest
import torch
from torch import nn
from torch.export import Dim

import attnref
from attnref import (
    Block,
    Cache,
    Causal,
    Decoder,
    Documents,
    KVCache,
    Prefix,
    Rope,
    StateCache,
    Window,
    fused,
    token_positions,
)
from attnref.judge import properties
from attnref.numbers.kv_memory import DTYPES, group_bytes
from sitekit import ROOT, api
from tests.cores import ATTEND, CORES
from tests.kit import sampled
from tests.kit.compare import relative_error
from tests.kit.layers import (
    B,
    C,
    D,
    E,
    H,
    K,
    S,
    T,
    sharp,
    tokens,
)
from tests.variants import (
    CACHES,
    DECODERS,
    LAYERS,
    MIXERS,
    READERS,
    SERVING,
    VARIANTS,
    built,
    each_core_in_a_layer,
    each_decoder,
    each_layer,
    each_mixer,
    each_variant,
    every_mixer,
    every_pair,
    inputs,
    needs,
    once,
    pairs,
    rule,
    run,
    seen,
    takes,
    variant,
)

CHUNKS = [(1,) * T, (2, 2, 0, 2, 1), (5, 2), (3, 1, 3)]


def counted(core):
    """The core, and what it was told each time that it was called."""
    calls = []

    def attend(*given, **options):
        calls.append(options)
        return core(*given, **options)

    return attend, calls


def public(kind):
    """The classes of attnref that are of a kind, by name."""
    everything = {name: getattr(attnref, name) for name in attnref.__all__}
    return {
        name: value
        for name, value in everything.items()
        if isinstance(value, type) and issubclass(value, kind)
    }


@pytest.mark.whole
def test_every_layer_core_and_cache_is_under_the_properties():
    named = {v.layer.__name__ for v in LAYERS.values()}
    lack = {
        kind.__name__
        for path in (ROOT / "attnref" / "layers").glob("*.py")
        for kind in vars(import_module(f"attnref.layers.{path.stem}")).values()
        if isinstance(kind, type)
        and issubclass(kind, nn.Module)
        and "cache" in kind.forward.__annotations__
    } - {*named, "Block"}
    assert not lack, f"no VARIANT in the test file of {sorted(lack)}"
    made = {type(make(T)).__name__ for make in CACHES.values()}
    lack = {*public(Cache)} - {"Cache"} - made
    assert not lack, f"no CACHES in the test file of {sorted(lack)}"
    signatures = {
        name: inspect.signature(getattr(attnref, name))
        for name in {*attnref.__all__} - {*public(object)}
    }
    wanted = {"q", "k", "v", "mask", "scale", "dropout"}
    public_cores = {
        name
        for name, signature in signatures.items()
        if signature.parameters.keys() >= wanted
        and signature.return_annotation is torch.Tensor
    }
    cores = {
        core.function.__name__
        for core in CORES.values()
        if not core.internal and core.package == "torch"
    }
    lack = public_cores - cores
    assert not lack, f"no CORE in the test file of {sorted(lack)}"
    lack = cores - public_cores
    assert not lack, f"{sorted(lack)} are not public; or declare `internal`"
    unused = {*CACHES}.difference(*SERVING.values())
    unused -= {
        "ring"
    }  # keeps a window: caches/test_ring.py has layers with one
    assert not unused, f"no layer of VARIANTS needs so little as {unused} keep"


@pytest.mark.whole
@pytest.mark.parametrize("name", once(LAYERS))
def test_every_layer_has_a_page_or_says_that_it_has_none(name):
    stem = inspect.getmodule(LAYERS[name].layer).__name__.rpartition(".")[2]
    place = named = LAYERS[name].page
    if isinstance(named, bool):
        place = f"layers/{stem.replace('_', '-')}"
    page = ROOT / f"docs/en/{place}.md"
    assert page.exists() == bool(named), (
        f"{page.relative_to(ROOT)}: write it, or say page=False in VARIANT"
    )


@pytest.mark.whole
def test_what_make_new_leaves_to_be_decided_is_decided():
    left = [
        f"{path.relative_to(ROOT)}:{n}: {line.strip()}"
        for place in ("attnref", "tests")
        for path in sorted((ROOT / place).rglob("*.py"))
        for n, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if line.strip().startswith(("# TODO:", '"""TODO:'))
    ]
    assert not left, "\n".join(left)


@pytest.mark.whole
@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_public_name_is_on_a_page_of_the_api(language):
    shown = api.places(language)
    for name in attnref.__all__:
        place = f"{getattr(attnref, name).__module__}.{name}"
        assert shown.count(place) == 1, (
            f"the pages docs/{language}/api/ have {place} in "
            f"{shown.count(place)} lines `::: module: name, name`; it needs "
            "one, as attnref.__all__ has the name"
        )


@pytest.mark.parametrize(
    "name", [name for name, v in VARIANTS.items() if v.kv_heads]
)
def test_the_weights_of_these_tests_are_sharp(name):
    layer, x = variant(name), tokens()
    q, k = (
        p(x).unflatten(2, (-1, D)).transpose(1, 2)
        for p in (layer.q_proj, layer.k_proj)
    )
    weights = attnref.attention_weights(q, k, attnref.causal_mask(T))
    assert weights.max() > 0.99
    assert weights[:, :, 1:].amax(-1).median() > 0.6


@every_mixer
@torch.no_grad()
def test_what_is_asked_of_other_code_holds(name, make):
    """The properties of `attnref check` that concern any layer."""
    for options in LAYERS[name].options:
        layer, (x, *context) = variant(name, **options), inputs(name)

        def call(x, cache=None, layer=layer, context=context, **more):
            return run(name, layer, (x, *context), cache=cache, **more)

        def of_rows(*given, layer=layer):
            return run(name, layer, given)

        properties.rows_are_apart(of_rows, x, *context)
        if context:
            continue
        properties.future_is_hidden(call, x)
        properties.decoding_is_the_full_pass(call, lambda: make(T), x)
        properties.sequences_are_apart(call, lambda: make(T), x)
        properties.pads_are_unseen(lambda x, valid: call(x, valid=valid), x)
        if getattr(layer, "rope", None) is not None:
            properties.distances_alone_count(
                lambda x, at: call(x, positions=at), x
            )


@every_mixer
@torch.no_grad()
def test_cached_in_any_chunks_it_is_one_full_pass(name, make):
    for options in LAYERS[name].options:
        layer, given = variant(name, **options), inputs(name)
        want = run(name, layer, given)
        for chunks in CHUNKS:
            cache = make(S)
            got = run(name, layer, given, chunks, cache)
            assert relative_error(got, want) <= 1e-12, (options, chunks)
            assert cache.length == (S if takes(name, "context") else T)


@pairs([name for name in MIXERS if needs(name) == "state"])
@torch.no_grad()
def test_a_state_passes_the_chunks_that_a_layer_computes_in(name, make):
    """Of a text longer than these, which one token after the other has none."""
    length = 131
    valid = torch.arange(length) % torch.tensor([[200], [7], [2]]) != 1
    for options in LAYERS[name].options:
        layer, given = variant(name, **options), inputs(name, length)
        for real in (None, valid):
            want = run(name, layer, given, valid=real)
            got = run(name, layer, given, (1,) * length, make(length), real)
            assert relative_error(got, want) <= 1e-12, options


@every_mixer
@torch.no_grad()
def test_what_follows_a_snapshot_is_as_if_it_had_not_been_read(name, make):
    """A draft that is rejected, twice; rows that go on are those alone."""
    layer, (x, *context) = variant(name), inputs(name)
    want = run(name, layer, (x, *context))
    cache = make(S)
    run(name, layer, (x[:, :3], *context), cache=cache)
    before = cache.snapshot()
    for part in (x[:, 3:], x[:, 3:4]):
        run(name, layer, (tokens(B, 2, E),), cache=cache)  # the draft
        cache.restore(before)
        got = run(name, layer, (part,), cache=cache)
        end = 3 + part.shape[1]
        assert relative_error(got, want[:, 3:end]) <= 1e-12
    rows = torch.tensor([2, 0, 2])
    cache.reorder(rows)
    got = run(name, layer, (x[rows, 4:],), (1, 2), cache)
    assert relative_error(got, want[rows, 4:]) <= 1e-12


@every_mixer
@torch.no_grad()
def test_a_padded_row_is_the_row_alone(name, make):
    """With pads before it, or amid its tokens, as those behind a prompt are."""
    n = S if takes(name, "context") else T
    before = torch.arange(n) >= torch.tensor([[0], [3], [1]])
    amid = torch.ones(B, n, dtype=torch.bool)
    amid[1, 3:5] = amid[2, 1:6:2] = False
    for options in LAYERS[name].options:
        layer, (x, *context) = variant(name, **options), inputs(name)
        sees = seen(rule(layer), n)
        turned = getattr(layer, "rope", None) is not None
        for valid, counted in ((before, True), (before, False), (amid, True)):
            # RoPE sees distances alone, which pads before do not change.
            positions = token_positions(valid) if turned and counted else None
            for chunks in (None, (5, 1, 1), (1, 2, 4)):
                cache = None if chunks is None else make(S)
                how = (chunks, cache, valid, positions)
                got = run(name, layer, (x, *context), *how)
                for row, real in enumerate(valid):
                    # A layer has its pads where its keys are.
                    *queries, keys = (t[row : row + 1] for t in (x, *context))
                    alone, mine = (*queries, keys[:, real]), got[row : row + 1]
                    if context:
                        want = run(name, layer, alone)
                    else:
                        # Pads take places: by its rule, a token may see fewer
                        # of the row for them, which the row alone is told, or
                        # some that alone it would not.
                        sight = sees[real][:, real]
                        fair = (sight <= seen(rule(layer), len(sight))).all(1)
                        assert fair.sum() > 1, "hardly a token is compared"
                        more = {"mask": sight} if name in VARIANTS else {}
                        want = run(name, layer, alone, **more)[:, fair]
                        mine = mine[:, real][:, fair]
                    error = relative_error(mine, want)
                    assert error <= 1e-12, (options, row, chunks)


@each_decoder
@torch.no_grad()
def test_positions_are_counted_from_0_and_follow_the_cache(name):
    """Told for some of the chunks only, they are what the others assume."""
    for options in VARIANTS[name].options:
        layer, x = variant(name, **options), tokens()
        if getattr(layer, "rope", None) is None:
            continue
        want, at = run(name, layer, (x,)), torch.arange(T)
        cache, got = CACHES["room"](T), []
        for part, places in ((x[:, :2], None), (x[:, 2:], at[2:])):
            more = VARIANTS[name].forward | {"positions": places}
            got.append(layer(part, cache=cache, **more))
        assert relative_error(torch.cat(got, dim=1), want) <= 1e-12
        spread = run(name, layer, (x,), positions=3 * at)
        assert relative_error(spread, want) > 1e-3


def causal_or_not(name):
    """The layer, and that of an encoder where it can be: what each sees."""
    for encoder in (False, True) if name in VARIANTS else (False,):
        layer = variant(name, **{"causal": False} if encoder else {})
        sees = seen(rule(layer), T)
        assert sees.all() if encoder else not sees.triu(1).any()
        yield layer, sees, encoder


@pairs(MIXERS)
@torch.no_grad()
def test_a_token_reaches_those_that_see_it_and_no_other(name, make):
    """None before it, unless the layer is an encoder's: then everyone."""
    for layer, sees, encoder in causal_or_not(name):
        x = tokens()
        # In chunks, nobody sees what comes in a later one.
        for chunks in (None,) if encoder else (None, (3, 4)):
            before = run(name, layer, (x,), chunks, chunks and make(T))
            for j in range(T):
                changed = x.clone()
                changed[:, j] += 1
                after = run(name, layer, (changed,), chunks, chunks and make(T))
                moved = (before - after).abs().amax((0, 2))
                assert (moved[~sees[:, j]] == 0).all()
                assert (moved[sees[:, j]] > 1e-9).all()
                assert moved[j] > 0.01


@every_pair
@each_core_in_a_layer
@pytest.mark.parametrize("every", sampled([False, True], [False]))
def test_with_every_core_it_is_the_layer_with_sdpa(name, make, core, every):
    """In any chunks, under masks, with positions, and in its gradients."""
    n = S if takes(name, "context") else T
    valid = torch.arange(n) >= torch.tensor([[0], [3], [1]])
    valid[2, 4] = False
    ruled = [{}]
    if takes(name, "causal"):
        ruled += [{"causal": False}] if make is CACHES["growing"] else []
        ids = torch.tensor([0, 0, 1, 1, 1, 1, 2]).repeat(B, 1)
        rows = Prefix(torch.tensor([3, 0, 1])) & Documents(ids.clamp(max=1))
        ruled += [{"causal": Window(3) & rows}]
    ways = list(product(VARIANTS[name].options, ruled))
    ways = ways if every else ways[:: len(ways) - 1]  # the first and the last
    learns = CORES[core].offers("gradients")
    for options, causal in ways if learns else ways[-1:]:
        layer, given = variant(name, **options | causal), inputs(name)
        turned = getattr(layer, "rope", None) is not None
        at = token_positions(valid) if turned and n == T else None

        def outputs(given=given, at=at, layer=layer):
            if not learns:
                with torch.no_grad():
                    yield run(name, layer, given)
                    yield run(name, layer, given, (5, 2), make(n), valid, at)
                return
            for args in ((None, None), (valid, at)):
                x = tuple(t.clone().requires_grad_() for t in given)
                layer.zero_grad()
                full = run(name, layer, x, None, None, *args)
                full.square().sum().backward()
                yield full
                yield torch.cat([t.grad.flatten() for t in x])
                # In one: without RoPE, that of a key's bias is zero.
                grads = (p.grad for p in layer.parameters())
                yield torch.cat([g.flatten() for g in grads if g is not None])
                for chunks in CHUNKS[1:]:
                    with torch.no_grad():
                        yield run(name, layer, given, chunks, make(n), *args)

        layer.attend = attnref.sdpa
        want = [*outputs()]
        layer.attend, calls = counted(ATTEND[core])
        got = [*outputs()]
        assert calls
        for ours, theirs in zip(got, want, strict=True):
            assert relative_error(ours, theirs) <= 1e-12, options | causal


@each_layer
@each_core_in_a_layer
@torch.no_grad()
def test_the_core_that_is_called_is_the_one_it_was_built_with(name, core):
    attend, calls = counted(ATTEND[core])
    layer = variant(name, attend=attend, dropout=0.5)
    assert layer.attend is attend
    run(name, layer, inputs(name))
    assert [options["dropout"] for options in calls] == [0.0]
    if CORES[core].offers("dropout"):
        run(name, layer.train(), inputs(name))
    else:
        with pytest.raises(ValueError, match=CORES[core].lacks["dropout"]):
            run(name, layer.train(), inputs(name))
    assert [options["dropout"] for options in calls] == [0.0, 0.5]
    assert built(name).attend is attnref.sdpa


@pairs(DECODERS)
@torch.no_grad()
def test_a_layer_with_a_rule_is_one_with_that_mask(name, make):
    """In one pass and in chunks, the prefix in the first."""
    if not takes(name, "causal"):
        return
    ids = torch.tensor([[0, 0, 0, 1, 1, 1, 1], [0] * 6 + [1], [0, 1] * 3 + [0]])
    lengths = torch.tensor([2, 0, 3])
    at, x = torch.arange(T), tokens()
    before = at <= at[:, None]
    prefix = at < lengths[:, None, None, None]
    same = (ids[:, :, None] == ids[:, None])[:, None]
    for causal, mask in (
        (Window(3), before.triu(-2)),
        (Prefix(3), before | (at < 3)),
        (Prefix(lengths), before | prefix),
        (Causal() & Documents(ids), before & same),
        (Documents(ids[0]) & Window(2), (before & same[0, 0]).triu(-1)),
        (Prefix(lengths) & Documents(ids), (before | prefix) & same),
    ):
        options = {"rope": Rope(100.0)} if takes(name, "rope") else {}
        layer = variant(name, causal=causal, **options)
        plain = built(name, causal=False, **options).double().eval()
        plain.load_state_dict(layer.state_dict())
        want = plain(x, mask=mask, **VARIANTS[name].forward)
        for chunks in (None, (3, 1, 3), (4, 2, 1)):
            got = run(name, layer, (x,), chunks, chunks and make(T))
            assert relative_error(got, want) <= 1e-12, (causal, chunks)


@pairs([name for name in MIXERS if takes(name, "causal")])
@torch.no_grad()
def test_packed_documents_are_those_documents_alone(name, make):
    """With pads between and within them, and chunks that end in them."""
    ids = torch.tensor([[0, 0, 0, 1, 1, 1, 1], [0, 1, 1, 2, 2, 4, 4], [7] * T])
    valid = torch.ones(B, T, dtype=torch.bool)
    amid = valid.clone()
    amid[0, 2:4] = amid[1, 1] = amid[1, 6] = amid[2, :3] = False
    layer = variant(name, causal=Causal() & Documents(ids))
    plain, x = variant(name), tokens()
    plain.load_state_dict(layer.state_dict())
    for real in (valid, amid):
        for chunks in (None, (1,) * T, (4, 2, 1)):
            got = run(name, layer, (x,), chunks, chunks and make(T), real)
            for row, document in {*product(range(B), ids.unique().tolist())}:
                own = real[row] & (ids[row] == document)
                want = run(name, plain, (x[row : row + 1, own],))
                error = relative_error(got[row : row + 1, own], want)
                assert error <= 1e-12, (row, document, chunks)


@each_layer
@torch.no_grad()
def test_where_nothing_has_a_position_keys_may_change_places(name):
    """For a token that sees both, or neither."""
    if takes(name, "context"):
        layer, (x, context) = variant(name), inputs(name)
        moved = context[:, torch.randperm(S)]
        assert relative_error(layer(x, moved), layer(x, context)) <= 1e-12
        return
    x, more = tokens(), VARIANTS[name].forward
    swap = torch.tensor([1, 0, *range(2, T)])
    for layer, sees, encoder in causal_or_not(name):
        alike = (sees[:, swap] == sees[swap]).all(1)
        far = ~sees[:, :2].any(1)  # from both
        assert alike.all() if encoder else alike.any()
        for rope, same in ((None, alike), (Rope(100.0), far)):
            layer.rope = rope
            got, want = layer(x[:, swap], **more), layer(x, **more)[:, swap]
            error = (got - want).abs().amax((0, 2)) / want.abs().max()
            assert torch.equal(error <= 1e-12, same), rope


@each_mixer
def test_gradients_reach_every_parameter_and_are_right(name):
    """Those of what it reads, too."""
    for options in LAYERS[name].options:
        layer, given = variant(name, **options), inputs(name, 3, 1)
        run(name, layer, given).square().sum().backward()
        named = dict(layer.named_parameters())
        for place, p in named.items():
            # Without RoPE, a key's bias moves all scores of a row alike.
            moot = place == "k_proj.bias" and not getattr(layer, "rope", None)
            if place.startswith(LAYERS[name].choosing):
                assert p.grad is None, (options, place)
                continue
            assert moot or p.grad.abs().max() > 1e-6, (options, place)

        def call(*values, layer=layer, given=given, named=named):
            n = len(given)
            weights = dict(zip(named, values[n:], strict=True))
            return torch.func.functional_call(
                layer, weights, values[:n], LAYERS[name].forward
            )

        leaves = [
            p.detach().requires_grad_() for p in (*given, *named.values())
        ]
        assert torch.autograd.gradcheck(call, leaves, fast_mode=True), options


@each_variant
@torch.no_grad()
def test_in_training_alone_weights_are_dropped(name):
    layer, leaky = variant(name), built(name, dropout=0.5).double()
    leaky.load_state_dict(layer.state_dict())
    given = inputs(name)
    assert torch.equal(run(name, leaky.eval(), given), run(name, layer, given))
    one, two = (run(name, leaky.train(), given) for _ in range(2))
    assert relative_error(one, two) > 0.01


@every_mixer
@torch.no_grad()
def test_autocast_warns_of_nothing_and_caches_half_precision(name, make):
    """But a state, which many tokens are added to, in float32. rms_norm has a
    warning for two dtypes, and the suite makes errors of warnings."""
    for options in LAYERS[name].options:
        layer = variant(name, **options).float()
        given, cache = tuple(t.float() for t in inputs(name)), make(S)
        want = run(name, layer, given)
        place = f"{LAYERS[name].layer.__name__} with {options}, autocast"
        try:
            with torch.autocast("cpu", torch.bfloat16):
                got = run(name, layer, given, (5, 1, 1), cache)
        except (UserWarning, RuntimeError) as error:
            norms = [
                part
                for part, module in layer.named_modules()
                if isinstance(module, nn.RMSNorm)
            ]
            pytest.fail(
                f"{place}: {error}\nLinear layers give bfloat16 there, and "
                f"weights stay float32. The norms {norms} have to compute in "
                "the dtype of their weight and give that of their input: "
                "`self.norm(x.to(self.norm.weight.dtype)).to(x.dtype)`, as "
                "the norms of attnref/layers/mla.py do"
            )
        dtypes = [t.dtype for t in cache.stored]
        wide = [store.role == "state" for store in stores(name)]
        half = {False: torch.bfloat16, True: torch.float32}
        assert dtypes == [half[each] for each in wide] or (
            not any(wide) and {*dtypes} == {torch.bfloat16}
        ), (
            f"{place}: the cache stores {dtypes}; append what the projections "
            "give, bfloat16, and convert after a norm or RoPE with "
            ".to(x.dtype); a state is float32"
        )
        if LAYERS[name].choosing:  # most tokens choose the same keys
            off = (got - want).abs().amax(dim=-1) / want.abs().max()
            assert 0 < off.median() < 0.05, place
            continue
        assert 0 < relative_error(got, want) < 0.2, place


def stores(name):
    return LAYERS[name].group.stores


@every_mixer
@torch.no_grad()
def test_the_bytes_of_its_cache_are_those_predicted(name, make):
    """On the meta device too, where nothing is computed."""
    n = S if takes(name, "context") else T
    options = {"valid": torch.ones(B, n, dtype=torch.bool)}
    if takes(name, "rope"):
        options["positions"] = torch.arange(T)
    for dtype, kind, device in (
        ("fp32", torch.float32, "cpu"),
        ("bf16", torch.bfloat16, "cpu"),
        ("fp16", torch.float16, "cpu"),
        ("bf16", torch.bfloat16, "meta"),
    ):
        if any(s.fixed for s in stores(name)) and dtype == "fp32":
            continue  # the inputs of a convolution are counted in 16 bits
        layer = built(name, **LAYERS[name].options[-1]).to(device, kind)
        given = (t.to(device, kind) for t in inputs(name))
        there = {word: t.to(device) for word, t in options.items()}
        cache = make(n)
        # A cache may keep more tokens than the layer needs: all, say.
        stored = needed = 1
        if needs(name) == "append":
            stored, needed = (
                int(seen(each, n).sum(1).max())
                for each in (cache.keeps, rule(layer))
            )
        got = run(name, layer, tuple(given), (5, 2), cache, **there)
        assert got.shape == (B, T, E)
        assert (got.dtype, got.device.type) == (kind, device)
        want = B * group_bytes(LAYERS[name].group, n, DTYPES[dtype])
        assert cache.nbytes * needed == want * stored, (
            f"{name} in {dtype} on {device} stores {cache.nbytes} bytes for "
            f"{stored} of {n} tokens, and `group=` of its VARIANT says "
            f"{want * stored // needed}"
        )


# Those that are compiled whole: the tiles of `flash` are chosen by values.
COMPILED = {"sdpa": attnref.sdpa, "fused": fused}


ALL = once(LAYERS)


def each_compiled_core(core):
    """Compiling takes seconds: in `make test`, the layer of the most parts
    with this core; in `make audit`, all layers with each."""
    all_layers = (
        pytest.param(attend, ALL, id=name, marks=pytest.mark.audit)
        for name, attend in COMPILED.items()
    )
    states = [name for name in ALL if needs(name) == "state"]
    one = pytest.param(COMPILED[core], ["mla expanded", *states], id="one")
    return pytest.mark.parametrize(("attend", "names"), [one, *all_layers])


def at_once(attend, names=ALL):
    """A decoder in which every layer that can has a block."""
    given = {"rope": Rope(100.0), "attend": attend}
    blocks = []
    for name in names:
        options = {word: it for word, it in given.items() if takes(name, word)}
        if not takes(name, "context"):
            blocks.append(Block(built(name, **options), d_model=E, d_ff=19))
    return sharp(Decoder(blocks, n_tokens=31, d_model=E))


def fresh_caches(decoder):
    for block in decoder.layers:
        needs_state = getattr(block.self_attn, "needs", "append") == "state"
        yield StateCache() if needs_state else KVCache(32)


@each_compiled_core("sdpa")
def test_ten_requests_with_fresh_caches_take_two_graphs(attend, names):
    decoder, prompt = at_once(attend, names), torch.randint(31, (B, 9))
    torch.compiler.reset()
    graphs = []

    def counted(graph, inputs):
        graphs.append(graph)  # a backend that runs each graph as it is
        return graph.forward

    compiled = torch.compile(decoder, fullgraph=True, backend=counted)

    def request(*sizes):
        fresh = [*fresh_caches(decoder)]
        parts = prompt[:, : sum(sizes)].split(sizes, dim=1)
        with torch.no_grad():
            scores = [compiled(part, caches=fresh) for part in parts]
            want = decoder(prompt[:, : sum(sizes)])
        assert relative_error(torch.cat(scores, dim=1), want) <= 1e-12

    def with_and_without_masks(*lengths):
        """How often one token is read in ways of their own: where a rule does
        not hide anything yet, there is no mask."""
        rules = [rule(block.self_attn) for block in decoder.layers]
        return len(
            {tuple(r.hides_nothing(1, n) for r in rules) for n in lengths}
        )

    for _ in range(10):  # each with caches of its own
        request(5, 1, 1, 1)
    # One reads a prompt, the other a token.
    assert len(graphs) == 1 + with_and_without_masks(6, 7, 8)
    for length in (7, 3, 6):
        request(length, 1)
    # One more for prompts of any length.
    assert len(graphs) == 2 + with_and_without_masks(6, 7, 8, 4)


@pytest.mark.audit
@pytest.mark.parametrize("attend", COMPILED.values(), ids=COMPILED)
def test_all_layers_compile_for_any_length(attend):
    """Together, those without a context; then each of the others.

    Up to rounding: `sdpa` orders its products by the length, a graph of any
    length above 1 does not.
    """
    valid = torch.arange(9) < torch.tensor([[3], [9], [5]])
    masked = {"mask": attnref.padding_mask(valid)}
    calls = (
        (5, {"positions": torch.arange(5)}),
        (7, {"positions": torch.arange(7)}),  # the length becomes a symbol
        (9, masked | {"positions": token_positions(valid)}),
    )
    torch.compiler.reset()
    decoder = at_once(attend)
    compiled = torch.compile(decoder, fullgraph=True, backend="eager")
    for length, options in calls:
        ids = torch.randint(31, (B, length))
        got, want = compiled(ids, **options), decoder(ids, **options)
        assert relative_error(got, want) <= 1e-14
    for name in READERS:
        layer = variant(name, attend=attend)
        compiled = torch.compile(layer, fullgraph=True, backend="eager")
        for length, options in ((5, {}), (7, {}), (9, masked)):
            given = tokens(B, T, E), tokens(B, length, C)
            got, want = compiled(*given, **options), layer(*given, **options)
            assert relative_error(got, want) <= 1e-14


# torch's own scan asks for the .grad of what is no leaf, and uses torch.jit.
@pytest.mark.filterwarnings("ignore:The .grad attribute")
@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")
@each_compiled_core("fused")
def test_all_layers_are_exported_for_any_length(attend, names):
    """But DSA, which chooses keys only where there are more than it reads."""
    chooses = [name for name in names if takes(name, "index_topk")]
    decoder = at_once(attend, [name for name in names if name not in chooses])
    ids = torch.randint(31, (B, 13))
    anyhow = {1: Dim.AUTO}
    exported = torch.export.export(
        decoder, (ids,), dynamic_shapes={"tokens": anyhow}
    ).module()
    for n in (T, 13, 2):
        got, want = exported(ids[:, :n]), decoder(ids[:, :n])
        assert relative_error(got, want) <= 1e-12
    for name in filter(READERS.__contains__, names):
        layer = variant(name, attend=attend)
        x, context = inputs(name)
        exported = torch.export.export(
            layer, (x, context), dynamic_shapes={"x": anyhow, "context": anyhow}
        ).module()
        for n, s in ((T, S), (2, 3), (5, 8)):
            given = x[:, :n], context[:, :s]
            assert relative_error(exported(*given), layer(*given)) <= 1e-12


PROJECTED = [name for name, v in VARIANTS.items() if v.kv_heads]


@pytest.mark.parametrize(
    ("bias", "o_bias", "which"),
    [
        (False, None, ""),
        (True, None, "qkvo"),
        (True, False, "qkv"),
        (False, True, "o"),
    ],
)
@pytest.mark.parametrize("name", PROJECTED)
def test_parameters_are_named_and_shaped_as_in_checkpoints(
    name, bias, o_bias, which
):
    layer = variant(name, bias=bias, o_bias=o_bias)
    inner = VARIANTS[name].kv_heads(H, K) * D
    rows = {"q": H * D, "k": inner, "v": inner, "o": E}
    want = {f"{p}_proj.weight": (n, E) for p, n in rows.items()}
    want["o_proj.weight"] = (E, H * D)
    want |= {f"{p}_proj.bias": (rows[p],) for p in which}
    got = {name: tuple(p.shape) for name, p in layer.state_dict().items()}
    assert got == want


@pytest.mark.parametrize("name", PROJECTED)
def test_a_head_width_of_its_own(name):
    for head_dim, width, want in ((14, E, 14), (None, 7 * H, 7)):
        layer = variant(name, head_dim=head_dim, d_model=width)
        assert layer.q_proj.weight.shape == (H * want, width)
        assert layer(tokens(B, T, width)).shape == (B, T, width)
