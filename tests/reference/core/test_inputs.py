import re

import pytest
import torch

from attnref import attention_weights, sdpa
from tests.cores import ATTEND
from tests.kit.attention import B, H, S, T, qkv, wrong_masks
from tests.kit.refusals import refusals

each_attend = pytest.mark.parametrize("core", ATTEND.values(), ids=ATTEND)


@each_attend
@refusals(
    """
    >>> core(q[0], k, v)
    ValueError: q has shape (6, 7, 5); it needs 4 axes
    >>> core(q, k.new_ones(B, 4, S, 5), v)
    ValueError: k has K=4 heads and S=11 keys, v has K=3 and S=11
    >>> core(q, *(x[:, [0, 1, 2, 0]] for x in (k, v)))
    ValueError: q has H=6 heads, k has K=4: K must divide H
    >>> core(q, k[:, :0], v[:, :0])
    ValueError: q has H=6 heads, k has K=0: K must divide H
    >>> core(q, k[..., :3], v)
    ValueError: q has D=5, k has D=3
    >>> core(q[..., :0], k[..., :0], v)
    ValueError: q and k have D=0
    >>> core(q, k, v[:, :, :9])
    ValueError: k has K=3 heads and S=11 keys, v has K=3 and S=9
    >>> core(q, k, v[:1])
    ValueError: q has B=2, v has B=1
    >>> core(q, k[:1], v)
    ValueError: q has B=2, k has B=1
    >>> core(q, k.float(), v)
    TypeError: q is torch.float64, k is torch.float32
    >>> core(q, k, v.float())
    TypeError: q is torch.float64, v is torch.float32
    >>> core(q, k.to("meta"), v)
    ValueError: q is on cpu, k on meta
    """
)
def test_bad_input_is_refused(core, call, error, message):
    q, k, v = qkv()
    with pytest.raises(error, match=message):
        eval(call)


@each_attend
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


@each_attend
@pytest.mark.parametrize("i", range(3))
def test_tensors_of_whole_numbers_are_refused(i, core):
    q, k, v = (
        torch.ones(3, 2, 5, 4, dtype=torch.int64 if j == i else torch.float32)
        for j in range(3)
    )
    why = f"^{'qkv'[i]} is torch.int64; it needs a floating dtype"
    with pytest.raises(TypeError, match=why):
        core(q, k, v)
