"""Mistakes in caches of keys and values, and in who fills and reads them."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnref.mistakes.catalogue import Lines, Mistake, Text
from attnref.mistakes.laws import (
    cache_is_a_list,
    cache_is_small,
    cache_keeps_no_graph,
    decoding_is_the_full_pass,
    full_cache_refuses,
    generation_is_the_same,
)


def seeded(*shape: int) -> Tensor:
    """Random numbers, the same each time."""
    generator = torch.Generator().manual_seed(1)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def filled(module: nn.Module) -> nn.Module:
    """With weights that are the same each time, and large enough for softmax
    to decide."""
    generator = torch.Generator().manual_seed(2)
    module = module.double().eval()
    for name, p in module.named_parameters():
        mean = float("norm" in name)
        nn.init.normal_(p, mean=mean, std=0.3, generator=generator)
    return module


def gqa(package: Any, **options: Any) -> nn.Module:
    sizes = {"d_model": 16, "n_heads": 4, "n_kv_heads": 2}
    return filled(
        package.GroupedQueryAttention(**sizes, rope_theta=100.0, **options)
    )


def decoded(
    package: Any,
    cuts: Sequence[int] = (3, 4, 5),
    T: int = 6,
    rows: int = 1,
    room: int = 0,
) -> Tensor:
    """The weights of one head as T tokens are read with a cache, cut before
    some of them: of the last of so many rows, and of up to 8 keys."""
    found = []

    def seen(q: Tensor, k: Tensor, v: Tensor, mask: Any, **told: Any) -> Tensor:
        weights = package.attention_weights(q, k, mask)[-1, 0]
        found.append(F.pad(weights, (0, 8 - weights.shape[-1])))
        out: Tensor = package.sdpa(q, k, v, mask)
        return out

    layer = gqa(package, attend=seen)
    cache = package.KVCache(room) if room else package.GrowingKVCache()
    with torch.no_grad():
        for chunk in seeded(rows, T, 16).tensor_split(list(cuts), dim=1):
            layer(chunk, cache=cache)
    return torch.cat(found)


def cached(package: Any, room: int | None = None) -> tuple[Any, ...]:
    """A layer, a cache and an input, as `decoding_is_the_full_pass` wants."""
    layer = gqa(package)

    def call(x: Tensor, cache: Any = None) -> Tensor:
        with torch.no_grad():
            out: Tensor = layer(x, cache=cache)
        return out

    if room is None:
        return call, package.GrowingKVCache, seeded(2, 6, 16)
    return call, lambda: package.KVCache(room), seeded(2, 6, 16)


def slots(package: Any, name: str, *told: Any) -> Tensor:
    """The tokens in the slots of three rows (11 is the first of the first),
    after four tokens, a method and two more: 0 = nothing."""
    tokens = torch.arange(1.0, 7) + 10 * torch.arange(1.0, 4)[:, None]
    cache = package.GrowingKVCache()
    cache.append(tokens[:, None, :4, None])
    getattr(cache, name)(*told)
    (held,) = cache.append(tokens[:, None, 4:, None])
    return F.pad(held[:, 0, :, 0], (0, 6 - held.shape[2]))


def uncounted(package: Any) -> Tensor:
    """Of nine tokens for a cache with room for six: how many it says it has,
    and has not."""
    cache, held = package.KVCache(6), torch.empty(1, 1, 0, 1)
    for token in torch.arange(9.0):
        try:
            (held,) = cache.append(token.view(1, 1, 1, 1))
        except ValueError:
            break
    return torch.tensor(float(cache.length - held.shape[2]))


def nodes(package: Any) -> Tensor:
    """Nodes of the autograd graph behind the keys of six decoded tokens."""
    weight, cache = torch.eye(4).requires_grad_(), package.GrowingKVCache()
    found: set[Any] = set()
    ahead: list[Any] = []
    for _ in range(6):
        try:
            (keys,) = cache.append(torch.ones(1, 1, 1, 4) @ weight)
        except ValueError:
            return torch.tensor(0.0)
        ahead = [keys.grad_fn]
    while ahead:
        node = ahead.pop()
        if node is not None and node not in found:
            found.add(node)
            ahead += [behind for behind, _ in node.next_functions]
    return torch.tensor(float(len(found)))


def bytes_of_bfloat16(package: Any) -> Tensor:
    """Of keys and values of 64 elements each, for 8 tokens in bfloat16."""
    cache, token = package.KVCache(8), torch.ones(1, 1, 1, 64).bfloat16()
    cache.append(token, token)
    return torch.tensor(float(cache.nbytes))


def bytes_per_token(package: Any) -> Tensor:
    """Of 4 query heads and 2 key/value heads of 4 elements in float64."""
    layer, cache = gqa(package), package.GrowingKVCache()
    with torch.no_grad():
        layer(seeded(1, 6, 16), cache=cache)
    return torch.tensor(cache.nbytes / 6)


def decoder_of(package: Any) -> Callable[..., Tensor]:
    """A small decoder of two layers, called as `decoder(tokens, caches)`."""
    blocks = [
        package.Block(gqa(package), d_model=16, d_ff=24) for _ in range(2)
    ]
    model = filled(package.Decoder(blocks, n_tokens=50, d_model=16))

    def call(tokens: Tensor, caches: Any = None, **told: Any) -> Tensor:
        with torch.no_grad():
            logits: Tensor = model(tokens, caches=caches, **told)
        return logits

    return call


def logits_with_cache(package: Any) -> Tensor:
    """Of six tokens, read in chunks of 3, 1, 1 and 1, for 8 words."""
    decoder = decoder_of(package)
    caches = [package.GrowingKVCache() for _ in range(2)]
    chunks = torch.arange(6)[None].tensor_split([3, 4, 5], dim=1)
    return torch.cat([decoder(chunk, caches)[0, :, :8] for chunk in chunks])


def generator(package: Any) -> Callable[[Tensor, Tensor, bool], Tensor]:
    """Continues prompts by 8 tokens, with a cache or without."""
    decoder = decoder_of(package)

    def generate(prompt: Tensor, valid: Tensor, with_cache: bool) -> Tensor:
        caches = [package.GrowingKVCache() for _ in range(2)]
        tokens: Tensor = package.greedy(
            decoder,
            prompt,
            8,
            valid=valid,
            caches=caches if with_cache else None,
        )
        return tokens

    return generate


def same_as_without_cache(package: Any) -> Tensor:
    """Of 24 tokens generated with a cache: those generated without one."""
    prompt = torch.arange(15).view(3, 5)
    generate, valid = generator(package), torch.ones(3, 5, dtype=torch.bool)
    with_cache, without = (generate(prompt, valid, c) for c in (True, False))
    return (with_cache == without)[:, 5:].sum().double()


SLOTS = Text("row", "行"), Text("slot, 0 = empty", "槽位，0 表示空")
CACHES = "tests/caches/test_kv_cache.py"
EQUAL = "tests/laws/test_equivalences.py"
BLOCK = "tests/models/test_block.py"

MISTAKES = (
    Mistake(
        id="cache-whole-buffer",
        title=Text(
            en="The cache returns its whole buffer, empty slots included",
            zh="缓存把整块缓冲区都返回了，空位也在内",
        ),
        lines=(
            Lines(
                module="caches.kv_cache",
                right="""
        self.length = end
        return self.stored
""",
                wrong="""
        self.length = end
        return self.buffers
""",
            ),
            Lines(
                module="caches.kv_cache",
                right="""
            buffer = torch.empty(room, dtype=tokens.dtype, device=tokens.device)
""",
                wrong="""
            buffer = torch.zeros(room, dtype=tokens.dtype, device=tokens.device)
""",
            ),
            Lines(
                module="caches.past",
                right="""
        check_kept(cache, k, numbers, at)
""",
                wrong="""
        cache.remember(at)  # how many keys there are is not checked
""",
            ),
        ),
        symptom="decoding",
        shown=partial(decoded, cuts=range(1, 6), room=8),
        seen=Text(
            en="Buffers are usually made of zeros, as here, and a key of "
            "zeros has the score 0, not minus infinity: the empty slots take "
            "up to {change} of the weight, and contribute values of zero.",
            zh="缓冲区一般用零初始化，这里也是。全零的键得分是 0，不是负无穷："
            "空位最多分走 {change} 的权重，加进来的值却是零。",
        ),
        notice=Text(
            en="Double the room of the cache: no output may change. In "
            "prefill, the causal mask hides the empty slots or does not fit "
            "them; a decode step of one token usually has no mask, and there "
            "they count.",
            zh="把缓存的容量加倍，输出不该有任何变化。预填充时，因果掩码要么正"
            "好挡住空位，要么尺寸对不上而报错；单个 token 的解码步通常没有掩"
            "码，空位就混进来了。",
        ),
        same_shape=False,
        found=("https://github.com/Lightning-AI/litgpt/pull/2248",),
        tests=(f"{CACHES}::test_append_returns_all_so_far_that_is_kept",),
        law=decoding_is_the_full_pass,
        of=partial(cached, room=9),
    ),
    Mistake(
        id="prefill-not-stored",
        title=Text(
            en="Prefill does not write its keys and values to the cache",
            zh="预填充没有把键和值写进缓存",
        ),
        lines=(
            Lines(
                module="caches.kv_cache",
                right="""
        for buffer, new in zip(self.buffers, tensors, strict=True):
            buffer[:, :, start:end] = new
        self.length = end
        return self.stored
""",
                wrong="""
        self.length = end
        if not start:  # prefill: there is no past to read
            return tensors
        for buffer, new in zip(self.buffers, tensors, strict=True):
            buffer[:, :, start:end] = new
        return self.stored
""",
            ),
            Lines(
                module="caches.kv_cache",
                right="""
            buffer = torch.empty(room, dtype=tokens.dtype, device=tokens.device)
""",
                wrong="""
            buffer = torch.zeros(room, dtype=tokens.dtype, device=tokens.device)
""",
            ),
        ),
        symptom="decoding",
        shown=partial(decoded, room=8),
        seen=Text(
            en="Prefill has no past to read, so this code returns before it "
            "writes. The prompt itself is right, but the tokens after it find "
            "zeros in the place of its keys: the weight of {where} is {there}"
            ", and the text goes on as if there had been no prompt.",
            zh="预填充没有过去可读，代码就提前返回了，还没来得及写。提示词本"
            "身没算错，之后的 token 在它的位置上读到的却是全零的键：{where} 的"
            "权重是 {there}，接下来的文本就像没有提示词一样。",
        ),
        notice=Text(
            en="Read a prompt, decode some tokens, and compare with one pass "
            "over all of them.",
            zh="读完提示词，再逐个解码几个 token，和一次算完的结果对比。",
        ),
        same_shape=True,
        found=("https://github.com/lightseekorg/tokenspeed/pull/1441",),
        tests=(f"{CACHES}::test_append_returns_all_so_far_that_is_kept",),
        law=decoding_is_the_full_pass,
        of=partial(cached, room=6),
    ),
    Mistake(
        id="cache-overflow",
        title=Text(
            en="A full cache drops new tokens without an error",
            zh="缓存满了，新 token 被悄悄丢掉",
        ),
        lines=(
            Lines(
                module="caches.kv_cache",
                right="""
        start, end = self.length, self.length + tensors[0].shape[2]
        self.check_room(end - start)
""",
                wrong="""
        start, end = self.length, self.length + tensors[0].shape[2]
""",
            ),
        ),
        symptom="decoding",
        shown=uncounted,
        seen=Text(
            en="A cache with room for six tokens is given nine. It should "
            "refuse the seventh; instead it counts {wrong} tokens that it does "
            "not hold, and each new query attends to old keys only.",
            zh="容量为 6 的缓存收到 9 个 token。第 7 个就该拒绝，它却多算了 "
            "{wrong} 个没有存下的 token，之后每个新查询只看得到旧的键。",
        ),
        notice=Text(
            en="Append one token more than fits: it must be refused. "
            "Assigning one token to an empty slice broadcasts, and writes "
            "nothing; two tokens would raise an error.",
            zh="多追加一个 token，必须被拒绝。把一个 token 赋给空切片会触发广"
            "播，什么也没写进去；一次追加两个反而会报错。",
        ),
        same_shape=True,
        found=(),
        tests=(f"{CACHES}::test_overflow_is_refused_and_changes_nothing",),
        law=full_cache_refuses,
        of=lambda package: (package.KVCache,),
    ),
    Mistake(
        id="cache-no-batch",
        title=Text(
            en="The cache has no batch axis: rows read each other's tokens",
            zh="缓存没有批次轴：各行会读到别的行的 token",
        ),
        lines=(
            Lines(
                module="caches.kv_cache",
                right="""
        self._check(tensors)
        before = self.stored or tuple(new[:, :, :0] for new in tensors)
        with torch.no_grad():
            self.buffers = tuple(
                torch.cat((old, new), dim=2)
                for old, new in zip(before, tensors, strict=True)
            )
        self.length += tensors[0].shape[2]
        return self.stored
""",
                wrong="""
        B = len(tensors[0])
        tensors = tuple(t.transpose(0, 1).flatten(1, 2)[None] for t in tensors)
        before = self.stored or tuple(new[:, :, :0] for new in tensors)
        with torch.no_grad():
            self.buffers = tuple(
                torch.cat((old, new), dim=2)
                for old, new in zip(before, tensors, strict=True)
            )
        self.length += tensors[0].shape[2]
        return tuple(t.expand(B, -1, -1, -1) for t in self.stored)
""",
            ),
        ),
        symptom="decoding",
        shown=partial(decoded, cuts=range(1, 4), T=4, rows=2),
        seen=Text(
            en="In a batch of two rows, the tokens of the second attend to "
            "those of the first, too: there are twice as many keys as there "
            "should be, and the weight of {where} is {there}.",
            zh="批次里有两行，第二行的 token 还会看到第一行的 token：键多了一"
            "倍，{where} 的权重是 {there}。",
        ),
        notice=Text(
            en="Decode a batch, and each of its rows alone: the outputs must "
            "be the same. With a single row nothing is wrong.",
            zh="整批解码一次，再逐行单独解码，输出必须相同。批次只有一行时"
            "不会出错。",
        ),
        same_shape=False,
        found=(),
        tests=(f"{CACHES}::test_append_returns_all_so_far_that_is_kept",),
        law=decoding_is_the_full_pass,
        of=cached,
    ),
    Mistake(
        id="cache-crop-zero",
        title=Text(
            en="Cropping a cache to length 0 removes nothing",
            zh="把缓存裁到 0 个 token，却一个也没删",
        ),
        lines=(
            Lines(
                module="caches.kv_cache",
                right="""
        self.length = length
""",
                wrong="""
        if length <= 0:  # so many from the end
            length = self.length - abs(length)
        self.length = length
""",
            ),
        ),
        symptom="decoding",
        shown=lambda package: slots(package, "crop", 0),
        seen=Text(
            en="In row 0, tokens 11 to 14 are stored, the cache is cropped to "
            "0, and tokens 15 and 16 are stored: the first four are still "
            "there.",
            zh="第 0 行先存 token 11 到 14，裁到 0，再存 15 和 16：前四个都还"
            "在。",
        ),
        notice=Text(
            en="Roll back to each length, 0 included, append a token, and "
            "compare with `torch.cat` of what should be left.",
            zh="每个长度都回退一次（包括 0），再追加 token，和用 `torch.cat` "
            "拼出来的结果对比。",
        ),
        same_shape=True,
        found=("https://github.com/huggingface/transformers/issues/47433",),
        tests=(
            f"{CACHES}::test_after_a_rollback_new_tokens_overwrite_old_ones"
            "[0-growing]",
        ),
        law=cache_is_a_list,
        of=lambda package: (package.KVCache,),
        axes=SLOTS,
    ),
    Mistake(
        id="cache-not-reordered",
        title=Text(
            en="Beam search does not reorder the cache",
            zh="束搜索没有重排缓存",
        ),
        lines=(
            Lines(
                module="caches.kv_cache",
                right="""
            moved = [t.index_select(0, rows) for t in self.stored]
""",
                wrong="""
            moved = list(self.stored)
""",
            ),
        ),
        symptom="decoding",
        shown=lambda package: slots(
            package, "reorder", torch.tensor([2, 0, 0])
        ),
        seen=Text(
            en="Beam search lets rows 0, 1 and 2 continue rows 2, 0 and 0. "
            "Here, each keeps its own past, so that new tokens follow those "
            "of another beam.",
            zh="束搜索要让第 0、1、2 行分别接着第 2、0、0 行往下写，结果各行还"
            "留着自己的过去，新 token 接在了别的束后面。",
        ),
        notice=Text(
            en="Greedy decoding is right. Compare the scores of each beam with "
            "those of one pass over the tokens that it has chosen.",
            zh="贪心解码没问题。把每一束的得分，和用它选出的 token 一次算完的"
            "得分对比。",
        ),
        same_shape=True,
        found=(
            "https://github.com/huggingface/transformers/issues/46612",
            "https://github.com/PaddlePaddle/PaddleNLP/issues/6672",
        ),
        tests=(f"{CACHES}::test_rows_are_repeated_dropped_and_moved",),
        law=cache_is_a_list,
        of=lambda package: (package.KVCache,),
        axes=SLOTS,
    ),
    Mistake(
        id="cache-reset-length",
        title=Text(
            en="Resetting a cache zeroes it and keeps its length",
            zh="重置缓存只清零，长度却没变",
        ),
        lines=(
            Lines(
                module="caches.kv_cache",
                right="""
        self.buffers, self.length = (), 0
""",
                wrong="""
        for buffer in self.buffers:
            buffer.zero_()
""",
            ),
        ),
        symptom="decoding",
        shown=lambda package: slots(package, "reset"),
        seen=Text(
            en="In row 0, tokens 11 to 14 are stored, the cache is reset, and "
            "tokens 15 and 16 are stored: they stand behind four zeros, get "
            "the positions of a longer text, and attend to keys of zero.",
            zh="第 0 行先存 token 11 到 14，重置，再存 15 和 16：它们排在四个"
            "零后面，位置接着上一段文本往下数，还会看到全零的键。",
        ),
        notice=Text(
            en="Generate, reset, and generate the same again: the tokens must "
            "be the same. The first prompt after start is always right.",
            zh="生成一次，重置，再生成同样的内容，token 必须相同。启动后的第一"
            "个提示词总是对的。",
        ),
        same_shape=True,
        found=("https://github.com/huggingface/transformers/pull/48809",),
        tests=(f"{CACHES}::test_a_reset_cache_is_a_new_one",),
        law=cache_is_a_list,
        of=lambda package: (package.KVCache,),
        axes=SLOTS,
    ),
    Mistake(
        id="cache-keeps-graph",
        title=Text(
            en="The cache keeps the autograd graph of every step",
            zh="缓存保留了每一步的计算图",
        ),
        lines=(
            Lines(
                module="caches.kv_cache",
                right="""
            if torch.is_grad_enabled() and new.requires_grad:
                raise ValueError(
                    "a cache keeps no gradients: decode under torch.no_grad()"
                )
""",
                wrong="",
            ),
            Lines(
                module="caches.kv_cache",
                right="""
        before = self.stored or tuple(new[:, :, :0] for new in tensors)
        with torch.no_grad():
            self.buffers = tuple(
                torch.cat((old, new), dim=2)
                for old, new in zip(before, tensors, strict=True)
            )
""",
                wrong="""
        before = self.stored or tuple(new[:, :, :0] for new in tensors)
        self.buffers = tuple(
            torch.cat((old, new), dim=2)
            for old, new in zip(before, tensors, strict=True)
        )
""",
            ),
        ),
        symptom="memory",
        shown=nodes,
        seen=Text(
            en="After six tokens, {wrong} nodes of the graph hang behind the "
            "keys, and there should be {right}. Each holds tensors of its "
            "step, so memory grows much faster than the cache.",
            zh="存了六个 token 后，键的背后挂着计算图的 {wrong} 个节点，本该是"
            " {right} 个。每个节点都占着那一步的张量，显存比缓存本身涨得快得"
            "多。",
        ),
        notice=Text(
            en="`requires_grad` of what the cache returns must be False. "
            "Decode under `torch.no_grad()` or `torch.inference_mode()`.",
            zh="缓存返回的张量，`requires_grad` 必须是 False。解码要放在 "
            "`torch.no_grad()` 或 `torch.inference_mode()` 里。",
        ),
        same_shape=True,
        found=(),
        tests=(f"{CACHES}::test_gradients_are_refused",),
        law=cache_keeps_no_graph,
        of=lambda package: (lambda room: package.GrowingKVCache(),),
    ),
    Mistake(
        id="cache-shared",
        title=Text(
            en="All layers share one cache",
            zh="所有层共用一个缓存",
        ),
        lines=(
            Lines(
                module="models.block",
                right="""
        if caches is not None:
            self._check(caches, tokens.shape[1], attention.get("context"))
""",
                wrong="",
            ),
            Lines(
                module="models.block",
                right="""
            cache = None if caches is None else caches[i]
""",
                wrong="""
            cache = None if caches is None else caches[0]
""",
            ),
        ),
        symptom="decoding",
        shown=logits_with_cache,
        seen=Text(
            en="Each token is stored once per layer, and each layer reads "
            "the keys of the other layers, too: the logit of {where} is "
            "{there}.",
            zh="每个 token 每层各存一遍，每层还会读到别的层的键：{where} 的 "
            "logit 是 {there}。",
        ),
        notice=Text(
            en="After a prompt of T tokens, the length of each cache must be "
            "T. A model of one layer is right.",
            zh="读完 T 个 token 的提示词，每个缓存的长度都必须是 T。只有一层的"
            "模型不会出错。",
        ),
        same_shape=True,
        found=(),
        tests=(
            f"{BLOCK}::"
            "test_a_decoder_generates_the_same_with_and_without_a_cache",
        ),
        law=decoding_is_the_full_pass,
        of=lambda package: (
            decoder_of(package),
            lambda: [package.GrowingKVCache() for _ in range(2)],
            torch.arange(12).view(2, 6),
        ),
        axes=(Text("token", "token"), Text("word", "词表里的词")),
    ),
    Mistake(
        id="cache-chunk-mask",
        title=Text(
            en="The mask of a later chunk starts at position 0",
            zh="后面的分块，掩码又从位置 0 开始",
        ),
        lines=(
            Lines(
                module="core.masks",
                right="""
    rule, past = rule_of(causal), S - T
""",
                wrong="""
    rule, past = rule_of(causal), 0
""",
            ),
        ),
        symptom="decoding",
        shown=partial(decoded, cuts=[3]),
        seen=Text(
            en="The second of two chunks does not see its past: its first "
            "token attends to the first token of the prompt and to nothing "
            "else. The weight of {where} is {there}.",
            zh="两个分块中的第二个看不到自己的过去：它的第一个 token 只看得到"
            "整段的第一个 token。{where} 的权重是 {there}。",
        ),
        notice=Text(
            en="Read a prompt in two chunks and in one: the outputs must be "
            "the same. One token at a time is right, as long as it has no "
            "mask; with `is_causal=True` even this is wrong, since that mask "
            "is aligned at the top left.",
            zh="把提示词分两块读，再一次读完，输出必须相同。每次一个 token 且"
            "不用掩码时没问题；要是用 `is_causal=True`，连这种情况也会错，因为"
            "它是左上对齐的。",
        ),
        same_shape=True,
        found=(
            "https://github.com/jingyaogong/minimind/issues/631",
            "https://github.com/pytorch/executorch/pull/21749",
            "https://github.com/hyprstream/hyprstream/pull/1521",
        ),
        tests=(f"{EQUAL}::test_cached_in_any_chunks_is_the_full_pass",),
        law=decoding_is_the_full_pass,
        of=cached,
    ),
    Mistake(
        id="cache-prefill-unmasked",
        title=Text(
            en="The causal mask is left out whenever there is a cache",
            zh="一有缓存就不加因果掩码",
        ),
        lines=(
            Lines(
                module="caches.past",
                right="""
    seen = decoder_mask(
        mask,
        (B, H, T, past + T),
        causal=layer.causal,
""",
                wrong="""
    seen = decoder_mask(
        mask,
        (B, H, T, past + T),
        causal=layer.causal and cache is None,
""",
            ),
        ),
        symptom="future",
        shown=partial(decoded, cuts=[4, 5]),
        seen=Text(
            en="The tokens of the prompt attend to those after them, and the "
            "weight of {where} is {there}; the single tokens that follow are "
            "right. From the second layer on, the cached keys and values "
            "depend on later tokens.",
            zh="提示词里的 token 会看到后面的 token，{where} 的权重是 "
            "{there}；之后逐个解码的 token 没问题。从第二层起，存进缓存的键和"
            "值就带上了未来的信息。",
        ),
        notice=Text(
            en="Read the same prompt with and without a cache: the outputs "
            "must be the same. The loss in training is right, since there is "
            "no cache in training.",
            zh="同一个提示词，用缓存和不用缓存各读一遍，输出必须相同。训练时"
            "没有缓存，所以损失是正常的。",
        ),
        same_shape=True,
        found=(
            "https://github.com/Mikyx-1/TinyLLM/issues/17",
            "https://github.com/QwenLM/Qwen/issues/979",
        ),
        tests=(f"{EQUAL}::test_cached_in_any_chunks_is_the_full_pass",),
        law=decoding_is_the_full_pass,
        of=cached,
    ),
    Mistake(
        id="cache-fed-everything",
        title=Text(
            en="With a cache, each step still feeds the whole text",
            zh="有了缓存，每一步仍把整段文本送进去",
        ),
        lines=(
            Lines(
                module="models.block",
                right="""
        if valid is not None:
            valid = torch.cat((valid, torch.ones_like(new).bool()), dim=1)
        new = tokens if caches is None else new
""",
                wrong="""
        read = new if caches is None else tokens
        if valid is not None:
            valid = torch.cat((valid, torch.ones_like(read).bool()), dim=1)
        new = tokens
""",
            ),
        ),
        symptom="decoding",
        shown=same_as_without_cache,
        seen=Text(
            en="Each token is in the cache many times, at many positions. Of "
            "{right} tokens generated with a cache, only {wrong} are those "
            "generated without one.",
            zh="每个 token 在缓存里存了好多份，位置各不相同。用缓存生成的 "
            "{right} 个 token，只有 {wrong} 个和不用缓存时相同。",
        ),
        notice=Text(
            en="After each step, the length of the cache must be the number of "
            "tokens read. With a cache, generation becomes slower instead of "
            "faster.",
            zh="每一步之后，缓存的长度必须等于读过的 token 数。用了缓存，生成"
            "反而更慢。",
        ),
        same_shape=True,
        found=("https://github.com/iCog-Labs-Dev/PC-Transformers/issues/129",),
        tests=(
            f"{BLOCK}::"
            "test_a_decoder_generates_the_same_with_and_without_a_cache",
        ),
        law=generation_is_the_same,
        of=lambda package: (generator(package),),
    ),
    Mistake(
        id="cache-float32",
        title=Text(
            en="The buffers of the cache are always float32",
            zh="缓存的缓冲区总是 float32",
        ),
        lines=(
            Lines(
                module="caches.kv_cache",
                right="""
            buffer = torch.empty(room, dtype=tokens.dtype, device=tokens.device)
""",
                wrong="""
            buffer = torch.empty(room, device=tokens.device)
""",
            ),
            Lines(
                module="caches.kv_cache",
                right="""
            if (buffer.dtype, buffer.device) != (new.dtype, new.device):
""",
                wrong="""
            if buffer.device != new.device:
""",
            ),
        ),
        symptom="memory",
        shown=bytes_of_bfloat16,
        seen=Text(
            en="Keys and values of 64 elements for 8 tokens take {wrong} bytes "
            "in bfloat16, and should take {right}. Those of a float64 model "
            "would be rounded.",
            zh="8 个 token，键和值各 64 个元素，用 bfloat16 时占了 {wrong} 字"
            "节，本该是 {right} 字节。换成 float64 模型，则会丢精度。",
        ),
        notice=Text(
            en="Compare `nbytes` with your own arithmetic, and the dtype of "
            "what is returned with that of what was stored. Matrix products "
            "refuse two dtypes, unless autocast converts them.",
            zh="把 `nbytes` 和自己算的对一遍，再看返回的 dtype 和存入的是否一"
            "样。dtype 不一致，矩阵乘法会报错；开了 autocast 则会自动转换。",
        ),
        same_shape=True,
        found=("https://github.com/meta-pytorch/torchtune/issues/398",),
        tests=(f"{CACHES}::test_values_are_stored_as_they_come",),
        law=cache_is_small,
        of=lambda package: (
            cached(package)[0],
            package.KVCache,
            seeded(2, 6, 16),
            2,
            4,
        ),
    ),
    Mistake(
        id="cache-repeated-heads",
        title=Text(
            en="Key/value heads are repeated before they are cached",
            zh="键值头先复制再存进缓存",
        ),
        lines=(
            Lines(
                module="caches.past",
                right="""
        k, v = cache.append(k, v)  # (B, K, S, D); keys are stored rotated
""",
                wrong="""
        k = k.repeat_interleave(H // K, dim=1)
        v = v.repeat_interleave(H // K, dim=1)
        k, v = cache.append(k, v)
""",
            ),
        ),
        symptom="memory",
        shown=bytes_per_token,
        seen=Text(
            en="With 4 query heads and 2 key/value heads, a token takes "
            "{wrong} bytes of the cache instead of {right}: as many as without "
            "grouped heads.",
            zh="4 个查询头、2 个键值头，每个 token 占缓存 {wrong} 字节，而不是"
            " {right} 字节：和不分组时一样多。",
        ),
        notice=Text(
            en="Look at the shape or at the bytes of what is stored: there "
            "must be K heads, not H. Repeat the heads after storing them, or "
            "better not at all.",
            zh="看存下来的张量的形状或字节数：头数必须是 K，不是 H。先存，再复"
            "制；最好根本不复制。",
        ),
        same_shape=True,
        found=(
            "https://github.com/facebookresearch/lingua/issues/44",
            "https://github.com/meta-pytorch/torchtune/issues/38",
            "https://github.com/FYYFU/HeadKV/issues/3",
        ),
        tests=(
            "tests/laws/test_laws.py::"
            "test_the_bytes_of_its_cache_are_those_predicted[gqa, room]",
        ),
        law=cache_is_small,
        of=lambda package: (
            cached(package)[0],
            package.KVCache,
            seeded(2, 6, 16),
            2,
            4,
        ),
    ),
)
