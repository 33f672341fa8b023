"""attnref: transformer attention, written to be read and safe to copy."""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

# Where each public name is defined. Nothing of this is imported, and so not
# torch either, before a name is asked for. __init__.pyi tells the same.
_HOMES = {
    "caches.kv_cache": ["Cache", "GrowingKVCache", "KVCache"],
    "caches.ring": ["RingKVCache"],
    "caches.state": ["StateCache", "state_of"],
    "core.biases": ["Alibi", "Bias", "RelativeBias"],
    "core.flash": ["flash", "flash_lse"],
    "core.flex": ["flex"],
    "core.fused": ["fused", "fused_backend"],
    "core.masks": [
        "Causal",
        "Chunk",
        "Documents",
        "Everything",
        "Prefix",
        "Rule",
        "RuleMask",
        "Window",
        "causal_mask",
        "cross_mask",
        "decoder_mask",
        "dense",
        "mask_mod",
        "padding_mask",
        "padding_mask_from_hf",
    ],
    "core.merge": ["merge", "split_kv", "with_prefix"],
    "core.rope": [
        "Rope",
        "apply_rope",
        "rope_table",
        "rotate",
        "token_positions",
    ],
    "core.scaling": [
        "DynamicNtk",
        "Llama3",
        "LongRope",
        "Ntk",
        "PositionInterpolation",
        "Proportional",
        "Scaling",
        "Yarn",
    ],
    "core.sdpa": ["Attend", "Scores", "attention_weights", "sdpa"],
    "core.sinks": ["add_sinks"],
    "core.softmax": ["online_softmax", "softmax"],
    "layers.cross": ["CrossAttention"],
    "layers.gated_delta": ["GatedDeltaNet"],
    "layers.gqa": ["GroupedQueryAttention", "grouped_query_loop"],
    "layers.kda": ["KimiDeltaAttention"],
    "layers.lightning": ["LightningAttention"],
    "layers.mamba2": ["Mamba2"],
    "layers.mha": ["MultiHeadAttention", "multi_head_loop"],
    "layers.dsa": ["DeepSeekSparseAttention"],
    "layers.mla": [
        "MultiHeadLatentAttention",
        "absorbed_weights",
        "crossover",
        "form_of",
    ],
    "layers.mlstm": ["MLSTM"],
    "layers.mqa": ["MultiQueryAttention", "multi_query_loop"],
    "layers.short_conv": ["ShortConvolution"],
    "layers.block": ["Block", "Decoder", "SwiGLU", "greedy", "sampled"],
    "layers.convert": [
        "dequantised",
        "mha_to_gqa",
        "rope_rows",
        "split_qkv",
        "weights_of_torch_mha",
    ],
}
__all__ = sorted(  # pyright: ignore[reportUnsupportedDunderAll]
    name for names in _HOMES.values() for name in names
)
# These read files of the package: they are not in __all__, and so in no copy.
_TOOLS = {
    "judge.checker": ["Report", "Verdict", "check"],
    "released.configured": ["ConfiguredAttention", "attention_from_config"],
    "released.generate": ["file_of"],
    "released.record": ["AttentionRecord", "attention_of"],
}
_TOOL_NAMES = [name for names in _TOOLS.values() for name in names]
_APART = ["kernels", "plain"]  # their files are imported one by one, by names
_FOLDERS = sorted({*_APART, *(home.partition(".")[0] for home in _HOMES)})


def __getattr__(name: str) -> Any:
    """Called for what is not there yet: a name or a folder of the package.

    All homes are imported at once: what `attnref.core.rope` gives must not
    depend on which names were asked for before it.
    """
    for home, names in _TOOLS.items():
        if name in names:
            module = import_module(f"{__name__}.{home}")
            globals().update({name: getattr(module, name) for name in names})
            return globals()[name]
    if name not in __all__ and name not in _FOLDERS:
        from attnref.words import hint

        meant = hint(name, {name: name for name in __all__})
        raise AttributeError(
            f"module {__name__!r} has no attribute {name!r}{meant}", name=name
        )
    if name in _APART:
        return import_module(f"{__name__}.{name}")
    for home, names in _HOMES.items():
        module = import_module(f"{__name__}.{home}")
        globals().update({name: getattr(module, name) for name in names})
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_FOLDERS, *_TOOL_NAMES})
