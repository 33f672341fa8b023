# What type checkers and editors see of __init__.py: the same names.
from attnref.caches.kv_cache import Cache, GrowingKVCache, KVCache
from attnref.caches.ring import RingKVCache
from attnref.caches.state import StateCache, state_of
from attnref.core.biases import Alibi, Bias, RelativeBias
from attnref.core.flash import flash, flash_lse
from attnref.core.flex import flex
from attnref.core.fused import fused, fused_backend
from attnref.core.masks import (
    Causal,
    Chunk,
    Documents,
    Everything,
    Prefix,
    Rule,
    RuleMask,
    Window,
    causal_mask,
    cross_mask,
    decoder_mask,
    dense,
    mask_mod,
    padding_mask,
    padding_mask_from_hf,
)
from attnref.core.merge import merge, split_kv, with_prefix
from attnref.core.rope import (
    Rope,
    apply_rope,
    rope_table,
    rotate,
    token_positions,
)
from attnref.core.scaling import (
    DynamicNtk,
    Llama3,
    LongRope,
    Ntk,
    PositionInterpolation,
    Proportional,
    Scaling,
    Yarn,
)
from attnref.core.sdpa import Attend, Scores, attention_weights, sdpa
from attnref.core.sinks import add_sinks
from attnref.core.softmax import online_softmax, softmax
from attnref.judge.checker import check as check
from attnref.judge.report import Report as Report
from attnref.judge.report import Verdict as Verdict
from attnref.layers.block import Block, Decoder, SwiGLU, greedy, sampled
from attnref.layers.convert import (
    dequantised,
    mha_to_gqa,
    rope_rows,
    split_qkv,
    weights_of_torch_mha,
)
from attnref.layers.cross import CrossAttention
from attnref.layers.dsa import DeepSeekSparseAttention
from attnref.layers.gated_delta import GatedDeltaNet
from attnref.layers.gqa import GroupedQueryAttention, grouped_query_loop
from attnref.layers.kda import KimiDeltaAttention
from attnref.layers.lightning import LightningAttention
from attnref.layers.mamba2 import Mamba2
from attnref.layers.mha import MultiHeadAttention, multi_head_loop
from attnref.layers.mla import (
    MultiHeadLatentAttention,
    absorbed_weights,
    crossover,
    form_of,
)
from attnref.layers.mlstm import MLSTM
from attnref.layers.mqa import MultiQueryAttention, multi_query_loop
from attnref.layers.short_conv import ShortConvolution
from attnref.released.configured import (
    ConfiguredAttention as ConfiguredAttention,
)
from attnref.released.configured import (
    attention_from_config as attention_from_config,
)
from attnref.released.generate import file_of as file_of
from attnref.released.record import AttentionRecord as AttentionRecord
from attnref.released.record import attention_of as attention_of

__all__ = [
    "Alibi",
    "Attend",
    "Bias",
    "Block",
    "Cache",
    "Causal",
    "Chunk",
    "CrossAttention",
    "Decoder",
    "DeepSeekSparseAttention",
    "Documents",
    "DynamicNtk",
    "Everything",
    "GatedDeltaNet",
    "GroupedQueryAttention",
    "GrowingKVCache",
    "KVCache",
    "KimiDeltaAttention",
    "LightningAttention",
    "Llama3",
    "LongRope",
    "MLSTM",
    "Mamba2",
    "MultiHeadAttention",
    "MultiHeadLatentAttention",
    "MultiQueryAttention",
    "Ntk",
    "PositionInterpolation",
    "Prefix",
    "Proportional",
    "RelativeBias",
    "RingKVCache",
    "Rope",
    "Rule",
    "RuleMask",
    "Scaling",
    "Scores",
    "ShortConvolution",
    "StateCache",
    "SwiGLU",
    "Window",
    "Yarn",
    "absorbed_weights",
    "add_sinks",
    "apply_rope",
    "attention_weights",
    "causal_mask",
    "cross_mask",
    "crossover",
    "decoder_mask",
    "dense",
    "dequantised",
    "flash",
    "flash_lse",
    "flex",
    "form_of",
    "fused",
    "fused_backend",
    "greedy",
    "grouped_query_loop",
    "mask_mod",
    "merge",
    "mha_to_gqa",
    "multi_head_loop",
    "multi_query_loop",
    "online_softmax",
    "padding_mask",
    "padding_mask_from_hf",
    "rope_rows",
    "rope_table",
    "rotate",
    "sampled",
    "sdpa",
    "softmax",
    "split_kv",
    "split_qkv",
    "state_of",
    "token_positions",
    "weights_of_torch_mha",
    "with_prefix",
]
__version__: str
