import re

import pytest
import torch

from attnref import Causal, attention_weights, sdpa
from tests.kit.attention import B, D, S, T, qkv


def _bad():
    q, k, v = qkv()
    wrong_mask = torch.ones(B, S, dtype=torch.bool)
    cube = torch.ones(B, T, S, dtype=torch.bool)
    meta = k.to("meta")
    return {
        "rank": (
            (q[0], k, v),
            ValueError,
            "q has shape (6, 7, 5); it needs 4 axes",
        ),
        "heads": (
            (q, k[:, :1].expand(B, 4, S, D), v),
            ValueError,
            "k has K=4 heads and S=11 keys, v has K=3 and S=11",
        ),
        "groups": (
            (q, *(x[:, [0, 1, 2, 0]] for x in (k, v))),
            ValueError,
            "q has H=6 heads, k has K=4: K must divide H",
        ),
        "no heads": (
            (q, k[:, :0], v[:, :0]),
            ValueError,
            "q has H=6 heads, k has K=0: K must divide H",
        ),
        "width": ((q, k[..., :3], v), ValueError, "q has D=5, k has D=3"),
        "no width": (
            (q[..., :0], k[..., :0], v),
            ValueError,
            "q and k have D=0",
        ),
        "length": (
            (q, k, v[:, :, :9]),
            ValueError,
            "k has K=3 heads and S=11 keys, v has K=3 and S=9",
        ),
        "batch": ((q, k, v[:1]), ValueError, "q has B=2, v has B=1"),
        "batch of k": ((q, k[:1], v), ValueError, "q has B=2, k has B=1"),
        "dtype": (
            (q, k.float(), v),
            TypeError,
            "q is torch.float64, k is torch.float32",
        ),
        "dtype of v": (
            (q, k, v.float()),
            TypeError,
            "q is torch.float64, v is torch.float32",
        ),
        "a word": (
            (q, k, v, "causal"),
            TypeError,
            "mask is str; pass a bool tensor",
        ),
        "a rule": (
            (q, k, v, Causal()),
            TypeError,
            "mask is Causal; pass a rule as a layer's `causal`, or in a Rule",
        ),
        "a tokenizer's mask": (
            (q, k, v, torch.ones(B, S, dtype=torch.long)),
            TypeError,
            "padding_mask_from_hf(mask) if it is a tokenizer's",
        ),
        "one axis": (
            (q, k, v, torch.ones(S, dtype=torch.bool)),
            ValueError,
            "mask has shape (11,), which does not broadcast",
        ),
        "device": ((q, meta, v), ValueError, "q is on cpu, k on meta"),
        "float mask": (
            (q, k, v, torch.zeros(T, S)),
            TypeError,
            "mask is torch.float32; pass bool, True = may attend: mask == 0",
        ),
        "integer mask": (
            (q, k, v, torch.ones(T, S, dtype=torch.long)),
            TypeError,
            "mask is torch.int64; pass bool, True = may attend: mask.bool()",
        ),
        "mask device": (
            (q, k, v, torch.ones(T, S, dtype=torch.bool, device="meta")),
            ValueError,
            "mask is on meta, q on cpu",
        ),
        "padding as mask": (
            (q, k, v, wrong_mask),
            ValueError,
            "mask has shape (2, 11), which does not broadcast to (B, H, T, S)"
            " = (2, 6, 7, 11); padding_mask(valid) gives (2, 1, 1, 11)",
        ),
        "transposed mask": (
            (q, k, v, torch.ones(S, T, dtype=torch.bool)),
            ValueError,
            "mask has shape (11, 7), which does not broadcast",
        ),
        "three axes": (
            (q, k, v, cube),
            ValueError,
            "write mask[:, None] or mask[None]",
        ),
        "five axes": (
            (q, k, v, cube[None, None]),
            ValueError,
            "mask has shape (1, 1, 2, 7, 11), which does not broadcast",
        ),
    }


@pytest.mark.parametrize("case", _bad())
def test_bad_input_is_refused(case):
    arguments, error, message = _bad()[case]
    with pytest.raises(error, match=re.escape(message)):
        sdpa(*arguments)


def test_scale_is_a_number_and_weights_are_refused_alike():
    q, k, v = qkv()
    with pytest.raises(ValueError, match="q has D=5, k has D=3"):
        attention_weights(q, k[..., :3])
    with pytest.raises(TypeError, match="scale is Tensor; pass a float"):
        sdpa(q, k, v, scale=torch.tensor(0.5))


@pytest.mark.parametrize("i", range(3))
def test_tensors_of_whole_numbers_are_refused(i):
    q, k, v = (
        torch.ones(3, 2, 5, 4, dtype=torch.int64 if j == i else torch.float32)
        for j in range(3)
    )
    why = f"^{'qkv'[i]} is torch.int64; it needs a floating dtype"
    with pytest.raises(TypeError, match=why):
        sdpa(q, k, v)
