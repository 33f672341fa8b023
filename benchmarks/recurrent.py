"""The recurrences of layers, beside those of transformers in torch."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.models.kimi_linear import modeling_kimi_linear as kimi
from transformers.models.mamba2 import modeling_mamba2 as mamba
from transformers.models.qwen3_next import modeling_qwen3_next as qwen

from attnref.core.recurrence import chunked, scan
from benchmarks.cores import EXACT
from benchmarks.timing import Timed

# Heads of keys, heads, width of a key and of a value.
SHAPES = {
    "Gated DeltaNet": (16, 32, 128, 128),  # Qwen3-Next
    "KDA": (32, 32, 128, 128),  # Kimi Linear
    "Mamba-2": (8, 128, 128, 64),  # Nemotron-H-8B
}


def recurrence(kind: str, tokens: int) -> Timed:
    """So many tokens after others, in float32: the state and what is read.

    The functions of transformers get their inputs in their own layout. They
    normalise nothing and scale the queries, as they always do.
    """
    K, H, D, Dv = SHAPES[kind]
    q, k = (F.normalize(torch.randn(1, K, tokens, D), dim=-1) for _ in range(2))
    v, state = torch.randn(1, H, tokens, Dv), torch.randn(1, H, D, Dv)
    channels = (D,) if kind == "KDA" else ()
    decay = -torch.rand(1, H, tokens, *channels) / 2
    beta = None if kind == "Mamba-2" else torch.rand(1, H, tokens)
    step = -decay.transpose(1, 2)  # (1, T, H) of Mamba-2
    theirs = [x.transpose(1, 2).contiguous() for x in (q, k, v, decay)]

    def delta(*_: Any) -> Tensor:
        rules = {
            ("Gated DeltaNet", True): qwen.torch_recurrent_gated_delta_rule,
            ("Gated DeltaNet", False): qwen.torch_chunk_gated_delta_rule,
            ("KDA", True): kimi.recurrent_kimi_delta_attention,
            ("KDA", False): kimi.chunk_kimi_delta_attention,
        }
        out: Tensor = rules[kind, tokens == 1](
            queries,
            *theirs[1:3],
            g=theirs[3],
            beta=rates,
            initial_state=state,
            output_final_state=True,
        )[0]
        return out.transpose(1, 2)

    def selective(*_: Any) -> Tensor:
        if tokens > 1:
            out, _ = mamba.mamba2_chunk_scan(
                values,
                step,
                -torch.ones(H),
                theirs[1],
                theirs[0],
                256,  # of Mamba2Config
                initial_states=turned,
                return_final_states=True,
            )
            return out.transpose(1, 2)
        out = mamba.mamba2_selective_state_update(
            turned.copy_(state.mT),  # which it writes to
            values[:, 0],
            step[:, 0, :, None].expand(-1, -1, Dv),
            -torch.ones(H, Dv, D),
            theirs[1][:, 0],
            theirs[0][:, 0],
        )
        return out[:, :, None]

    def ours(q: Tensor, k: Tensor, v: Tensor, g: Tensor, s: Tensor) -> Tensor:
        b = None if beta is None else beta.to(q.dtype)
        return chunked(q, k, v, g, s, beta=b)[0]

    def one_by_one(*given: Tensor) -> Tensor:
        q, k, v, g, s = given
        b = None if beta is None else beta.to(q.dtype)
        return scan(q, k, v, g, s, beta=b)[0]

    if beta is None:
        values, turned = theirs[2] / step[..., None], state.mT.contiguous()
    else:
        queries, rates = theirs[0] * D**0.5, beta.mT.contiguous()
    ways = {
        "chunked": ours,
        "scan": one_by_one,
        "transformers": selective if beta is None else delta,
    }
    truth = one_by_one if tokens <= EXACT else None
    return Timed(ways, [(q, k, v, decay, state)], truth)
