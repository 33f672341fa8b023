"""The numbers that one says at a whiteboard."""

from attnref.numbers.cost import mla_cost
from attnref.numbers.kv_memory import kv_bytes
from attnref.released.specs import find_model
from sitekit.drawn.mla import V3, V3_LAYERS


def numbers() -> dict[str, object]:
    """Of DeepSeek-V3."""
    token, of_mha = kv_bytes(find_model("deepseek-v3"), 1), 2 * 128 * 128
    expanded, absorbed = (
        mla_cost(**V3, form=f) for f in ("expanded", "absorbed")
    )
    return {
        "of_mha": f"{of_mha:,}".replace(",", "{,}"),
        "entry": absorbed.cached,
        "entry_bytes": 2 * absorbed.cached,
        "layers": V3_LAYERS,
        "token": token,
        "times": 2 * of_mha * V3_LAYERS / token,
        "products": f"{2 * 512 + 64:,}".replace(",", "{,}"),
        "expanded_products": 192 + 128,
        "larger": expanded.cached / absorbed.cached,
    }
