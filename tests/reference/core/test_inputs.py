import re

import pytest
import torch

from attnref import attention_weights, sdpa
from tests.kit.attention import B, D, H, S, T, qkv, wrong_masks
from tests.kit.layers import CORES

each_core = pytest.mark.parametrize("core", CORES.values(), ids=CORES)


def _bad():
    q, k, v = qkv()
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
        "device": ((q, meta, v), ValueError, "q is on cpu, k on meta"),
    }


@each_core
@pytest.mark.parametrize("case", _bad())
def test_bad_input_is_refused(case, core):
    arguments, error, message = _bad()[case]
    with pytest.raises(error, match=re.escape(message)):
        core(*arguments)


@each_core
@pytest.mark.parametrize("case", wrong_masks(B, H, T, S))
def test_a_mask_that_does_not_fit_is_refused(case, core):
    mask, error, message = wrong_masks(B, H, T, S)[case]
    with pytest.raises(error, match=re.escape(message)):
        core(*qkv(), mask)


def test_scale_is_a_number_and_weights_are_refused_alike():
    q, k, v = qkv()
    with pytest.raises(ValueError, match="q has D=5, k has D=3"):
        attention_weights(q, k[..., :3])
    with pytest.raises(TypeError, match="scale is Tensor; pass a float"):
        sdpa(q, k, v, scale=torch.tensor(0.5))


@each_core
@pytest.mark.parametrize("i", range(3))
def test_tensors_of_whole_numbers_are_refused(i, core):
    q, k, v = (
        torch.ones(3, 2, 5, 4, dtype=torch.int64 if j == i else torch.float32)
        for j in range(3)
    )
    why = f"^{'qkv'[i]} is torch.int64; it needs a floating dtype"
    with pytest.raises(TypeError, match=why):
        core(q, k, v)
