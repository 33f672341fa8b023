"""Convert weights from other libraries, RoPE layouts and variants."""

# --8<-- [start:imports]
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from attnref.core.checks import check_sizes
from attnref.layers.gqa import GroupedQueryAttention
from attnref.layers.mha import MultiHeadAttention

# --8<-- [end:imports]


# --8<-- [start:pool]
@torch.no_grad()
def mha_to_gqa(
    mha: MultiHeadAttention, n_kv_heads: int
) -> GroupedQueryAttention:
    """Convert MHA to GQA: mean-pool the key and value heads of each group.

    All else is kept. The result equals MHA only if the heads of each group are
    identical; otherwise it is a starting point for further training.

    Examples:
        >>> mha = MultiHeadAttention(d_model=64, n_heads=8)
        >>> mha_to_gqa(mha, 2).k_proj.weight.shape
        torch.Size([16, 64])
    """
    gqa = GroupedQueryAttention(
        d_model=mha.d_model,
        n_heads=mha.n_heads,
        n_kv_heads=n_kv_heads,
        head_dim=mha.head_dim,
        bias=mha.q_proj.bias is not None,
        o_bias=mha.o_proj.bias is not None,
        dropout=mha.dropout,
        causal=mha.causal,
        rope=mha.rope,
        scores=mha.scores,
        attend=mha.attend,
    ).to(mha.q_proj.weight)
    weights = mha.state_dict()
    for name, wanted in gqa.state_dict().items():
        if weights[name].shape != wanted.shape:  # of all keys or values
            heads = weights[name].view(mha.n_heads, mha.head_dim, -1)
            groups = heads.unflatten(0, (n_kv_heads, -1))
            weights[name] = groups.mean(dim=1).flatten(0, 1)
        weights[name] = weights[name].view(wanted.shape)
    gqa.load_state_dict(weights)
    return gqa.train(mha.training)


# --8<-- [end:pool]


# --8<-- [start:rope]
def rope_rows(weight: Tensor, head_dim: int, *, to: str) -> Tensor:
    """Reorder the rows of `q_proj` or `k_proj` for the other RoPE layout.

    `weight` is the weight or the bias of the projection. `to="half"` converts
    weights made for the interleaved layout, `to="interleaved"` converts back.
    Convert both projections: scores are then unchanged, because queries and
    keys are reordered in the same way.

    Examples:
        >>> rope_rows(torch.arange(6), 6, to="half")
        tensor([0, 2, 4, 1, 3, 5])
        >>> rope_rows(torch.arange(6), 6, to="interleaved")
        tensor([0, 3, 1, 4, 2, 5])
    """
    if head_dim < 1:
        raise ValueError(f"{head_dim=} must be at least 1")
    if head_dim % 2 or weight.shape[0] % head_dim:
        raise ValueError(
            f"{weight.shape[0]} rows with {head_dim=}: head_dim must be even "
            "and divide the number of rows"
        )
    columns = weight.shape[1:]  # none of a bias
    if to == "half":
        pairs = weight.reshape(-1, head_dim // 2, 2, *columns)
    elif to == "interleaved":
        pairs = weight.reshape(-1, 2, head_dim // 2, *columns)
    else:
        raise ValueError(f"{to=} is neither 'half' nor 'interleaved'")
    return pairs.transpose(1, 2).flatten(0, 2)


# --8<-- [end:rope]


# --8<-- [start:fused]
def split_qkv(
    fused: Tensor, n_heads: int, n_kv_heads: int, *, by: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Split a fused projection into rows of `q_proj`, `k_proj` and `v_proj`.

    `fused` is the weight or the bias of `qkv_proj`, `query_key_value` or
    `c_attn`, whose weight GPT-2 stores transposed: pass `weight.T`. With
    `by="layer"`, all queries come first, then all keys, then all values, as
    in Phi-3 and GPT-2; with `by="group"`, the queries of each key/value head
    come first, then its key and its value, as in GPT-NeoX, Bloom and Falcon.

    Examples:
        >>> split_qkv(torch.arange(8), 2, 1, by="layer")
        (tensor([0, 1, 2, 3]), tensor([4, 5]), tensor([6, 7]))
        >>> split_qkv(torch.arange(6), 2, 2, by="group")
        (tensor([0, 3]), tensor([1, 4]), tensor([2, 5]))
    """
    check_sizes(n_heads=n_heads, n_kv_heads=n_kv_heads)
    heads = n_heads + 2 * n_kv_heads
    if n_heads % n_kv_heads or len(fused) % heads:
        raise ValueError(
            f"{len(fused)} rows with {n_heads=} and {n_kv_heads=}: there are "
            f"{heads} heads in all, of n_heads / n_kv_heads queries to a key"
        )
    if by not in ("layer", "group"):
        raise ValueError(f"{by=} is neither 'layer' nor 'group'")
    groups = 1 if by == "layer" else n_kv_heads
    sizes = [n // groups for n in (n_heads, n_kv_heads, n_kv_heads)]
    rows = fused.reshape(groups, sum(sizes), -1, *fused.shape[1:])
    q, k, v = (part.flatten(0, 2) for part in torch.split(rows, sizes, 1))
    return q, k, v


# --8<-- [end:fused]


# --8<-- [start:torch]
def weights_of_torch_mha(mha: nn.MultiheadAttention) -> dict[str, Tensor]:
    """The weights of `nn.MultiheadAttention` under the names of this package.

    They load into a `MultiHeadAttention` or a `CrossAttention` of the same
    sizes. Two differences raise no error. PyTorch's module is causal only if
    a mask says so; `MultiHeadAttention` is causal unless it is built with
    `causal=False`. In PyTorch's masks, True = may NOT attend.

    Examples:
        >>> theirs = nn.MultiheadAttention(64, 8, bias=False)
        >>> ours = MultiHeadAttention(d_model=64, n_heads=8, causal=False)
        >>> ours.load_state_dict(weights_of_torch_mha(theirs))
        <All keys matched successfully>
    """
    if mha.bias_k is not None or mha.add_zero_attn:
        raise ValueError("add_bias_kv and add_zero_attn are not supported")
    if mha.in_proj_weight is not None:
        projections = mha.in_proj_weight.chunk(3)
    else:  # keys or values have a different width
        projections = (mha.q_proj_weight, mha.k_proj_weight, mha.v_proj_weight)
    names = ("q_proj", "k_proj", "v_proj")
    weights = {
        f"{name}.weight": weight.detach()
        for name, weight in zip(names, projections, strict=True)
    }
    weights["o_proj.weight"] = mha.out_proj.weight.detach()
    if mha.in_proj_bias is not None:
        for name, bias in zip(names, mha.in_proj_bias.chunk(3), strict=True):
            weights[f"{name}.bias"] = bias.detach()
        weights["o_proj.bias"] = mha.out_proj.bias.detach()
    return weights


# --8<-- [end:torch]


# --8<-- [start:fp8]
@torch.no_grad()
def dequantised(
    state_dict: Mapping[str, Tensor],
    *,
    block: int = 128,
    dtype: torch.dtype = torch.bfloat16,
) -> dict[str, Tensor]:
    """Dequantise a float8 checkpoint in the format of DeepSeek-V3.

    A float8 matrix `name.weight` comes with `name.weight_scale_inv`, which
    holds one scale for each block of `block` by `block` elements. The elements
    of a block are multiplied by its scale; blocks at the right and bottom
    edges may be smaller. Matrices may be stacked, as for experts, and then
    their scales are stacked, too. Other tensors are returned unchanged.

    Examples:
        >>> weight = torch.full((3, 2), 2.0).to(torch.float8_e4m3fn)
        >>> scales = torch.tensor([[10.0], [100.0]])
        >>> checkpoint = {"o.weight": weight, "o.weight_scale_inv": scales}
        >>> dequantised(checkpoint, block=2, dtype=torch.float32)
        {'o.weight': tensor([[ 20.,  20.],
                [ 20.,  20.],
                [200., 200.]])}
    """
    check_sizes(block=block)
    wide, ending = {}, "_scale_inv"
    for name, weight in state_dict.items():
        scales = state_dict.get(name + ending)
        narrow = weight.is_floating_point() and weight.itemsize == 1
        if name.endswith(ending):
            if name.removesuffix(ending) not in state_dict:
                raise ValueError(f"{name} is given without its weight")
        elif not narrow:
            if scales is not None:
                raise ValueError(
                    f"{name} has scales, but is {weight.dtype}, not float8"
                )
            wide[name] = weight
        elif scales is None:
            raise ValueError(
                f"{name} is {weight.dtype}, but {name}{ending} is missing"
            )
        else:
            sizes = weight.shape[-2:]
            squares = tuple(-(-size // block) for size in sizes)
            squares = (*weight.shape[:-2], *squares)  # one matrix, or several
            if weight.dim() < 2 or scales.shape != squares:
                raise ValueError(
                    f"{name} has shape {tuple(weight.shape)} and scales of "
                    f"shape {tuple(scales.shape)}; {block=} needs {squares}"
                )
            if not scales.is_floating_point():
                raise TypeError(
                    f"{name}{ending} is {scales.dtype}; it must be floating"
                )
            each = scales.float().repeat_interleave(block, dim=-2)
            each = each.repeat_interleave(block, dim=-1)
            each = each[..., : sizes[0], : sizes[1]]
            wide[name] = (weight.float() * each).to(dtype)
    return wide


# --8<-- [end:fp8]
