"""Weights beside a sink, tokens that are kept, and what goes wrong."""

from collections.abc import Iterator

import torch
from torch import Tensor

import attnref
from attnref.plain.rope import rope
from attnref.plain.sinks import streaming_mask, streaming_positions
from sitekit.markdown.render import Row, Word

SCORES = torch.tensor([1.0, 2.0, 3.0]).double()
VALUES = torch.tensor([10.0, 20.0, 30.0]).double()
FORMS = -torch.inf, 0.0, 3.0, 5.0  # the logits of the sink


def shares() -> Tensor:
    """The weights of three keys, and what each sink takes of them."""
    sinks = torch.tensor(FORMS).double()[:, None]  # (H, 1)
    logits: Tensor = torch.cat((SCORES.expand(4, 3), sinks), dim=1)
    return logits.softmax(dim=1)


def gated() -> Tensor:
    """What reaches the output of three keys: weights, with a sink of 5 at the
    softmax, and times a gate of sigmoid(-2) behind it."""
    plain, with_sink = (SCORES.softmax(0), torch.cat((SCORES, SCORES.new_full((1,), 5))))
    gate = torch.tensor(-2.0).double().sigmoid()
    return torch.stack((plain, with_sink.softmax(0)[:3], gate * plain))


def three_forms() -> Iterator[Row]:
    """One query, three keys and a sink of 2, in three forms."""
    sink = torch.tensor(2.0).double()
    row = torch.cat((SCORES, sink[None]))
    column = row.softmax(0)[:3] @ VALUES
    share = (SCORES.logsumexp(0) - sink).sigmoid()
    plain = SCORES.softmax(0) @ VALUES
    zero = row.softmax(0) @ torch.cat((VALUES, torch.zeros(1).double()))
    yield [Word("column"), f"{row.softmax(0)[3]:.4f}", f"{column:.3f}"]
    yield [Word("sigmoid"), f"{1 - share:.4f}", f"{share * plain:.3f}"]
    yield [Word("key"), f"{row.softmax(0)[3]:.4f}", f"{zero:.3f}"]
    yield [Word("none"), "0", f"{plain:.3f}"]


def streaming(length: int, first: int, window: int) -> Tensor:
    mask: Tensor = streaming_mask(length, length, first, window)
    return mask


def far(x: Tensor, y: Tensor) -> str:
    return f"{((x - y).abs().max() / y.abs().max()).item():.2f}"


def mistaken() -> Iterator[Row]:
    """Outputs of random inputs: how far each mistake is from the right one."""
    torch.manual_seed(0)
    H, K, T, S, D = 8, 2, 5, 24, 16
    q, k, v = (torch.randn(3, n, m, D) for n, m in ((H, T), (K, S), (K, S)))
    sinks = torch.randn(H)
    mask = attnref.causal_mask(T, S)
    want = attnref.sdpa(q, k, v, mask, sinks=sinks)

    def row(word: str, out: Tensor) -> Row:
        return [Word(word), far(out, want)]

    yield row("left", attnref.sdpa(q, k, v, mask))
    scaled_sinks = attnref.sdpa(q, k, v, mask, sinks=sinks * D**-0.5)
    yield row("scaled", scaled_sinks)
    shared_sinks = sinks.view(K, H // K)[:, :1].expand(K, H // K).reshape(H)
    yield row("shared", attnref.sdpa(q, k, v, mask, sinks=shared_sinks))
    parts = [
        attnref.flash_lse(q, k[:, :, i], v[:, :, i], mask[:, i], sinks=sinks)
        for i in (slice(0, 12), slice(12, S))
    ]
    yield row("split", attnref.merge(*zip(*parts, strict=True))[0])


# Of a head of Llama-3.1-8B, random: what matters is the angle.
WIDTH, THETA, FIRST, LAST = 128, 5e5, 4, 64


def two_positions() -> Iterator[Row]:
    """How far true positions are from those inside the cache, by length."""
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 8, 1, 8192, WIDTH)
    for length in (64, 128, 1024, 8192):
        text, cache = streaming_positions(length, FIRST, LAST)
        outs = []
        for positions in (text, cache):
            last, keys = attnref.rotate(
                q[:, :, text], k[:, :, text], rope=attnref.Rope(THETA), positions=positions
            )
            outs.append(attnref.sdpa(last[:, :, -1:], keys, v[:, :, text]))
        yield [f"{length:,}", str(len(text)), f"{length - 1:,}", str(len(text) - 1), far(*outs)]


def numbers() -> dict[str, object]:
    """How far bfloat16 keys are off after one move by 500, and a hundred by
    5, relative to the largest element."""
    torch.manual_seed(0)
    keys = torch.randn(1, 8, 64, WIDTH).bfloat16()
    want = rope(keys.float(), torch.full((64,), -500), THETA)
    result: dict[str, object] = {}
    for name, moves in ("once", 1), ("often", 100):
        k = keys
        for _ in range(moves):
            k = rope(k, torch.full((64,), -500 // moves), THETA)
        off = (k.float() - want).abs().max() / want.abs().max()
        result[name] = off.item()
    return result
