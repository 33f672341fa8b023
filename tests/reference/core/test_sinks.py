import torch


def test_three_forms_of_a_sink():
    # --8<-- [start:forms]
    from attnref import (
        add_sinks,
        attention_weights,
        causal_mask,
        flash_lse,
        sdpa,
    )

    q, k, v = torch.randn(3, 3, 6, 7, 5).double()
    sinks, mask = torch.randn(6).double(), causal_mask(7)
    out = sdpa(q, k, v, mask, sinks=sinks)

    bare, lse = flash_lse(q, k, v, mask)  # from a kernel without sinks
    torch.testing.assert_close(add_sinks(bare, lse, sinks)[0], out)

    column = sinks[:, None, None].expand(3, 6, 7, 1)
    scores = (q @ k.mT / 5**0.5).masked_fill(~mask, -torch.inf)
    weights = torch.cat((scores, column), dim=-1).softmax(dim=-1)
    with_zero = torch.cat((v, torch.zeros_like(v[:, :, :1])), dim=2)
    torch.testing.assert_close(weights @ with_zero, out)  # one more key

    sums = attention_weights(q, k, mask, sinks=sinks).sum(dim=-1)
    assert (sums < 1).all()
    # --8<-- [end:forms]


def test_a_sink_is_added_once_after_a_merge():
    # --8<-- [start:once]
    from attnref import add_sinks, flash_lse, merge, sdpa, split_kv

    q = torch.randn(3, 6, 1, 5)
    k, v = torch.randn(2, 3, 2, 20, 5)
    sinks = torch.randn(6)
    want = sdpa(q, k, v, sinks=sinks)

    halves = [(k[:, :, i], v[:, :, i]) for i in (slice(8), slice(8, 20))]
    parts = [flash_lse(q, *half) for half in halves]
    out, lse = merge(*zip(*parts, strict=True))
    torch.testing.assert_close(add_sinks(out, lse, sinks)[0], want)
    torch.testing.assert_close(split_kv(q, k, v, sinks=sinks), want)

    each = [flash_lse(q, *half, sinks=sinks) for half in halves]
    twice = merge(*zip(*each, strict=True))[0]
    assert (twice - want).norm() > 0.01 * want.norm()
    # --8<-- [end:once]


def test_a_key_that_was_rotated_can_be_moved():
    # --8<-- [start:moved]
    from attnref.plain.rope import rope

    keys, at = torch.randn(3, 2, 5, 16).double(), torch.arange(5) + 3000
    moved = rope(rope(keys, at), torch.full((5,), -7))
    torch.testing.assert_close(moved, rope(keys, at - 7))
    # --8<-- [end:moved]


def test_positions_inside_the_cache_are_not_the_true_ones():
    # --8<-- [start:streaming]
    from attnref import Rope, rotate, sdpa
    from attnref.plain.sinks import streaming_mask, streaming_positions

    q, k, v = torch.randn(3, 1, 2, 40, 16).double()
    kept, places = streaming_positions(S=40, first=4, window=8)
    last, keys, values = q[:, :, kept], k[:, :, kept], v[:, :, kept]

    def of_last(positions):
        turned = rotate(last, keys, rope=Rope(100.0), positions=positions)
        return sdpa(turned[0][:, :, -1:], turned[1], values)

    whole = rotate(q, k, rope=Rope(100.0))  # true positions: a mask
    want = sdpa(whole[0], whole[1], v, streaming_mask(40, 40, 4, 8))
    torch.testing.assert_close(of_last(kept), want[:, :, -1:])
    moved = of_last(places)  # StreamingLLM's
    assert (moved - of_last(kept)).norm() > 0.1 * moved.norm()
    # --8<-- [end:streaming]
