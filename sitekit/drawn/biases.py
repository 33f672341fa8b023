"""What a bias leaves of equal scores, T5's classes, and what goes wrong; which
model has which step, and what exchanging two neighbours costs."""

from collections.abc import Callable, Iterator
from itertools import pairwise
from types import SimpleNamespace

import torch
from torch import Tensor

import attnref
from attnref.plain.alibi import alibi, slopes
from attnref.plain.order import rms_norm
from attnref.released.record import attention_of
from sitekit.drawn.sinks import far
from sitekit.markdown.render import Row, Word

HEADS = 8


def decays(keys: int) -> Tensor:
    """Weights of keys with equal scores in the first, third and fifth head."""
    bias: Tensor = alibi(HEADS, 1, keys)[:5:2, 0]
    return bias.softmax(dim=-1)


def slope_list() -> Iterator[Row]:
    """The slopes of 8 and of 12 heads, as powers of 2."""
    for n_heads in (8, 12):
        powers = slopes(n_heads).log2().tolist()
        yield [str(n_heads), ", ".join(f"{x:g}" for x in powers)]


def capped() -> Iterator[Row]:
    """Scores and what a cap of 50 makes of them."""
    for score in (1.0, 10.0, 50.0, 100.0, 500.0):
        capped_score = 50 * torch.tensor(score / 50).tanh()
        yield [f"{score:g}", f"{capped_score.item():.2f}"]


def classes() -> Iterator[Row]:
    """The distances of some of T5's 32 classes."""
    bucket = attnref.RelativeBias(torch.zeros(32, 1)).bucket(torch.arange(200))
    for number in (0, 1, 15, 16, 20, 25, 30, 31):
        distances = (bucket == number).nonzero().flatten().tolist()
        first, last = distances[0], distances[-1]
        text = str(first) if first == last else f"{first}-{last}"
        yield [str(number), text if number < 31 else f"≥ {first}"]


def mistaken() -> Iterator[Row]:
    """Outputs of random inputs: how far each mistake is from the right one."""
    torch.manual_seed(0)
    H, T, D, cap = 12, 24, 16, 3.0
    q, k, v = torch.randn(3, 3, H, T, D)
    q = 3 * q
    mask = attnref.causal_mask(T)
    bias = alibi(H, T)
    want = attnref.sdpa(q, k, v, mask, bias=bias)

    def row(word: str, out: Tensor) -> Row:
        return [Word(word), far(out, want)]

    yield row("bare", attnref.sdpa(q, k, v, mask))
    yield row("sign", attnref.sdpa(q, k, v, mask, bias=-bias))
    even = -torch.exp2(-8 / H * torch.arange(1.0, H + 1))[:, None, None]
    distance = bias[:1] / -slopes(H)[:1, None, None]
    yield row("even", attnref.sdpa(q, k, v, mask, bias=even * distance))
    yield row("scaled", attnref.sdpa(q, k, v, mask, bias=bias * D**-0.5))
    want = attnref.sdpa(q, k, v, mask, softcap=cap)
    yield row("uncapped", attnref.sdpa(q, k, v, mask))
    capped_first = attnref.sdpa(q, k, v, mask, softcap=cap * D**-0.5)
    yield row("before", capped_first)
    scores = q @ k.mT * D**-0.5
    masked_scores = scores.masked_fill(~mask, -torch.inf)
    capped_last = (cap * (masked_scores / cap).tanh()).softmax(dim=-1) @ v
    yield row("after", capped_last)


# --- the order of operations --------------------------------------------------

# In the order of the picture's rows; of Qwen3-Next, the last of four layers.
MODELS = (
    *("llama", "qwen3", "olmo2", "hunyuan_v1_dense", "granite", "gemma2"),
    *("gpt_oss", "qwen3_next"),
)
SIZES = {"hidden_size": 64, "num_attention_heads": 8, "num_key_value_heads": 2}
SIZES |= {"head_dim": 16, "num_hidden_layers": 4}
H, T, D, CAP = 4, 24, 16, 3.0


def steps_of_models() -> Tensor:
    """A row per model, a column per step: does the model have it?"""
    rows = []
    for model in MODELS:
        r = attention_of(SIZES | {"model_type": model}, layer=3)
        pre, post = bool(r.norm) and not r.norm_late, r.norm_late
        row = [pre, bool(r.rope_theta), post, r.scale != r.head_dim**-0.5]
        rows.append([*row, bool(r.softcap), True, r.with_sinks, bool(r.gate)])
    return torch.tensor(rows)


def norm(s: SimpleNamespace) -> None:
    s.q, s.k = rms_norm(s.q, s.weight), rms_norm(s.k, s.weight)


def bare_norm(s: SimpleNamespace) -> None:
    s.q, s.k = rms_norm(s.q, 1.0), rms_norm(s.k, 1.0)


def rope(s: SimpleNamespace) -> None:
    s.q, s.k = attnref.rotate(s.q, s.k, rope=attnref.Rope())


def product(s: SimpleNamespace) -> None:
    s.z = s.q @ s.k.mT


def scale(s: SimpleNamespace) -> None:
    s.z = s.z * D**-0.5


def bias(s: SimpleNamespace) -> None:
    s.z = s.z + s.bias


def softcap(s: SimpleNamespace) -> None:
    s.z = CAP * (s.z / CAP).tanh()


def mask(s: SimpleNamespace) -> None:
    s.z[..., :T] = s.z[..., :T].masked_fill(~attnref.causal_mask(T), -torch.inf)


def sink(s: SimpleNamespace) -> None:
    s.z = torch.cat((s.z, s.sinks.expand(*s.z.shape[:3], 1)), dim=-1)


def soften(s: SimpleNamespace) -> None:
    s.z = s.z.softmax(dim=-1)


def values(s: SimpleNamespace) -> None:
    s.v = s.z[..., :T] @ s.v


def gate(s: SimpleNamespace) -> None:
    s.v = s.v * s.gate


def o_proj(s: SimpleNamespace) -> None:
    s.v = s.v @ s.w


Step = Callable[[SimpleNamespace], None]
ORDER: tuple[Step, ...] = (norm, rope, product, scale, bias, softcap, mask)
ORDER += (sink, soften, values, gate, o_proj)


def through(order: tuple[Step, ...]) -> Tensor:
    """The output of random heads, by the steps in this order."""
    torch.manual_seed(0)
    s = SimpleNamespace(weight=1 + 0.5 * torch.randn(D), w=torch.randn(D, D))
    s.q, s.k, s.v, s.gate = torch.randn(4, 3, H, T, D)
    s.q, s.gate = 3 * s.q, s.gate.sigmoid()
    s.sinks = torch.randn(H, 1, 1)
    slopes = 2.0 ** -torch.arange(1, H + 1).view(H, 1, 1)
    s.bias = slopes * torch.arange(T)
    for step in order:
        step(s)
    out: Tensor = s.v
    return out


def exchanges() -> Iterator[Row]:
    """Each pair of neighbours that can be exchanged, and the difference."""
    bare = (bare_norm, *ORDER[1:])
    for order in (ORDER, bare):
        want = through(order)
        for n, (a, b) in enumerate(pairwise(order)):
            if (order is bare and n) or product in (a, b) or b is values:
                continue
            exchanged = (*order[:n], b, a, *order[n + 2 :])
            names = [Word(f"{a.__name__}-{b.__name__}")]
            yield [*names, far(through(exchanged), want)]
