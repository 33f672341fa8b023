"""The shape of a model: what its layers cache."""

# --8<-- [start:imports]
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

# --8<-- [end:imports]


# --8<-- [start:store]
class Store(NamedTuple):
    """What a layer caches for one purpose: `heads` of `widths` per entry.

    `role` says what it is for: `"kv"`, `"index"` (keys that an indexer selects
    tokens by), `"state"` and `"conv"` (the state of a recurrent layer and the
    inputs of its convolution: one entry, whatever the length). There is one
    entry per `ratio` tokens, of the latest `window` tokens or, if that is
    None, of all tokens. What no format of the cache changes has `bits`.
    """

    role: str
    heads: int
    widths: tuple[int, ...]
    window: int | None = None
    ratio: int | Fraction = 1
    bits: int = 0

    @property
    def fixed(self) -> bool:
        """Whether its size does not depend on the length of the sequence."""
        return self.role in ("state", "conv")

    def entries(self, tokens: int, block: int = 1) -> int:
        """Number of entries for a sequence of `tokens`, in whole blocks."""
        if self.fixed:
            return 1
        blocks = -(-tokens // block)
        if self.window is not None:  # which may begin inside a block
            blocks = min(blocks, (self.window + block - 2) // block + 1)
        return blocks * block // self.ratio

    def shared(self, prefix: int, block: int = 1) -> int:
        """The entries that sequences with so many common first tokens share.

        They are whole blocks. Windows, which move on, and states are each
        sequence's own.
        """
        if self.fixed or self.window is not None:
            return 0
        return prefix // block * block // self.ratio


# --8<-- [end:store]


# --8<-- [start:groups]
@dataclass(frozen=True, kw_only=True)
class Full:
    """Layers that cache keys and values of all tokens: MHA, GQA or MQA."""

    layers: int
    q_heads: int | None  # None where no source gives it
    kv_heads: int
    head_dim: int
    v_head_dim: int
    index_dim: int = 0

    @property
    def variant(self) -> str:
        """MHA, GQA or MQA."""
        if self.kv_heads == 1:
            return "MQA"
        return "MHA" if self.kv_heads == self.q_heads else "GQA"

    @property
    def window(self) -> int | None:
        """Number of tokens that are kept; None means all."""
        return None

    @property
    def stores(self) -> tuple[Store, ...]:
        widths = (self.head_dim, self.v_head_dim)
        kv = Store("kv", self.kv_heads, widths, self.window)
        index = Store("index", 1, (self.index_dim,), self.window)
        return (kv, index) if self.index_dim else (kv,)


@dataclass(frozen=True, kw_only=True)
class Sliding(Full):
    """Layers that cache only the latest `sliding_window` tokens."""

    sliding_window: int

    @property
    def window(self) -> int:
        return self.sliding_window


@dataclass(frozen=True, kw_only=True)
class Chunked(Full):
    """Layers that start again every `chunk` tokens; a full chunk is counted."""

    chunk: int

    @property
    def window(self) -> int:
        return self.chunk


@dataclass(frozen=True, kw_only=True)
class Mla:
    """Layers that cache one latent and one RoPE key, shared by all heads.

    With `index_dim` they also cache the key of an indexer. Head widths are
    None where no source gives them; the size of the cache does not depend on
    them. Models with `rotated=False` (NoPE) cache the RoPE key unrotated. With
    a `sliding_window` they keep its latest tokens only.
    """

    layers: int
    q_heads: int
    kv_lora_rank: int
    qk_rope_head_dim: int
    qk_nope_head_dim: int | None = None
    v_head_dim: int | None = None
    index_dim: int = 0
    rotated: bool = True
    sliding_window: int | None = None

    @property
    def stores(self) -> tuple[Store, ...]:
        widths = (self.kv_lora_rank, self.qk_rope_head_dim)
        kv = Store("kv", 1, widths, self.sliding_window)
        index = Store("index", 1, (self.index_dim,))
        return (kv, index) if self.index_dim else (kv,)


@dataclass(frozen=True, kw_only=True)
class Compressed:
    """Layers that cache one vector per entry, key and value of all heads.

    There is one entry for each of the latest `sliding_window` tokens and,
    unless `ratio` is None, one more for every `ratio` tokens.
    """

    layers: int
    q_heads: int | None
    dim: int
    sliding_window: int
    ratio: int | None = None
    index_dim: int = 0

    @property
    def stores(self) -> tuple[Store, ...]:
        stores = [Store("kv", 1, (self.dim,), self.sliding_window)]
        if self.ratio is not None:
            stores.append(Store("kv", 1, (self.dim,), None, self.ratio))
        if self.ratio is not None and self.index_dim:
            stores.append(
                Store("index", 1, (self.index_dim,), None, self.ratio)
            )
        return tuple(stores)

    def waiting(self, tokens: int) -> int:
        """Elements of the tokens that have no entry yet, which `stores` omit.

        A layer keeps what the entry of each will be computed from and, with an
        index, whose entries overlap, also half of that for the block before.
        """
        if self.ratio is None:
            return 0
        overlap = bool(self.index_dim)
        each = tokens % self.ratio * (1 + overlap) + self.ratio * overlap
        return 2 * each * (self.dim + self.index_dim)


@dataclass(frozen=True, kw_only=True)
class Recurrent:
    """Layers that keep a matrix per head, and inputs of a short convolution."""

    layers: int
    state_heads: int
    key_dim: int
    value_dim: int
    conv_channels: int
    conv_kernel: int
    beside: bool = False  # keys and values, which another group counts
    state_bits: int = 32
    conv_bits: int = 16

    @property
    def stores(self) -> tuple[Store, ...]:
        matrix = self.key_dim * self.value_dim
        state = Store(
            "state", self.state_heads, (matrix,), bits=self.state_bits
        )
        past = self.conv_kernel - 1  # the newest input is not kept
        conv = Store("conv", self.conv_channels, (past,), bits=self.conv_bits)
        return tuple(store for store in (state, conv) if store.heads)


Group = Full | Mla | Compressed | Recurrent
# --8<-- [end:groups]


class Source(NamedTuple):
    label: str
    url: str


@dataclass(frozen=True, kw_only=True)
class Shipped:
    """Bytes per entry as the model's own kernels store it, with scales.

    `window` is for entries of a sliding window, where they differ.
    """

    kv: int
    index: int
    sources: tuple[Source, ...]
    window: int | None = None


@dataclass(frozen=True, kw_only=True)
class Model:
    """The shape of a released model, as far as its cache depends on it.

    `groups` are the layers that cache something. MTP draft layers, vision
    encoders and the padding of an allocator are not counted. `max_context` is
    what the model's config or card says, or 0 if it says nothing; `context` is
    its source, if it is not one of `sources`. `params` is the number of all
    parameters, as `params_in` gives it or as its sizes add up to, or None where
    no source was found; `attention_params` are those of attention, if known.

    `confidence` is `"high"` if the shape was read in what the makers publish,
    or in two third-party sources that agree; otherwise it is `"medium"`. It is
    `"given"` if the shape was read from a config.json; `unread` are then the
    fields that are not known, and whose names say that they change no bytes.
    """

    id: str
    name: str
    family: str
    date: str
    max_context: int
    groups: tuple[Group, ...]
    sources: tuple[Source, ...]
    confidence: str
    context: Source | None = None
    params: int | None = None
    params_in: Source | None = None
    attention_params: int | None = None
    shipped: Shipped | None = None
    note: str = ""
    unread: tuple[str, ...] = ()

    @property
    def layers(self) -> int:
        """Number of layers that cache something."""
        return sum(
            group.layers
            for group in self.groups
            if not (isinstance(group, Recurrent) and group.beside)
        )
