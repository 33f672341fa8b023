"""Paged caches: blocks that are shared give what a cache of one's own gives."""

import random
import warnings
from functools import cache

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention.experimental._paged_attention import PagedAttention
from torch.nn.attention.flex_attention import (
    create_block_mask,
    flex_attention,
)
from torch.testing import assert_close

from attnref.plain.gqa import KVCache
from attnref.plain.llama import Llama
from attnref.plain.paged import Pool


@cache
def noise(text, dtype):
    """(2, 3, T, 5): what a token stores depends on all tokens before it."""
    if not text:
        return torch.zeros(2, 3, 0, 5, dtype=dtype)
    made = torch.Generator().manual_seed(hash(text) % 2**31)
    new = torch.randn(2, 3, 1, 5, generator=made).to(dtype)
    return torch.cat((noise(text[:-1], dtype), new), dim=2)


ACTS = ["prompt", "chunk", "chunk", "fork", "roll", "end", "end"]
HISTORIES = [
    (size, blocks, dtype)
    for dtype in (torch.float32, torch.bfloat16)
    for size, blocks in ((1, 11), (2, 7), (3, 11), (5, 23))
]


@pytest.mark.parametrize(("size", "blocks", "dtype"), HISTORIES)
def test_shared_blocks_hold_what_each_sequence_has_stored(size, blocks, dtype):
    """Prompts, chunks, forks, rollbacks and ends, in any order: bit for bit,
    and no block is lost. What does not fit changes nothing."""
    pool, live = Pool(blocks, size, (2, 3, 5), dtype), []
    draw, seen = random.Random(size), {"hits": 0, "refused": 0, "copied": 0}

    def append(table, tokens, T):
        before = list(table), list(pool.readers), list(pool.hashes)
        content = pool.stored.clone()
        try:
            new = noise(tuple(tokens), dtype)[:, :, len(tokens) - T :]
            pool.append(table, tokens, new)
        except ValueError:
            seen["refused"] += 1
            after = table, pool.readers, pool.hashes
            assert before == after and content.equal(pool.stored)
            return False
        kept = before[0][: len(table)]
        seen["copied"] += kept != table[: len(kept)]
        return True

    for _ in range(1500):
        act = draw.choice(ACTS)
        some = draw.choices(range(2), k=draw.randint(1, 3 * size))
        if act == "prompt" or not live:
            table = pool.find(some)
            seen["hits"] += len(table)
            assert len(table) * size < len(some)
            if append(table, some, len(some) - len(table) * size):
                live.append((table, some))
            else:
                pool.release(table)
            continue
        n = draw.randrange(len(live))
        table, tokens = live[n]
        if act == "chunk" and append(table, tokens + some, len(some)):
            live[n] = table, tokens + some
        elif act == "fork":
            live.append((pool.fork(table), tokens))
        elif act == "roll":
            length = draw.randint(1, len(tokens))
            pool.release(table, length)
            live[n] = table, tokens[:length]
        elif act == "end":
            pool.release(table)
            assert table == []
            del live[n]
        for table, tokens in live:
            wanted = noise(tuple(tokens), dtype)
            assert pool.gather(table, len(tokens)).equal(wanted)
            assert len(table) == -(-len(tokens) // size)
        used = [block for table, _ in live for block in table]
        assert pool.readers == [used.count(n) for n in range(blocks)]
    assert min(seen["hits"], seen["refused"]) > 9, seen
    assert seen["copied"] > 9 or size == 1, seen


def test_paged_flex_attention_over_our_tables_is_attention_to_each_sequence():
    """PyTorch's paged example reads the pool through the tables: a prompt that
    two others share, of which one has gone on in a copy of its last block."""
    torch.manual_seed(0)
    size, lengths = 8, [19, 29, 21]  # 16 tokens are found, or 19 forked
    pool = Pool(13, size, (2, 2, 16))
    texts = [torch.arange(n).tolist() for n in lengths]
    texts[2][16:] = [99] * 5
    kv = torch.randn(3, 2, 2, 29, 16)
    kv[1, :, :, :19], kv[2, :, :, :16] = kv[0, :, :, :19], kv[0, :, :, :16]
    spare = []
    pool.append(spare, [7], kv[0, :, :, :1])  # so that tables do not begin at 0
    tables = [pool.find(texts[0])]
    pool.append(tables[0], texts[0], kv[0, :, :, :19])
    tables += [pool.fork(tables[0]), pool.find(texts[2])]
    for n, past in ((2, 16), (1, 19)):
        pool.append(tables[n], texts[n], kv[n, :, :, past : lengths[n]])
    assert len({*tables[0]} & {*tables[1]} & {*tables[2]}) == 2
    assert tables[0][2] != tables[1][2]

    paged = PagedAttention(13, size, 3, device="cpu")
    for n, table in enumerate(tables):
        paged.page_table[n, : len(table)] = torch.tensor(table)
        paged.physical_to_logical[n, table] = torch.arange(len(table))
    q, ends = torch.randn(3, 6, 1, 16), torch.tensor(lengths)
    whole = create_block_mask(
        lambda b, h, i, j: j < ends[b], 3, None, 1, 32, "cpu", (1, size)
    )
    mask = paged.convert_logical_block_mask(whole)
    keys, values = pool.stored.flatten(2, 3)[:, None]
    with warnings.catch_warnings():  # that it is not compiled
        warnings.simplefilter("ignore")
        out = flex_attention(q, keys, values, block_mask=mask, enable_gqa=True)
    for n, length in enumerate(lengths):
        k, v = kv[n : n + 1, :, :, :length].unbind(1)
        ours = pool.gather(tables[n], length)[:, None]
        assert ours[0].equal(k) and ours[1].equal(v)
        wanted = F.scaled_dot_product_attention(
            q[n : n + 1], k, v, enable_gqa=True
        )
        assert_close(out[n : n + 1], wanted)


def test_one_row_of_several_sequences_gives_what_each_gives_alone():
    # --8<-- [start:row]
    import torch.nn.functional as F

    from attnref.plain.gqa import GQA, rope

    torch.manual_seed(0)
    layer = GQA(d_model=64, n_heads=8, n_kv_heads=2).requires_grad_(False)
    layer.q_proj.weight *= 9  # so that a wrong key would show
    x = [torch.randn(1, n, 64) for n in (7, 9, 5)]
    alone = [layer(text) for text in x]

    pool, tables = Pool(blocks=9, size=4, shape=(2, 2, 8)), [[], [], []]
    past = [0, 0, 0]  # tokens that were read before
    for new in ([3, 8, 5], [4, 1, 0]):  # prompts; a chunk, a step, nothing
        end = [past[n] + new[n] for n in range(3)]
        parts = [x[n][:, past[n] : end[n]] for n in range(3)]
        row = torch.cat(parts, dim=1)  # 16 tokens, then 5: no pads
        at = torch.cat([torch.arange(past[n], end[n]) for n in range(3)])
        q, k, v = (
            proj(row).unflatten(-1, (-1, 8)).transpose(1, 2)
            for proj in (layer.q_proj, layer.k_proj, layer.v_proj)
        )
        q, k = rope(q, at), rope(k, at)  # positions restart in each sequence
        kv = torch.cat((k, v)).split(new, dim=2)
        for n in range(3):
            if new[n]:
                pool.append(tables[n], list(range(end[n])), kv[n])
        held = [pool.gather(tables[n], end[n]) for n in range(3)]
        k, v = torch.cat(held, dim=2)[:, None]
        text_q = torch.arange(3).repeat_interleave(torch.tensor(new))
        text_k = torch.arange(3).repeat_interleave(torch.tensor(end))
        at_k = torch.cat([torch.arange(e) for e in end])
        mask = (text_q[:, None] == text_k) & (at_k <= at[:, None])
        out = F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)
        out = layer.o_proj(out.transpose(1, 2).flatten(2))
        for n, part in enumerate(out.split(new, dim=1)):
            torch.testing.assert_close(part, alone[n][:, past[n] : end[n]])
        past = end
    # --8<-- [end:row]


def test_a_radix_tree_finds_what_hashes_of_blocks_find():
    # --8<-- [start:radix]
    import random

    from attnref.plain.radix import Node

    draw = random.Random(0)
    pool, tree = Pool(blocks=900, size=4, shape=(1,)), Node()
    more = 0
    for _ in range(100):
        text = draw.choices("ab", k=draw.randint(1, 30))
        table, slots = pool.find(text), tree.find(text[:-1])
        # Whole blocks: the same. The tree also finds the part of one.
        assert len(table) == len(slots) // 4
        more += len(slots) % 4
        stored = len(table) * 4
        pool.append(table, text, torch.zeros(1, len(text) - stored, 1))
        tree.insert(text, [f"{n}: {text[: n + 1]}" for n in range(len(text))])
        # A slot may come from another text, with the same tokens up to there.
        assert all(
            slot.endswith(f"{text[: n + 1]}")
            for n, slot in enumerate(tree.find(text))
        )
    assert more > 100  # tokens that only the tree need not read again
    # --8<-- [end:radix]


# --8<-- [start:read]
class View:
    """What one layer sees of one sequence: a cache, as its layer takes it."""

    def __init__(self, past):
        self.past, self.length = past, past.shape[2]

    def append(self, k, v):
        self.new = torch.cat((k, v))  # of a batch of 1
        return torch.cat((self.past, self.new), dim=2)[:, None].unbind()


@torch.no_grad()
def read(model, pool, table, tokens, stored):
    """Read all tokens but the first `stored`; returns the next token."""
    views = [View(past) for past in pool.gather(table, stored)]  # one a layer
    logits = model(torch.tensor([tokens[stored:]]), views)
    pool.append(table, tokens, torch.stack([view.new for view in views]))
    return int(logits[0, -1].argmax())


# --8<-- [end:read]


# --8<-- [start:serve]
def serve(model, pool, prompts, steps, slots):
    """Continue each prompt by `steps` tokens, `slots` of them at a time."""
    texts = [list(prompt) for prompt in prompts]
    waiting, running, log = list(range(len(texts))), {}, []
    while waiting or running:
        if waiting and len(running) < slots:  # one may join at each step
            id = waiting.pop(0)
            table = pool.find(texts[id])
            running[id] = table, len(table) * pool.size
            log.append((id, len(table)))
        for id in list(running):
            if id not in running:  # it had to give way in this step
                continue
            table, stored = running[id]
            try:
                token = read(model, pool, table, texts[id], stored)
            except ValueError:  # no block is free: the newest gives way
                id, (table, _) = running.popitem()
                pool.release(table)
                waiting.insert(0, id)  # with the tokens that it has so far
                continue
            running[id] = table, len(texts[id])
            texts[id].append(token)
            if len(texts[id]) == len(prompts[id]) + steps:
                pool.release(table)
                del running[id]
    return texts, log


# --8<-- [end:serve]


def test_ten_requests_in_three_slots_get_what_each_gets_alone():
    # --8<-- [start:ten]
    from attnref.plain.llama import Llama

    torch.manual_seed(0)
    sizes = dict(n_layers=2, d_model=32, d_ff=64, n_heads=4, n_kv_heads=2)
    model = Llama(vocab=50, **sizes)
    for weight in model.parameters():  # so large that texts differ
        torch.nn.init.normal_(weight, std=0.4)
    system = torch.randint(50, (9,)).tolist()  # each prompt begins with it
    prompts = [
        system + torch.randint(50, (n,)).tolist()
        for n in (3, 1, 7, 2, 5, 4, 6, 1, 3, 2)
    ]
    pool = Pool(blocks=10, size=4, shape=(2, 2, 2, 8))
    texts, log = serve(model, pool, prompts, steps=8, slots=3)
    for prompt, text in zip(prompts, texts, strict=True):
        alone = model.generate(torch.tensor([prompt]), steps=8)
        assert alone.tolist() == [text]
    assert len(log) == 11  # ten requests, of which one began twice
    assert pool.readers == [0] * 10  # every block is free again
    # --8<-- [end:ten]
    assert len({tuple(text[-8:]) for text in texts}) > 5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_hit_of_3000_tokens_gives_the_logits_of_an_own_cache(dtype):
    torch.manual_seed(0)
    model = Llama(17, 2, 32, 64, n_heads=4, n_kv_heads=2)
    model = model.to(dtype).requires_grad_(False)
    pool = Pool(400, 16, (2, 2, 2, 8), dtype)
    prefix = torch.randint(17, (3001,)).tolist()
    table, other = [], [*prefix[:3000], 3, 1]
    read(model, pool, table, prefix, 0)
    pool.release(table)  # free, and found all the same
    result = pool.find(other)
    assert len(result) == 187
    past, own = 187 * 16, [KVCache(3002) for _ in range(2)]
    model(torch.tensor([prefix]), own)
    for cache in own:
        cache.length = past
    wanted = model(torch.tensor([other[past:]]), own)
    views = [View(each) for each in pool.gather(result, past)]
    assert model(torch.tensor([other[past:]]), views).equal(wanted)
