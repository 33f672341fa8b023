"""What self-attention does with its heads, beside what all layers must do."""

from collections import Counter

import pytest
import torch

from attnref import (
    Alibi,
    Causal,
    Chunk,
    Documents,
    GroupedQueryAttention,
    GrowingKVCache,
    KVCache,
    MultiHeadLatentAttention,
    Prefix,
    RingKVCache,
    Scores,
    Window,
    attention_from_config,
    file_of,
    padding_mask,
    token_positions,
)
from attnref.core import masks
from attnref.layers.lightning import LightningAttention
from tests.cores import ATTEND
from tests.kit.compare import relative_error
from tests.kit.layers import E, sharp, tokens
from tests.variants import DECODERS, inputs, run, variant

SIZES = {"d_model": 12, "n_heads": 4}
LATENT = {
    "kv_lora_rank": 5,
    "qk_nope_head_dim": 3,
    "qk_rope_head_dim": 2,
    "v_head_dim": 3,
}
LAYERS = {
    "gqa": lambda **options: GroupedQueryAttention(
        **SIZES, n_kv_heads=2, **options
    ),
    "mla": lambda **options: MultiHeadLatentAttention(
        **SIZES, **LATENT, **options
    ),
}


@pytest.mark.parametrize("core", ATTEND)
@pytest.mark.parametrize("name", LAYERS)
@torch.no_grad()
def test_a_mask_is_checked_once_on_its_way(name, core, monkeypatch):
    """A prompt, a chunk and a step, with pads and a window; by every core."""
    calls = Counter()

    def counted(place, name):
        function = getattr(place, name)

        def call(first, *rest):
            calls[name, type(first).__name__] += 1
            return function(first, *rest)

        monkeypatch.setattr(place, name, call)

    counted(masks, "check_mask")
    counted(Window, "check")
    layer = LAYERS[name](causal=Window(5), attend=ATTEND[core])
    x, valid, cache = torch.randn(3, 9, 12), torch.rand(3, 9) < 0.8, KVCache(9)
    for start, end in (0, 6), (6, 8), (8, 9):
        calls.clear()
        mask = padding_mask(valid[:, :end])
        layer(x[:, start:end], mask=mask, cache=cache)
        assert calls == {("check_mask", "Tensor"): 1, ("check", "Window"): 1}


N, PROMPT = 11, 7  # tokens of a row, and of its prompt, which has pads
slots = torch.arange(N)
# On the right; the tokens after it are then decoded.
RIGHT = (slots < torch.tensor([[7], [3], [5]])) | (slots >= PROMPT)
CHUNKS = [PROMPT, 1, 0, 2, 1]


def decoded(layer, x, valid, positions, make, **options):
    cache, outs, end = make(), [], 0
    # Without a cache there is one pass.
    for chunk in x.split([N] if cache is None else CHUNKS, dim=1):
        start, end = end, end + chunk.shape[1]
        given = None if positions is None else positions[..., start:end]
        mask = padding_mask(valid[:, :end])
        outs.append(
            layer(chunk, mask=mask, cache=cache, positions=given, **options)
        )
    return torch.cat(outs, dim=1)


@torch.no_grad()
def test_of_tokens_at_one_position_none_sees_a_later_one():
    """Drafts of a tree: siblings have the same position."""
    x, at = tokens(1, 4, E), torch.tensor([0, 1, 2, 2])
    for rule in (Causal(), Window(3), Chunk(4), Prefix(1)):
        for core in ATTEND.values():
            layer = variant("mha", rope_theta=100.0, causal=rule, attend=core)
            out = layer(x, positions=at)
            alone = layer(x[:, :3], positions=at[:3])
            assert relative_error(out[:, :3], alone) <= 1e-12


@torch.no_grad()
def test_a_layer_without_rope_takes_positions_for_its_rule():
    valid, x = RIGHT, tokens(3, N, E)
    given = {"mask": padding_mask(valid), "positions": token_positions(valid)}
    layer = variant("mha", causal=Window(4))
    alone = layer(x[1, valid[1]][None])
    assert relative_error(layer(x, **given)[1, valid[1]], alone[0]) <= 1e-12
    with pytest.raises(ValueError, match="3 rows of 11 tokens need"):
        layer(x, positions=given["positions"][:2])
    with pytest.raises(ValueError, match="positions are given, but rope"):
        variant("mha")(x, **given)


class Unsaid(GrowingKVCache):
    """Returns the newest two tokens alone, and does not say so."""

    def append(self, *tensors):
        return tuple(t[:, :, -2:] for t in super().append(*tensors))


@pytest.mark.parametrize("name", [*DECODERS, "cross"])
@torch.no_grad()
def test_a_cache_that_returns_other_keys_than_it_says_is_refused(name):
    """Even for a single new token, which no mask would give away."""
    layer, cache, x = variant(name), Unsaid(), inputs(name)
    with pytest.raises(
        ValueError,
        match=r"^Unsaid.append returned 2 keys, and its `positions` say (3|11)",
    ):
        run(name, layer, x, (1, 1, 1), cache)


@pytest.mark.parametrize(
    ("make", "positions", "error", "message"),
    [
        (
            lambda: None,
            torch.arange(N) / 2,
            TypeError,
            r"torch.float32, and the rule Window\(size=4, first=0\) "
            "counts tokens: pass int32 or int64",
        ),
        (
            lambda: RingKVCache(4),
            token_positions(RIGHT),
            ValueError,
            r"the rule is Window\(size=4, first=0\), and at the positions "
            "given it shows a key that the cache has dropped",
        ),
    ],
)
@torch.no_grad()
def test_positions_that_a_rule_cannot_count_are_refused(
    make, positions, error, message
):
    layer, x = variant("gqa", rope_theta=9.0, causal=Window(4)), tokens(3, N, E)
    with pytest.raises(error, match=message):
        decoded(layer, x, RIGHT, positions, make)
    whole = variant("gqa", rope_theta=9.0)  # which counts nothing
    decoded(whole, x, RIGHT, positions, lambda: KVCache(N))


@torch.no_grad()
def test_a_model_with_alibi_counts_from_the_positions_it_is_given():
    config = {"model_type": "mpt", "d_model": 64, "n_heads": 4, "n_layers": 2}
    layer, valid = sharp(attention_from_config(config)), RIGHT
    x = torch.randn(3, N, 64, dtype=torch.float64)
    at, mask, cache = token_positions(valid), padding_mask(valid), KVCache(N)
    options = {"mask": mask[..., :7], "positions": at[:, :7]}
    outs = [layer(x[:, :7], cache=cache, **options)]
    outs += [layer(x[:, 7:], cache=cache, mask=mask, positions=at[:, 7:])]
    out = torch.cat(outs, dim=1)
    for row, real in enumerate(valid):
        alone = layer(x[row : row + 1, real])[0]
        assert relative_error(out[row, real], alone) <= 1e-12


LLAMA = {"model_type": "llama", "hidden_size": 32, "num_hidden_layers": 1}
LLAMA |= {"num_attention_heads": 4, "num_key_value_heads": 2}
PHI = LLAMA | {"model_type": "phi3", "max_position_embeddings": 64}
PHI |= {"original_max_position_embeddings": 8, "pad_token_id": 0}
PHI["rope_scaling"] = {"type": "longrope", "short_factor": [1, 1.1, 1.3, 1.7]}
PHI["rope_scaling"]["long_factor"] = [1.2, 2, 5, 9]
KINDS = {
    "llama": LLAMA,
    "mistral": LLAMA | {"model_type": "mistral", "sliding_window": 4},
    "bloom": {"model_type": "bloom", "hidden_size": 32, "n_head": 4}
    | {"n_layer": 1},
    "phi3": PHI,
}


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_pads_anywhere_and_a_crop_of_each_row_leave_a_row_as_it_is_alone(kind):
    """Of 12 columns 6 or 7 are tokens; and then rows are cropped unevenly."""
    layer = attention_from_config(KINDS[kind]).double()
    x = torch.randn(3, 12, 32).double()
    for pads in ((0, 6), (5, 0), (2, 3)):
        valid = torch.ones(3, 12, dtype=torch.bool)
        valid[:, : pads[0]], valid[:, 12 - pads[1] :] = False, False
        if pads == (2, 3):  # between tokens, too; and a row of pads alone
            valid[1, 6], valid[2] = False, False
        out = layer(x, mask=padding_mask(valid))
        for row, real in enumerate(valid):
            alone = layer(x[row, real][None])[0]
            torch.testing.assert_close(out[row, real], alone)
    cache, lengths = KVCache(12), torch.tensor([4, 6, 5])
    valid = torch.ones(3, 8, dtype=torch.bool)
    valid[1, 0] = False
    mask = padding_mask(valid)
    layer(x[:, :6], cache=cache, mask=mask[..., :6])
    cache.crop(lengths)
    out = layer(x[:, 6:8], cache=cache, mask=mask)
    for row, n in enumerate(lengths.tolist()):
        first = int(row == 1)
        read = torch.cat((x[row, first:n], x[row, 6:8]))[None]
        torch.testing.assert_close(out[row], layer(read)[0, -2:])


@pytest.mark.parametrize("shape", [(1,), (3, 1), (2, 5), (3, 4), (5, 5)])
def test_positions_of_a_wrong_shape_are_refused(shape):
    layer = attention_from_config(LLAMA)
    with pytest.raises(ValueError, match="positions"):
        layer(torch.randn(3, 5, 32), positions=torch.zeros(shape).long())


@torch.no_grad()
def test_a_file_with_longrope_compiles_for_short_texts_with_pads():
    space = {}
    exec(file_of(PHI), space)
    layer = space["Attention"]()
    x, valid = torch.randn(3, 6, 32), torch.ones(3, 6, dtype=torch.bool)
    valid[:, :2] = False
    fast = torch.compile(layer, fullgraph=True, backend="eager")
    torch.testing.assert_close(fast(x, valid=valid), layer(x, valid=valid))


def test_rows_cropped_apart_go_on_at_their_own_ends_after_given_positions():
    scores = Scores(bias=Alibi(4))
    layer = GroupedQueryAttention(**SIZES, n_kv_heads=2, scores=scores)
    layer, x = sharp(layer), tokens(2, 4, 12)
    cache = KVCache(9)
    with torch.no_grad():
        layer(x[:, :3], cache=cache, positions=torch.arange(3))
        cache.crop(torch.tensor([1, 2]))
        last = layer(x[:, 3:], cache=cache)
        for row, left in enumerate(([0, 3], [0, 1, 3])):
            alone = layer(x[row : row + 1, left])[:, -1:]
            torch.testing.assert_close(last[row : row + 1], alone)


@pytest.mark.parametrize(
    "make", [KVCache, RingKVCache, lambda n: GrowingKVCache()]
)
def test_a_snapshot_is_restored_into_whatever_stands_there_now(make):
    """Of another dtype, other heads, another number of tensors or rows."""
    cache, first = make(8), torch.randn(3, 2, 4, 5)
    cache.append(first, 2 * first)
    at = cache.snapshot()
    for others in (
        [first.bfloat16()] * 2,
        [first],
        [torch.randn(3, 5, 1, 5)] * 2,
        [torch.randn(1, 2, 1, 5)] * 2,
    ):
        cache.reset()
        cache.append(*others)
        cache.restore(at)
        k, v = (t[:, :, :4] for t in cache.stored)
        assert torch.equal(k, first) and torch.equal(v, 2 * first)
        assert k.dtype == first.dtype and cache.length == 4
    small = make(5)
    small.append(first, first)
    small.restore(at)
    small.append(*[torch.randn(3, 2, 2, 5)] * 2)  # there is room again
    assert small.length == 6
    held = [x for x in at[0].values() if isinstance(x, tuple)]
    assert not any(isinstance(t, torch.Tensor) for x in held for t in x)


def test_rows_of_an_empty_batch_are_cropped():
    cache, none = KVCache(9), torch.randn(0, 2, 3, 4)
    cache.append(none, none)
    cache.crop(torch.zeros(0, dtype=torch.int64))
    assert cache.length == 0


def test_a_layer_that_reads_in_order_reads_its_rule_whole():
    layer = LightningAttention(d_model=16, n_heads=4)
    x, packed = torch.randn(1, 6, 16), torch.tensor([0, 0, 0, 1, 2, 2])
    with torch.no_grad():
        for ids in ([0, 0, 0, 1, 1, 1], [0, 0, 0, 0, 1, 1]):
            layer.causal = Causal() & Documents(torch.tensor(ids))
            layer.causal &= Documents(packed)
            both = layer(x)
            layer.causal = Causal() & Documents(packed)
            torch.testing.assert_close(both, layer(x))

    class Renamed(masks.Rule):
        documents = packed

    class Fewer(Documents):
        def shows_in(self, row, i, j):
            return super().shows_in(row, i, j) & (i - j < 2)

    layer.causal = Causal() & Renamed()
    torch.testing.assert_close(both, layer(x))
    for rule in (Documents(packed), Causal() & Fewer(packed)):
        layer.causal = rule
        with pytest.raises(ValueError, match="reads its tokens in order"):
            layer(x)
    layer.causal = Causal()
    with pytest.raises(TypeError, match="give a layer a rule as `causal`"):
        layer(x, mask=masks.RuleMask(Causal(), T=6, S=6, past=0))


def test_a_cache_of_ones_own_need_not_say_what_it_can():
    class Own:
        """All that the methods of a cache do, and no more."""

        def __init__(self, cache):
            self.cache = cache

        def __getattr__(self, name):
            if name == "can":
                raise AttributeError(name)
            return getattr(self.cache, name)

    layer, x = GroupedQueryAttention(**SIZES, n_kv_heads=2), tokens(2, 4, 12)
    layer, cache = sharp(layer), Own(KVCache(4))
    with torch.no_grad():
        parts = [layer(x[:, :3], cache=cache), layer(x[:, 3:], cache=cache)]
        torch.testing.assert_close(torch.cat(parts, dim=1), layer(x))
    with pytest.raises(TypeError, match="Own cannot hold a state"):
        LightningAttention(d_model=16, n_heads=4)(
            torch.randn(1, 2, 16), cache=cache
        )
