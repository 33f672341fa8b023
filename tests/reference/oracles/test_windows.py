"""Windows and chunks: our layers on rings beside transformers' attention."""

from functools import partial

import pytest
import torch
from transformers.masking_utils import (
    create_chunked_causal_mask,
    create_sliding_window_causal_mask,
)
from transformers.models.gemma2 import modeling_gemma2 as gemma2
from transformers.models.gpt_oss import modeling_gpt_oss as gpt_oss
from transformers.models.llama4 import modeling_llama4 as llama4
from transformers.models.mistral import modeling_mistral as mistral

from attnref import (
    Chunk,
    GroupedQueryAttention,
    GrowingKVCache,
    RingKVCache,
    Rope,
    Window,
)
from tests.kit.compare import relative_error
from tests.kit.oracles import (
    CHUNKS,
    LENGTH,
    SIZES,
    THETA,
    E,
    H,
    K,
    in_ours,
    padded,
    positions_of,
    sharpened,
    tables,
)
from tests.variants import B

SLIDING = ["sliding_attention"]
# The class, its configuration, what this is told, and what our layer is.
THEIRS = {
    "Mistral": (
        mistral.MistralAttention,
        mistral.MistralConfig,
        {"sliding_window": 5},
        {"causal": Window(5)},
    ),
    "Gemma 2": (
        gemma2.Gemma2Attention,
        gemma2.Gemma2Config,
        {
            "sliding_window": 5,
            "layer_types": SLIDING,
            "attn_logit_softcapping": None,
            "query_pre_attn_scalar": 10,
        },
        {"causal": Window(5)},
    ),
    "gpt-oss without sinks": (
        gpt_oss.GptOssAttention,
        gpt_oss.GptOssConfig,
        {
            "sliding_window": 5,
            "layer_types": SLIDING,
            "attn_implementation": "eager",
        },
        {"causal": Window(5), "bias": True},
    ),
    "Llama 4": (
        llama4.Llama4TextAttention,
        llama4.Llama4TextConfig,
        {
            "attention_chunk_size": 5,
            "layer_types": ["chunked_attention"],
            "use_qk_norm": False,
            "attn_temperature_tuning": False,
        },
        {"causal": Chunk(5)},
    ),
}


@pytest.mark.parametrize("pads", [None, "left"])
@pytest.mark.parametrize("name", THEIRS)
@torch.no_grad()
def test_a_ring_gives_what_transformers_gives(name, pads):
    """Whole, one by one and in ragged chunks; exact but for Llama 4, which
    rotates in float32."""
    module, config, extra, told = THEIRS[name]
    rope = {"rope_type": "default", "rope_theta": THETA}
    more = {"num_key_value_heads": K, "head_dim": 10, "rope_parameters": rope}
    config = config(**SIZES | more | extra)
    theirs = sharpened(module(config, layer_idx=0)).double()
    if name.startswith("gpt-oss"):
        theirs.sinks.fill_(-torch.inf)
    chunked = name == "Llama 4"
    layout = "interleaved" if chunked else "half"
    ours = GroupedQueryAttention(
        d_model=E,
        n_heads=H,
        n_kv_heads=K,
        head_dim=10,
        rope=Rope(THETA, layout=layout),
        **told,
    ).double()
    ours.load_state_dict(
        theirs.state_dict(), strict=not hasattr(theirs, "sinks")
    )
    x, valid = torch.randn(B, LENGTH, E).double(), None
    at = torch.arange(LENGTH)[None]
    if pads:
        valid = padded(pads)
        at = positions_of(valid)
    make = create_sliding_window_causal_mask
    rotary = partial(tables, config)(x, at)
    if chunked:
        make = create_chunked_causal_mask
        rotary = llama4.Llama4TextRotaryEmbedding(config)(x, at)
    elif name.startswith("gpt-oss"):
        rotary = tuple(t[..., :5] for t in rotary)
    mask = make(
        config=config,
        inputs_embeds=x,
        attention_mask=None if valid is None else valid.long(),
        cache=None,
        position_ids=at,
    )
    want, *_ = theirs(x, position_embeddings=rotary, attention_mask=mask)
    real = slice(None) if valid is None else valid
    bound = 1e-6 if chunked else 1e-12
    for chunks in (*CHUNKS.values(), (13,) + (1,) * 11):
        for cache in (GrowingKVCache(), RingKVCache(5)):
            got = in_ours(ours, x, chunks, cache, valid, at if pads else None)
            assert relative_error(got[real], want[real]) <= bound
    ours.causal = Window(6)
    wrong = in_ours(ours, x, valid=valid)
    assert relative_error(wrong[real], want[real]) > 0.01
