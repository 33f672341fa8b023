"""What engines allocate for the cache of a model."""

# --8<-- [start:engines]
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import NamedTuple

from attnref.numbers.kv_memory import Storage, entry_bytes, storage_of
from attnref.numbers.shapes import Full, Group, Model, Recurrent, Sliding, Store
from attnref.words import message

ENGINES = "vllm", "sglang", "llama.cpp", "transformers"
UBATCH = 512  # tokens that llama.cpp computes at once


@dataclass(frozen=True, kw_only=True)
class Pooled(Full):
    """Windows in SGLang: a pool of 0.8 entries for each token of a text."""

    @property
    def stores(self) -> tuple[Store, ...]:
        widths = (self.head_dim, self.v_head_dim)
        return (Store("kv", self.kv_heads, widths, None, Fraction(5, 4)),)


class Allocated(NamedTuple):
    """A model as an engine stores it, in blocks of so many tokens."""

    model: Model
    block: int


def allocated(
    model: Model,
    engine: str | None,
    *,
    dtype: str | Storage = "bf16",
    ranks: int = 1,
    drafts: int = 0,
) -> Allocated:
    """What an engine allocates, by default, for a model and its draft layers.

    vLLM has blocks of 16 tokens; beside states, blocks as large as the state
    of a layer, which takes one. SGLang has a pool for windows. llama.cpp has
    cells for 256 tokens at once, windows with room for a batch, and states
    wholly in float32. transformers keeps a window without its newest token,
    and one more input of each convolution.

    Examples:
        >>> from attnref.released.specs import find_model
        >>> allocated(find_model("qwen3.5-27b"), "vllm").block
        784
    """
    groups = list(model.groups)
    last = max(
        (n for n, group in enumerate(groups) if keeps_all(group)), default=None
    )
    if drafts and last is not None:
        layers = groups[last].layers + drafts
        groups[last] = replace(groups[last], layers=layers)
    model, block = replace(model, groups=tuple(groups)), 1
    if engine == "vllm":
        model, block = _vllm(model, dtype, ranks)
    elif engine == "llama.cpp":
        block = 256
    elif engine not in (*ENGINES, None):
        names = message(", ").join(ENGINES)
        raise ValueError(message("no engine {!r}; there are {}", engine, names))
    changed = tuple(_group(group, engine) for group in model.groups)
    return Allocated(replace(model, groups=changed), block)


def keeps_all(group: Group) -> bool:
    """Whether layers store all tokens."""
    stores = group.stores
    return any(s.window is None and not s.fixed for s in stores)


def _group(group: Group, engine: str | None) -> Group:
    if isinstance(group, Recurrent):
        if engine == "llama.cpp":
            return replace(group, conv_bits=32)
        if engine == "transformers":
            return replace(group, conv_kernel=group.conv_kernel + 1)
    elif isinstance(group, Full) and group.window is not None:
        window = group.window
        sizes = {
            name: getattr(group, name)
            for name in ("layers", "q_heads", "kv_heads", "head_dim")
        }
        sizes["v_head_dim"] = group.v_head_dim
        if engine == "sglang":
            return Pooled(**sizes)
        if engine == "transformers":
            return Sliding(**sizes, sliding_window=max(window - 1, 1))
        if engine == "llama.cpp":
            cells = -(-(window + UBATCH) // 256) * 256
            # A window may begin inside a block; these cells are whole ones.
            return Sliding(**sizes, sliding_window=cells - 255)
    return group


def _vllm(model: Model, dtype: str | Storage, ranks: int) -> Allocated:
    """All layers share one pool of blocks: a state needs one of them."""
    storage = storage_of(model, dtype)

    def taken(group: Group) -> int:
        stores = group.stores
        return sum(entry_bytes(s, storage, ranks=ranks) for s in stores)

    states = [g for g in model.groups if isinstance(g, Recurrent)]
    tokens = [taken(g) for g in model.groups if not isinstance(g, Recurrent)]
    if not states or not tokens:
        return Allocated(model, 16)
    steps = -(-max(map(taken, states)) // (16 * min(tokens)))
    page = 16 * steps * max(tokens) * ranks
    groups = [
        Recurrent(
            layers=group.layers,
            state_heads=ranks,
            key_dim=1,
            value_dim=page // ranks,
            conv_channels=0,
            conv_kernel=1,
            state_bits=8,
            beside=group.beside,
        )
        if isinstance(group, Recurrent)
        else group
        for group in model.groups
    ]
    return Allocated(replace(model, groups=tuple(groups)), 16 * steps)


# --8<-- [end:engines]
