"""DeepSeek-V4's three kinds of attention, beside those of transformers."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from attnref.numbers.cost import compressed_cost
from attnref.plain import deepseek_v4 as plain
from tests.kit.compare import relative_error
from tests.kit.layers import B

E, H, D, DR, W, G = 26, 6, 16, 6, 5, 2
RANKS, RATES, INDEX = (11, 7), (3, 8), (4, 10, 2)  # rates of CSA and HCA
SIZES = {"d_model": E, "n_heads": H, "head_dim": D, "groups": G}
SIZES |= dict(zip(("q_rank", "o_rank"), RANKS, strict=True))
KINDS = {
    "sliding_attention": {},
    "heavily_compressed_attention": {"rate": RATES[1]},
    "compressed_sparse_attention": {"rate": RATES[0], "index": INDEX},
}
LENGTH = 41
CHUNKS = {
    "whole": (LENGTH,),
    "single tokens": (1,) * LENGTH,
    "ragged": (2, 9, 1, 4, 1, 0, 1, 16, 7),
}
PADS = {
    "left": torch.arange(LENGTH) >= torch.tensor([[0], [29], [5]]),
    # Of a prompt padded on the right, and the tokens after it.
    "right": (torch.arange(LENGTH) < torch.tensor([[9], [20], [1]]))
    | (torch.arange(LENGTH) >= 20),
    "amid": torch.arange(LENGTH) % torch.tensor([[2], [7], [LENGTH]]) != 1,
}
each_kind = pytest.mark.parametrize("kind", KINDS)


def made(f, window=W, **options):
    return plain.CompressedAttention(E, H, D, window, f, *RANKS, G, **options)


class Theirs:
    """The module of transformers, with large weights, and its config."""

    def __init__(self, kind):
        from transformers.models.deepseek_v4 import modeling_deepseek_v4 as v4
        from transformers.models.deepseek_v4.configuration_deepseek_v4 import (
            DeepseekV4Config,
        )

        yarn = {"rope_type": "yarn", "factor": 16.0, "beta_fast": 32}
        yarn |= {"beta_slow": 1, "original_max_position_embeddings": 64}
        self.config = DeepseekV4Config(
            hidden_size=E,
            num_attention_heads=H,
            head_dim=D,
            partial_rotary_factor=DR / D,
            num_hidden_layers=1,
            layer_types=[kind],
            compress_rates=dict(zip([*KINDS][:0:-1], RATES, strict=True)),
            sliding_window=W,
            q_lora_rank=RANKS[0],
            o_lora_rank=RANKS[1],
            o_groups=G,
            index_n_heads=INDEX[0],
            index_head_dim=INDEX[1],
            index_topk=INDEX[2],
            rope_parameters=yarn,
            attn_implementation="eager",
        )
        self.module = v4.DeepseekV4Attention(self.config, layer_idx=0)
        for name, weight in self.module.named_parameters():
            large = name.endswith(("sinks", "bias")) or "norm" in name
            torch.nn.init.normal_(weight, std=0.7 if large else 0.3)
        self.rotary = v4.DeepseekV4RotaryEmbedding(self.config)

    def ours(self, kind):
        name = "main" if kind == "sliding_attention" else "compress"
        f = getattr(self.rotary, f"{name}_inv_freq")
        layer = made(f, **KINDS[kind])
        layer.load_state_dict(self.module.state_dict())
        return layer

    def cache(self):
        from transformers import DynamicCache

        return DynamicCache(config=self.config)

    def __call__(self, x, cache=None, valid=None):
        from transformers.masking_utils import (
            create_sliding_window_causal_mask,
        )

        past = 0 if cache is None else cache.get_seq_length()
        at = torch.arange(past, past + x.shape[1])[None].expand(len(x), -1)
        if valid is not None:
            at = (valid.cumsum(-1) - 1).clamp(0)[:, past:]
        tables = {n: self.rotary(x, at, n) for n in ("main", "compress")}
        mask = create_sliding_window_causal_mask(
            config=self.config,
            inputs_embeds=x,
            attention_mask=valid,
            cache=cache,
            position_ids=at,
        )
        return self.module(x, tables, at, mask, cache=cache)[0]


def in_chunks(layer, x, chunks, cache, valid=None):
    outs, end = [], 0
    for part in x.split(chunks, dim=1):
        end += part.shape[1]
        seen = None if valid is None else valid[:, :end]
        outs.append(layer(part, cache, seen))
    return torch.cat(outs, dim=1)


@each_kind
@pytest.mark.parametrize("chunks", CHUNKS.values(), ids=CHUNKS)
@torch.no_grad()
def test_it_is_that_of_transformers(kind, chunks):
    theirs, x = Theirs(kind), torch.randn(B, LENGTH, E)
    layer, cache = theirs.ours(kind), plain.CompressedCache()
    there = [n for n in chunks if n]  # which reads no chunk of no tokens
    want = in_chunks(theirs, x, there, theirs.cache())
    assert relative_error(want, theirs(x)) <= 2e-6
    assert relative_error(in_chunks(layer, x, chunks, cache), want) <= 2e-6
    assert cache.length == LENGTH


@each_kind
@torch.no_grad()
def test_a_mask_of_another_length_is_refused(kind):
    """Shorter by the cached tokens or by one, longer, or of one column."""
    layer, x = made(torch.ones(DR // 2), **KINDS[kind]), torch.randn(B, 9, E)
    cache = plain.CompressedCache()
    layer(x[:, :4], cache)
    for length in (1, 5, 8, 10):
        valid = torch.ones(B, length, dtype=torch.bool)
        valid[:, 0] = False
        with pytest.raises(ValueError, match=rf"9\), .*, {length}\]"):
            layer(x[:, 4:], cache, valid)
    assert cache.length == 4


def test_an_example():
    # --8<-- [start:example]
    import torch

    from attnref.plain.deepseek_v4 import CompressedAttention, CompressedCache

    f = 1e4 ** -(torch.arange(0, 8, 2) / 8)  # RoPE of the last 8 of 16
    sizes = {"D": 16, "W": 6, "f": f, "Rq": 24, "Ro": 12, "G": 2, "rate": 4}
    layer = CompressedAttention(d_model=64, n_heads=8, **sizes)  # HCA
    x = torch.randn(3, 19, 64)  # three sequences of 19 tokens
    cache = CompressedCache()
    steps = [layer(token, cache) for token in x.split(1, dim=1)]
    torch.testing.assert_close(torch.cat(steps, dim=1), layer(x))
    waiting, _, entries = cache.kept["main"]
    assert entries.shape == (3, 1, 4, 16)  # 4 entries, of 16 tokens
    assert waiting.shape == (3, 2, 3, 16)  # K and gate of the other 3
    # --8<-- [end:example]


@each_kind
@pytest.mark.parametrize("pads", PADS)
@torch.no_grad()
def test_rows_with_pads_are_those_rows_alone(kind, pads):
    """Whatever the pads hold, and where chunks end within them."""
    theirs, valid = Theirs(kind), PADS[pads]
    layer, x = theirs.ours(kind), torch.randn(B, LENGTH, E)
    x = torch.where(valid[..., None], x, torch.nan)
    for chunks in (CHUNKS["whole"], CHUNKS["ragged"]):
        got = in_chunks(layer, x, chunks, plain.CompressedCache(), valid)
        for row, real in enumerate(valid):
            want = theirs(x[row : row + 1, real])
            assert relative_error(got[row : row + 1, real], want) <= 2e-6
        assert (got[~valid] == 0).all()


@each_kind
@torch.no_grad()
def test_left_pads_move_the_blocks_of_transformers(kind):
    """Its blocks begin at a pad, so that a row is not what it is alone."""
    theirs, valid = Theirs(kind), PADS["left"]
    x = torch.randn(B, LENGTH, E)
    got, want = theirs(x, valid=valid), theirs(x[1:2, valid[1]])
    apart = relative_error(got[1:2, valid[1]], want)
    assert (apart > 0.1) == (kind != "sliding_attention")
    assert apart > 0.1 or apart <= 2e-6
    assert relative_error(got[:1], theirs(x[:1])) <= 2e-6  # it has no pads


@each_kind
@torch.no_grad()
def test_position_3000_is_that_of_transformers(kind):
    theirs, x = Theirs(kind), torch.randn(1, 3011, E)
    chunks = (700,) * 4 + (200, 1, 3, 1, 1, 5)
    want = in_chunks(theirs, x, chunks, theirs.cache())
    cache = plain.CompressedCache()
    got = in_chunks(theirs.ours(kind), x, chunks, cache)
    assert relative_error(got[:, 2900:], want[:, 2900:]) <= 1e-5


@each_kind
@torch.no_grad()
def test_bfloat16_is_as_near_as_that_of_transformers(kind):
    """To the same layer in float32, with weights that bfloat16 holds."""
    theirs, x = Theirs(kind), torch.randn(B, LENGTH, E).bfloat16()
    theirs.module.bfloat16().float()
    want, layer = theirs(x.float()), theirs.ours(kind).bfloat16()
    theirs.module.bfloat16()
    # Of most tokens: rounding may choose another entry for some.
    errors = [
        ((y - want).norm(dim=-1) / want.norm(dim=-1)).quantile(0.7)
        for y in (layer(x).float(), theirs(x).float())
    ]
    assert errors[0] <= 1.5 * errors[1] < 0.03


@each_kind
@pytest.mark.parametrize("past", [0, 1, 2, 7, 16, 29])
@torch.no_grad()
def test_its_cost_is_that_of_a_layer_that_runs(kind, past):
    """Also the tokens that wait for their entries; the layer computes with all
    it may see, so there a window and `topk` are wider than the text."""
    options, (Hi, Di, topk) = KINDS[kind], INDEX
    sizes = SIZES | {"ratio": options.get("rate")}
    for window, choice in ((W, topk), (LENGTH, LENGTH)):
        if "index" in options:
            options = options | {"index": (Hi, Di, choice)}
            sizes |= {"index_heads": Hi, "index_dim": Di, "topk": choice}
        layer = made(torch.ones(DR // 2), window, **options)
        cache, x = plain.CompressedCache(), torch.randn(B, past + 1, E)
        in_chunks(layer, x[:, :past], (past,) if past else 1, cache)
        with FlopCounterMode(display=False) as count:
            layer(x[:, past:], cache)
        cost = compressed_cost(**sizes, window=window, batch=B, past=past)
        held = [t for tensors in cache.kept.values() for t in tensors]
        assert cost.cached == sum(t.numel() for t in held)
        assert cost.parameters == sum(p.numel() for p in layer.parameters())
        if window == LENGTH:
            assert cost.flops == count.get_total_flops()


def test_a_query_reads_its_window_and_the_entries_that_are_chosen():
    sizes = SIZES | {"window": W, "ratio": 3}
    for past, keys in ((3, 4 + 1), (15, W + 5), (16, W + 5), (17, W + 6)):
        assert compressed_cost(**sizes, past=past).values == 2 * H * D * keys
    sizes |= {"index_heads": 4, "index_dim": 10, "topk": 2}
    for past, keys in ((3, 4 + 1), (15, W + 2)):
        assert compressed_cost(**sizes, past=past).values == 2 * H * D * keys
    steps = [compressed_cost(**sizes, past=past).flops for past in range(29)]
    assert compressed_cost(**sizes, new=29).flops == sum(steps)


@each_kind
@pytest.mark.parametrize("past, accepted", [(17, 0), (23, 4), (31, 3)])
def test_a_draft_is_rolled_back_with_its_window(kind, past, accepted):
    """As the page says: what waits and the window are put back, entries of
    the draft are dropped, and the accepted tokens are read again."""
    layer, x = made([1.0, 0.3, 0.1], **KINDS[kind]), torch.randn(B, LENGTH, E)
    cache, draft = plain.CompressedCache(), 6
    with torch.no_grad():
        want = layer(x)
        layer(x[:, :past], cache)
        kept = {name: list(held) for name, held in cache.kept.items()}
        layer(torch.randn(B, draft, E), cache)
        for name, held in cache.kept.items():
            if name == "window":
                cache.kept[name] = kept[name]
            else:  # what waits and the block before it; entries are cut
                entries = held[-1][:, :, : past // layer.rate]
                cache.kept[name] = *kept[name][:2], entries
        cache.length = past
        got = layer(x[:, past : past + accepted + 1], cache)
    new = slice(past, past + accepted + 1)
    assert relative_error(got, want[:, new]) < 1e-5
