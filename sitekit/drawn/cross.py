"""What cross-attention caches of a context."""

from collections.abc import Iterator

from attnref.numbers.kv_memory import group_bytes, size
from attnref.numbers.shapes import Full
from sitekit.drawn.memory import BF16
from sitekit.markdown.render import Row, Word

# Tokens of the context; the layers that read it, and those that read the text;
# key/value heads and their width.
MODELS = {
    "bart": (1024, 12, 12, 16, 64),
    "whisper": (1500, 32, 32, 20, 64),
    "llama": (1601, 8, 32, 8, 128),
}
HOME = "https://huggingface.co"
CONFIGS = {
    "bart": "facebook/bart-large",
    "whisper": "openai/whisper-large-v3",
    "llama": "meta-llama/Llama-3.2-11B-Vision",
}


def contexts() -> Iterator[Row]:
    """The cache of one context, and how much text takes as much."""
    for name, (tokens, readers, text_layers, K, D) in MODELS.items():
        read, text = (
            Full(layers=n, q_heads=None, kv_heads=K, head_dim=D, v_head_dim=D)
            for n in (readers, text_layers)
        )
        context_bytes = group_bytes(read, tokens, BF16)
        yield [
            Word(name),
            f"{readers}",
            f"{K}",
            f"{D}",
            f"{tokens:,}",
            size(context_bytes),
            f"{context_bytes // group_bytes(text, 1, BF16):,}",
            f"[config]({HOME}/{CONFIGS[name]}/blob/main/config.json)",
        ]
