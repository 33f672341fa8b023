"""Scaled dot-product attention by PyTorch's own kernels: what to ship."""

# --8<-- [start:imports]
import functools
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attnref.core.biases import Bias, PlacedBias, place
from attnref.core.few import few
from attnref.core.inputs import check_attention
from attnref.core.masks import Mask, dense
from attnref.core.sdpa import without_autocast

# --8<-- [end:imports]


# --8<-- [start:fused]
HAS_GQA = torch.__version__ >= "2.5"  # the first with `enable_gqa`


def fused(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask = None,
    *,
    scale: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    bias: Tensor | Bias | None = None,
) -> Tensor:
    """The same as `sdpa`, by `F.scaled_dot_product_attention`.

    The query heads of a group are stacked on the query axis, so that keys and
    values are read once. A prompt that only the causal rule masks, with no
    pads and no earlier tokens, is passed on as `is_causal`, without a mask.
    Heads are passed as they are, with `enable_gqa`, in two cases: on a CPU for
    many queries with another mask, which is then not repeated for each head of
    a group; and on a GPU without a mask, because the kernels that split long
    keys among idle processors expect it.

    On a CPU, PyTorch's fused kernel needs keys and values of the same width.
    Where widths differ, as in MLA, the narrower ones are padded with zeros; if
    the values are the first part of the keys, the keys themselves are passed.
    Few queries go to `few`, which writes attention out: where a copy would cost
    more, where the kernel would leave threads idle or is slower on this machine
    (measured once), and on a GPU where keys are too wide for a kernel that
    splits them.

    A `bias` is passed on as a float mask, in the dtype of the queries.
    `softcap` and `sinks` are refused: PyTorch's kernels have neither.
    """
    for name, given in (("softcap", softcap), ("sinks", sinks)):
        if given is not None:
            raise ValueError(f"fused has no {name}; use flex, flash or sdpa")
    check_attention(q, k, v, mask, scale, bias=bias)
    if _is_for_few(q, k, v, dropout):
        return few(q, k, v, mask, scale=scale, bias=bias)
    B, H, T, D = q.shape
    Dv = v.shape[3]
    added = place(bias, mask, q, k)
    call = _call(q, k, v, mask, scale, dropout, added)
    with without_autocast(q.device):  # the output has the dtype of the inputs
        out: Tensor = F.scaled_dot_product_attention(**call)
    seen = call["attn_mask"]
    if seen is not None:
        if seen.is_floating_point():
            seen = seen > -torch.inf
        # A query that sees no key: PyTorch 2.4 gives NaN.
        out = out.masked_fill(~seen.any(dim=-1, keepdim=True), 0)
    return out[..., :Dv].reshape(B, H, T, Dv)  # (B, H, T, Dv)


def fused_backend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask = None,
    *,
    scale: float | None = None,
    dropout: float = 0.0,
    bias: Tensor | Bias | None = None,
) -> str:
    """Which of PyTorch's kernels `fused` calls for these inputs.

    "flash", "efficient" or "cudnn", or "math", which is not fused: it keeps
    all scores; so does `few`, which `fused` may call for few queries. It
    depends on the device, the dtype, the mask, the widths, the threads and on
    gradients. PyTorch itself answers.

    Examples:
        >>> q = torch.zeros(1, 2, 3, 4)
        >>> fused_backend(q, q, q)
        'flash'
        >>> fused_backend(q, q, q, dropout=0.1)
        'math'
    """
    check_attention(q, k, v, mask, scale, bias=bias)
    if _is_for_few(q, k, v, dropout):
        return "math"
    added = place(bias, mask, q, k)
    call = _call(q, k, v, mask, scale, dropout, added)
    chosen: int = torch.ops.aten._fused_sdp_choice(**call)
    names = {0: "math", 1: "flash", 2: "efficient", 3: "cudnn"}
    return names.get(chosen, f"number {chosen} of SDPBackend")


def _call(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask,
    scale: float | None,
    dropout: float,
    bias: PlacedBias | None,
) -> dict[str, Any]:
    """The arguments with which PyTorch is called."""
    B, H, T, D = q.shape
    K = k.shape[1]
    how: dict[str, Any] = {"attn_mask": None, "dropout_p": dropout}
    how["scale"] = D**-0.5 if scale is None else scale
    q, k, v = _of_one_width(q, k, v, dropout)
    lazy = None if isinstance(mask, Tensor) or bias is not None else mask
    if lazy is not None and lazy.is_triangle() and (H == K or HAS_GQA):
        # The heads cannot be stacked: the kernel would take the queries of
        # the second head of a group for later ones.
        how["is_causal"] = True
        if H > K:
            how["enable_gqa"] = True
        return {"query": q, "key": k, "value": v, **how}
    seen = dense(mask)
    if bias is not None:
        added = bias.dense().to(q.dtype)
        seen = added if seen is None else added.where(seen, -torch.inf)
    if seen is not None:
        seen = seen[(None,) * (4 - seen.dim())]
    if H > K and (_is_large(seen, q) if seen is not None else _splits(q, v)):
        how["attn_mask"], how["enable_gqa"] = seen, True
    else:
        q = q.reshape(B, K, H // K * T, q.shape[3])
        how["attn_mask"] = _stacked(seen, H, K, T)
    return {"query": q, "key": k, "value": v, **how}


def _is_large(mask: Tensor, q: Tensor) -> bool:
    """Whether stacking would repeat a mask that the heads share, for so many
    queries per head that stacking them gains nothing.

    Not on other devices: some of their kernels refuse `enable_gqa`.
    """
    # A size that is compared is fixed in a graph, except with 1.
    least = 1 if torch.compiler.is_compiling() else 64
    many = mask.shape[1] == 1 and mask.shape[2] > least
    return many and HAS_GQA and q.device.type == "cpu"


def _splits(q: Tensor, v: Tensor) -> bool:
    """Whether a kernel of this GPU takes unlike heads without a mask, and
    then divides long keys among its processors: FlashAttention or cuDNN."""
    fits = q.shape[3] == v.shape[3] <= 256 and q.dtype.itemsize == 2
    return fits and HAS_GQA and _is_ampere(q.device)


def _is_ampere(device: torch.device) -> bool:
    """Or later. The compiler knows the properties of a device."""
    if device.type != "cuda":
        return False
    return bool(torch.cuda.get_device_properties(device).major >= 8)


def _stacked(mask: Tensor | None, H: int, K: int, T: int) -> Tensor | None:
    """The mask of stacked heads; one that all heads share is not repeated
    unless the queries have masks of their own."""
    if mask is None or mask.shape[1:3] == (1, 1) or H == K:
        return mask
    heads = K if mask.shape[1] == H else 1
    mask = mask.expand(-1, heads * (H // K), T, -1)
    return mask.reshape(len(mask), heads, H // K * T, mask.shape[3])


# --8<-- [end:fused]


# --8<-- [start:widths]
def _is_for_few(q: Tensor, k: Tensor, v: Tensor, dropout: float) -> bool:
    """Whether the products of `few` are faster than PyTorch's kernel: for few
    queries, whose scores are smaller than the keys."""
    compiling = torch.compiler.is_compiling()
    if q.device.type not in ("cpu", "cuda") or dropout > 0:
        return False
    if compiling and q.shape[2] > 1:  # a size that is compared is fixed
        return False
    rows = q.shape[1] // k.shape[1] * q.shape[2]
    if q.device.type == "cuda":
        # Memory-efficient attention, the only kernel, gives each block of 32
        # rows to one processor. An H200 is faster with it from 16 blocks on.
        blocks = len(k) * k.shape[1] * -(-rows // 32)
        return q.shape[3] > 256 and rows <= 128 and blocks < 16
    if 3 * rows > max(q.shape[3], v.shape[3]):  # `few` has them 3 times
        return False
    if not (_has_kernel(q, v, dropout) or _is_part(v, k)):
        return True
    return not compiling and _is_slow(k, rows)


def _is_slow(k: Tensor, rows: int) -> bool:
    """Whether PyTorch's kernel is slower, with `rows` of queries for each key
    head and so many keys that calls cost less than products.

    A thread takes blocks of 32 rows of one key head, so that others may be
    idle. The products of a single block are spread over a few threads, those of
    several are not. With a single row, in float32 with up to four, one
    processor is faster with the kernel and another without it.
    """
    threads = torch.get_num_threads()
    half = k.dtype.itemsize < 4
    if k.numel() < 2**20:
        return False
    if threads <= 8 and rows <= (1 if half else 4):
        return _measured_slow(k.dtype, rows, threads)
    # In half precision `few` has to widen the keys: for one block this costs
    # what it would save, for the 128 rows of absorbed MLA it does not.
    blocks = len(k) * k.shape[1] * -(-rows // 32)
    if blocks >= threads or (half and rows <= 32):
        return False
    return blocks > 1 or threads > 8


@functools.cache
def _measured_slow(dtype: torch.dtype, rows: int, threads: int) -> bool:
    """The same, measured once on this machine, in about 20 ms.

    In a thread of its own, where modes of the caller, such as those that
    count operations or make no data, do not apply.
    """

    def measure() -> bool:
        q = torch.ones(1, 8, rows, 128, dtype=dtype)
        k = torch.ones(1, 8, 1024, 128, dtype=dtype)
        took: dict[Any, list[float]] = {}
        with torch.no_grad():
            for way in 7 * (F.scaled_dot_product_attention, few):
                start = perf_counter()
                way(q, k, k)
                took.setdefault(way, []).append(perf_counter() - start)
        kernel, written_out = (min(times) for times in took.values())
        return written_out < kernel

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(measure).result()


def _of_one_width(
    q: Tensor, k: Tensor, v: Tensor, dropout: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values for the fused kernel of a CPU."""
    if _has_kernel(q, v, dropout):
        return q, k, v
    if _is_part(v, k):
        return q, k, k
    more = q.shape[3] - v.shape[3]
    if more > 0:
        return q, k, F.pad(v, (0, more))
    return F.pad(q, (0, -more)), F.pad(k, (0, -more)), v


def _has_kernel(q: Tensor, v: Tensor, dropout: float) -> bool:
    """Whether widening would not help; other devices are not measured."""
    return q.shape[3] == v.shape[3] or q.device.type != "cpu" or dropout > 0


def _is_part(v: Tensor, k: Tensor) -> bool:
    """Whether `v` is the first part of each key, in the same memory.

    Not asked where a gradient is recorded: it would go to `k` instead.
    """
    if torch.compiler.is_compiling():
        return False
    if torch.is_grad_enabled() and (k.requires_grad or v.requires_grad):
        return False
    try:
        return k[..., : v.shape[3]].is_set_to(v)
    except RuntimeError:  # under `torch.vmap`
        return False


# --8<-- [end:widths]
