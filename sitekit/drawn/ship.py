"""Which call serves which situation, and which kernel PyTorch then takes.

Each of `LINES` is a row of the table, below the section of the page that shows
its calls. tests/site/use/test_ship.py makes them in the names of that section.
"""

import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from attnref.numbers.kv_memory import size
from sitekit.drawing.recorder import Recorder
from sitekit.markdown.render import Row, Word


class Line(NamedTuple):
    """One situation."""

    ours: str
    theirs: str
    exact: str  # what both equal, by `sdpa` and a mask of all T x S
    largest: str  # new tensor: no larger than the inputs, tiles, mask, scores


SDPA = "F.scaled_dot_product_attention"
GROUPED = f"{SDPA}(q, k, v, is_causal=True, enable_gqa=True)"
ONE = f"{SDPA}(one.view(B, K, H // K, D)"
LINES = {
    "causal": {
        "train": Line("fused(q, k, v, causal)", GROUPED, "sdpa(q, k, v, causal_mask(T))", "inputs"),
        "prefill": Line(
            "fused(q, *stored, causal)",
            f"{SDPA}(q, *stored, is_causal=True, enable_gqa=True)",
            "sdpa(q, k, v, causal_mask(T))",
            "inputs",
        ),
    },
    "pads": {
        "pads_right": Line(
            "fused(q, k, v, causal)",
            GROUPED,
            "sdpa(q, k, v, causal_mask(T) & padding_mask(right))",
            "inputs",
        ),
        "pads_left": Line(
            "fused(q, k, v, causal_mask(T) & padding_mask(left))",
            f"{SDPA}(q, k, v, attn_mask=causal_mask(T) & left[:, None, None], enable_gqa=True)",
            "sdpa(q, k, v, causal_mask(T) & padding_mask(left))",
            "mask",
        ),
        "cross": Line(
            "fused(new, k, v, padding_mask(right))",
            f"{SDPA}(new, k, v, attn_mask=right[:, None, None], enable_gqa=True)",
            "sdpa(new, k, v, padding_mask(right))",
            "inputs",
        ),
    },
    "chunk": {
        "chunk": Line(
            "fused(new, k, v, RuleMask(Causal(), N, T, past=T - N))",
            f"{SDPA}(new, k, v, attn_mask=aligned, enable_gqa=True)",
            "sdpa(new, k, v, causal_mask(N, T))",
            "mask",
        )
    },
    "decode": {
        "decode": Line(
            "fused(one, k, v)", f"{ONE}, k, v).view(B, H, 1, D)", "sdpa(one, k, v)", "inputs"
        ),
        "decode_left": Line(
            "fused(one, k, v, padding_mask(left))",
            f"{ONE}, k, v, attn_mask=left[:, None, None]).view(B, H, 1, D)",
            "sdpa(one, k, v, padding_mask(left))",
            "inputs",
        ),
        "decode_window": Line(
            "fused(one, k[:, :, -W:], v[:, :, -W:])",
            f"{ONE}, k[:, :, -W:], v[:, :, -W:]).view(B, H, 1, D)",
            "sdpa(one, k, v, ~causal_mask(T).tril(-W)[-1:])",
            "inputs",
        ),
    },
    "rules": {
        "packed": Line(
            "flash(q, k, v, packed)",
            "flex_attention(q, k, v, block_mask=documents, enable_gqa=True)",
            "sdpa(q, k, v, causal_mask(T) & (ids[:, None] == ids))",
            "tiles",
        ),
        "window": Line(
            "flash(q, k, v, window)",
            "flex_attention(q, k, v, block_mask=near, enable_gqa=True)",
            "sdpa(q, k, v, causal_mask(T) & ~causal_mask(T).tril(-W))",
            "tiles",
        ),
        "lse": Line(
            "flash_lse(q, k, v, packed)[1]",
            "flex_attention(q, k, v, block_mask=documents, enable_gqa=True, "
            "return_aux=AuxRequest(lse=True))[1].lse",
            "scores.masked_fill(~packed.dense(), -torch.inf).logsumexp(-1)",
            "tiles",
        ),
    },
    "mla": {
        "mla": Line(
            "fused(wide_q, wide_k, v_mla, causal)",
            f"{SDPA}(wide_q, wide_k, F.pad(v_mla, (0, DR)), is_causal=True)[..., :DN]",
            "sdpa(wide_q, wide_k, v_mla, causal_mask(T))",
            "inputs",
        ),
        "mla_decode": Line(
            "fused(absorbed, entry, entry[..., :R], scale=scale)",
            f"{SDPA}(absorbed.transpose(1, 2), entry, entry, scale=scale)[..., :R].transpose(1, 2)",
            "sdpa(absorbed, entry, entry[..., :R], scale=scale)",
            "inputs",
        ),
    },
    "more": {
        "weights": Line(
            "attention_weights(q, k, causal)",
            f"{SDPA}(q, k, eye, is_causal=True, enable_gqa=True)",
            "sdpa(q, k, eye, causal_mask(T))",
            "scores",
        ),
        "second": Line(
            "sdpa(q, k, v, causal)",
            f"sdpa_kernel(SDPBackend.MATH)({SDPA})(q, k, v, is_causal=True, enable_gqa=True)",
            "sdpa(q, k, v, causal_mask(T))",
            "scores",
        ),
        "compile": Line(
            'torch.compile(fused, backend="eager")(q, k, v, causal)',
            f'torch.compile({SDPA}, backend="eager")(q, k, v, is_causal=True, enable_gqa=True)',
            "sdpa(q, k, v, causal_mask(T))",
            "inputs",
        ),
        "half": Line(
            "fused(*half, causal)",
            f"{SDPA}(*half, is_causal=True, enable_gqa=True)",
            "sdpa(*half, causal_mask(T))",
            "inputs",
        ),
    },
}


def wrap(call: str, width: int = 40) -> list[str]:
    """A call in lines, broken after a space or a bracket."""
    lines = [""]
    for part in re.findall(r"[^ (]+[ (]*", call):
        if lines[-1] and len(lines[-1] + part.rstrip()) > width:
            lines.append("")
        lines[-1] += part
    return [f"`{line.rstrip()}`" for line in lines]


def lines(*sections: str) -> Iterator[Row]:
    """The situation, the calls, and the trap."""
    for section in sections:
        for key, line in LINES[section].items():
            yield [Word(key), [*wrap(line.theirs), "", *wrap(line.ours)], Word(f"{key}_trap")]


class KernelRecorder(Recorder):
    """Names of called operations, and the bytes of the largest new tensor."""

    def __init__(self, inputs: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.inputs = {x.untyped_storage().data_ptr() for x in inputs}
        self.calls: set[str] = set()
        self.largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.calls.add(func.__name__)
        for x in out if isinstance(out, tuple) else (out,):
            if isinstance(x, Tensor):
                memory = x.untyped_storage()
                if memory.data_ptr() not in self.inputs:
                    self.largest = max(self.largest, memory.nbytes())
        return out

    @property
    def kernel(self) -> str:
        """The fused kernel for CPUs, or the operations of the formula."""
        fused = any("flash_attention_for_cpu" in name for name in self.calls)
        return "flash" if fused else "math"


# What PyTorch does with 8 heads of 64 and 1,024 tokens on a CPU.
HEADS, TOKENS, WIDTH = 8, 1024, 64
CALLS = {
    "plain": "q, k, v, is_causal=True",
    "bool": "q, k, v, attn_mask=mask",
    "grouped": "q, k[:, :2], v[:, :2], is_causal=True, enable_gqa=True",
    "one": "q, k[:, :1], v[:, :1], is_causal=True",
    "widths": "q, k, v[..., :48], is_causal=True",
    "padded": "q, k, F.pad(v[..., :48], (0, 16)), is_causal=True",
    "dropout": "q, k, v, is_causal=True, dropout_p=0.1",
    "strided": "q, k.mT.contiguous().mT, v, is_causal=True",
    "three": "q[0], k[0], v[0], is_causal=True",
    "axes": "q, k, v, attn_mask=mask.expand(8, -1, -1)",
    "learned": "q, k, v, attn_mask=bias.requires_grad_()",
}


@cache
def recorders() -> dict[str, KernelRecorder]:
    """What each of `CALLS` runs."""
    q, k, v = torch.randn(3, 1, HEADS, TOKENS, WIDTH)
    mask = torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril()
    bias = torch.zeros(TOKENS, TOKENS)
    names = {"q": q, "k": k, "v": v, "mask": mask, "bias": bias, "F": F}
    result = {}
    for key, call in CALLS.items():
        recorder = KernelRecorder((q, k, v, mask, bias))
        with recorder:
            eval(f"{SDPA}({call})", names)
        result[key] = recorder
    return result


def kernels() -> Iterator[Row]:
    for key, recorder in recorders().items():
        yield [Word(key), wrap(CALLS[key], 36), Word(recorder.kernel), size(recorder.largest)]
