"""The bytes of a cache against those of transformers' own, model by model.

On the meta device, where a tensor has its shape and its type but no memory.
"""

import re
from collections import Counter
from dataclasses import replace
from functools import cache

import pytest
import torch
from transformers import (
    CONFIG_MAPPING,
    AutoModel,
    DynamicCache,
    QuantizedCache,
    StaticCache,
)
from transformers.cache_utils import get_layer_types_and_kwargs

from attnref.kv_memory import DTYPES, entry_bytes, kv_bytes, state_bytes
from attnref.specs import (
    Chunked,
    Compressed,
    Full,
    Mla,
    Recurrent,
    Sliding,
    find_model,
    models,
)

B, T = 3, 61

# What transformers calls the architecture of each.
TYPES = {
    "gpt2": "gpt2",
    "llama-1-65b": "llama",
    "falcon-7b": "falcon",
    "llama-2-7b": "llama",
    "llama-2-70b": "llama",
    "mistral-7b": "mistral",
    "deepseek-67b": "llama",
    "deepseek-v2": "deepseek_v2",
    "deepseek-v2-lite": "deepseek_v2",
    "gemma-2-27b": "gemma2",
    "llama-3.1-8b": "llama",
    "llama-3.1-70b": "llama",
    "llama-3.1-405b": "llama",
    "minicpm3-4b": "minicpm3",
    "olmo-2-7b": "olmo2",
    "deepseek-v3": "deepseek_v3",
    "gemma-3-4b": "gemma3_text",
    "gemma-3-12b": "gemma3_text",
    "gemma-3-27b": "gemma3_text",
    "command-a": "cohere2",
    "llama-4-scout": "llama4_text",
    "qwen3-8b": "qwen3",
    "qwen3-32b": "qwen3",
    "qwen3-235b": "qwen3_moe",
    "kimi-k2": "kimi_k25",
    "glm-4.5": "glm4_moe",
    "glm-4.5-air": "glm4_moe",
    "smollm3-3b": "smollm3",
    "gpt-oss-120b": "gpt_oss",
    "gpt-oss-20b": "gpt_oss",
    "seed-oss-36b": "seed_oss",
    "qwen3-next-80b": "qwen3_next",
    "longcat-flash": "longcat_flash",
    "kimi-linear-48b": "kimi_linear",
    "minimax-m2": "minimax_m2",
    "olmo-3-7b": "olmo3",
    "olmo-3-32b": "olmo3",
    "deepseek-v3.2": "deepseek_v32",
    "nemotron-3-nano": "nemotron_h",
    "olmo-hybrid-7b": "olmo_hybrid",
    "qwen3.5-397b": "qwen3_5_moe_text",
    "glm-5": "glm_moe_dsa",
    "qwen3.5-9b": "qwen3_5_text",
    "mistral-small-4": "mistral4",
    "deepseek-v4-flash": "deepseek_v4",
    "deepseek-v4-pro": "deepseek_v4",
    "gemma-4-31b": "gemma4_text",
    "gemma-4-26b": "gemma4_text",
    "gemma-4-e2b": "gemma4_text",
    "mimo-v2.5": "mimo_v2_flash",
    "glm-5.2": "glm_moe_dsa",
    "minimax-m3": "minimax_m3_vl_text",
    "inkling": "inkling_text",
}
