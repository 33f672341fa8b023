"""Records of layers that are not the softmax attention of `AttentionRecord`.

Each kind of layer has a class here and a template, `mixers/KIND.py.jinja`,
which reads the fields of this class. Most kinds keep a state of fixed size.
Where such a layer stands beside attention, the layer has both records. A file
lists the fields in which layers differ in the order that they have here.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class MixerRecord:
    """What the records of all kinds have."""

    family: str
    d_model: int

    @property
    def kind(self) -> str:
        """The name of the class: the written file has a class so called."""
        return type(self).__name__


@dataclass(frozen=True)
class ShortConv(MixerRecord):
    """A gated convolution of the latest tokens, which LFM2 has."""

    kernel: int
    conv_bias: bool


@dataclass(frozen=True)
class StateRecord(MixerRecord):
    """A layer with a state of `key_dim` rows in each of `n_v_heads` heads."""

    n_v_heads: int
    key_dim: int
    eps: float


@dataclass(frozen=True)
class KeysRecord(MixerRecord):
    """Attention that a template of its own writes, with keys of each token."""

    n_heads: int
    key_dim: int
    n_kv_heads: int


@dataclass(frozen=True)
class WindowRecord(KeysRecord):
    """The same, where some layers keep a window alone."""

    window: int | None


def window_of(r: KeysRecord) -> int | None:
    """The tokens in sight, if they are bounded."""
    return r.window if isinstance(r, WindowRecord) else None


@dataclass(frozen=True)
class GatedDeltaNet(StateRecord):
    """The delta rule with one decay per head."""

    n_heads: int  # of queries and keys
    value_dim: int
    kernel: int  # of the short convolution
    layout: str  # of projections: "one matrix", "by key head" or "apart"
    gate: str = "silu"
    beta_factor: float = 1.0


@dataclass(frozen=True)
class KimiDeltaAttention(StateRecord):
    """The delta rule with a decay for each channel of a key."""

    kernel: int
    layout: str  # of A_log: "four axes", "one axis" or ""
    low_rank: bool  # the gate of the decay
    bound: float = 0.0  # of the logarithm of a decay
    full_rank_gate: bool = False  # of the output


@dataclass(frozen=True)
class LightningAttention(StateRecord):
    """Linear attention, with a decay that depends on the layer."""

    n_layers: int


@dataclass(frozen=True)
class Mamba(StateRecord):
    """Mamba, in which each channel is a head with a state of one column."""

    kernel: int
    rank: int  # of the time step
    bias: bool
    o_bias: bool
    conv_bias: bool
    norms: str | None = "w"  # of step, B and C: "w", "without weights", or None


@dataclass(frozen=True)
class Mamba2(StateRecord):
    """Mamba-2, alone or beside attention."""

    n_heads: int  # groups of B and C, which are keys and queries
    value_dim: int
    kernel: int
    bias: bool
    o_bias: bool
    conv_bias: bool
    gated_norm: str  # "gate, norm", "norm, gate", or "" for no norm
    dt_min: float
    dt_max: float  # 0.0 for no limit
    in_factor: float = 1.0
    factors: tuple[float, ...] = ()  # of z, x, B, C and dt
    # Falcon-H1: attention reads the same x, and both outputs are added.
    together: bool = False
    out_factor: float = 1.0
    attention_in: float = 1.0
    attention_out: float = 1.0


@dataclass(frozen=True)
class MLSTM(StateRecord):
    """The matrix memory of xLSTM: an exponential gate, and its sum."""

    value_dim: int
    bias: bool
    cap: float  # of both gates


@dataclass(frozen=True)
class RGLRU(MixerRecord):
    """A gated linear recurrence of each channel (RecurrentGemma)."""

    width: int  # channels
    n_heads: int  # blocks of the gates
    kernel: int


@dataclass(frozen=True)
class RoutedAttention(KeysRecord):
    """Attention whose queries and outputs experts project (JetMoE)."""

    n_experts: int
    n_chosen: int  # of which a token has the queries
    rope_theta: float
    scale: float


@dataclass(frozen=True)
class CCA(WindowRecord):
    """Compressed convolutional attention, on convolved queries (ZAYA1)."""

    kernel: int
    second_kernel: int
    bias: bool
    rope_theta: float
    rope_width: int
    scale: float


@dataclass(frozen=True)
class ConvolvedAttention(WindowRecord):
    """Attention whose keys and values pass a short convolution (Inkling)."""

    kernel: int
    eps: float
    # The bias of a score by its distance, up to `rel_extent` tokens.
    rel_dim: int
    rel_extent: int
    q_growth: float
    q_growth_from: int
    scale: float


@dataclass(frozen=True)
class GatedConvolvedAttention(ConvolvedAttention):
    """The same with bounded lengths, projected sinks and a gate (Inkling 2)."""

    # Taps of the convolutions are also projected from each token.
    dynamic: bool
    longest: float  # queries and keys
    rel_longest: float
    passes: int  # of the layer for each token, each with a cache


@dataclass(frozen=True)
class CompressedAttention(MixerRecord):
    """Attention to a window and to compressed entries (DeepSeek V4)."""

    n_heads: int
    key_dim: int
    q_rank: int
    o_rank: int
    groups: int  # of heads, in the first projection of the output
    eps: float
    window: int | None
    rate: int  # tokens of one entry; 1: no entries
    # The indexer chooses `index_topk` entries for each query.
    index_own: bool
    index_topk: int
    index_heads: int
    index_dim: int
    rope_theta: float
    rope_width: int
    rope_kind: str
    rope_factor: float
    rope_length: int
    rope_low: float
    rope_high: float
    scale: float


RECORDS: dict[str, type[MixerRecord]] = {
    cls.__name__: cls
    for cls in (
        GatedDeltaNet,
        KimiDeltaAttention,
        LightningAttention,
        Mamba,
        Mamba2,
        ShortConv,
        MLSTM,
        RGLRU,
        RoutedAttention,
        CCA,
        ConvolvedAttention,
        GatedConvolvedAttention,
        CompressedAttention,
    )
}
