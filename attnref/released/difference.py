"""What differs in the attention of two models, read from their config.json.

A layer is its records: that of attention and that of another mixer. Layers are
equal if their records are, in all fields that their written code reads.
"""

from collections.abc import Sequence
from dataclasses import fields, replace
from difflib import unified_diff
from functools import cache
from inspect import signature
from typing import TYPE_CHECKING, Any

from attnref.numbers.kv_memory import growth, kv_bytes, state_bytes
from attnref.released.from_config import model_from_config
from attnref.released.generate import file_from, mixer_text, rendered
from attnref.released.mixers import Mamba2, MixerRecord
from attnref.released.parts import parts_of, sentence, words
from attnref.released.record import AttentionRecord, Config

if TYPE_CHECKING:
    from torch import Tensor, nn

Record = AttentionRecord | MixerRecord
Layer = tuple[AttentionRecord | None, MixerRecord | None]
FORMATS = "quantization_config", "quantization"  # of weights
TOKENS = 24  # of the small input
# Sizes of a small layer: its lengths are shorter than the input.
SMALL = {
    **{"d_model": 60, "q_rank": 20, "kv_rank": 16, "o_rank": 16, "rank": 16},
    **dict.fromkeys(("window", "chunk", "rope_length", "q_growth_from"), 7),
    **dict.fromkeys(("q_growth_every", "rel_extent"), 7),
    **{"index_topk": 2, "index_block": 2, "rate": 4},
    **dict.fromkeys(("longest", "rel_longest"), 1),
}


def difference(
    first: Config,
    second: Config,
    *,
    tokens: int = 131_072,
    language: str = "en",
) -> dict[str, Any]:
    """Compare the attention of two models. What `copy` refuses is refused.

    Of each kind of layer that has no equal, `kinds` has its place in both, the
    sentences and fields that differ, and a `tensor` that shows it: see
    `tensor`. `order` is the first layer where the order of kinds differs.

    Examples:
        >>> from attnref.released.record import read_config
        >>> config = {"model_type": "llama", "num_hidden_layers": 2}
        >>> config |= {"hidden_size": 64, "num_attention_heads": 4}
        >>> other = config | {"num_key_value_heads": 2, "vocab_size": 9}
        >>> result = difference(read_config(config), read_config(other))
        >>> result["kinds"][0]["fields"], result["bytes"]["token"]
        ({'n_kv_heads': (4, 2)}, (512, 256))
    """
    configs = [
        replace(
            c, fields={n: x for n, x in c.fields.items() if n not in FORMATS}
        )
        for c in (first, second)
    ]
    files = [file_from(config) for config in configs]
    ours, theirs = _as_read([_layers(config) for config in configs])
    # Each kind of layer with the nearest one of the other model.
    pairs = {(a, _nearest(a, theirs)): True for a in ours}
    pairs |= {(_nearest(b, ours), b): True for b in theirs}
    places = enumerate(zip(ours, theirs, strict=False))
    models = [model_from_config(config) for config in configs]
    # The first line of a file says the family.
    codes = [file.partition("\n")[2] for file in files]
    a, b = (file.splitlines() for file in files)
    return {
        "equal": ours == theirs and codes[0] == codes[1],
        "layers": (len(ours), len(theirs)),
        "order": next((n for n, pair in places if pair not in pairs), None),
        "kinds": [
            {
                "layers": (_places(x, ours), _places(y, theirs)),
                "words": _sentences(x, y, language),
                "fields": changes(x, y),
                "tensor": tensor(x, y, _places(x, ours)[-1]),
            }
            for x, y in pairs
            if x != y
        ],
        "bytes": {
            "token": tuple(int(growth(model).first) for model in models),
            "later": tuple(int(growth(model).later) for model in models),
            "states": tuple(map(state_bytes, models)),
            "cache": tuple(kv_bytes(model, tokens) for model in models),
        },
        "tokens": tokens,
        "lines": [*unified_diff(a, b, "first", "second", lineterm="")],
    }


def _layers(config: Config) -> list[Layer]:
    """The records of all layers, without the names of family and kind."""
    layers: list[Layer] = []
    for n in range(len(config.kinds)):
        r, mixer = config.records.get(n), config.mixers.get(n)
        r = r and replace(r, family="", kind="")
        layers.append((r, mixer and replace(mixer, family="")))
    return layers


def _as_read(models: Sequence[list[Layer]]) -> list[list[Layer]]:
    """The layers with one value for all fields that their code does not read:
    those that may have any value of these models, and it stays the same."""
    records = dict.fromkeys(r for m in models for x in m for r in x if r)
    read: dict[Record | None, Any] = {None: None}
    for record in records:
        alike = [r for r in records if type(r) is type(record)]
        new: Any = record
        for name in (field.name for field in fields(record)):
            values = [*dict.fromkeys(getattr(r, name) for r in alike)]
            texts = {_text(replace(new, **{name: x})) for x in values}
            if _text(record) and texts == {_text(new)}:
                new = replace(new, **{name: values[0]})
        read[record] = new
    return [[(read[r], read[mixer]) for r, mixer in m] for m in models]


@cache
def _text(r: Record) -> str:
    """The code of a record, "" if no layer can have it."""
    try:
        if isinstance(r, MixerRecord):
            return mixer_text({0: r})
        return rendered({0: r})
    except (TypeError, ValueError, ArithmeticError):
        return ""


def _places(layer: Layer, layers: Sequence[Layer]) -> list[int]:
    return [n for n, other in enumerate(layers) if other == layer]


def _nearest(layer: Layer, others: Sequence[Layer]) -> Layer:
    """The layer that differs from this one in the fewest fields."""

    def distance(other: Layer) -> int:
        names = changes(layer, other)
        return 1000 if "kind" in names else len(names)

    return min(dict.fromkeys(others), key=distance)


def changes(first: Layer, second: Layer) -> dict[str, tuple[Any, Any]]:
    """The fields of the records that differ, with both values."""
    if [*map(type, first)] != [*map(type, second)]:
        return {"kind": (kind_of(first), kind_of(second))}
    result: dict[str, tuple[Any, Any]] = {}
    for a, b in zip(first, second, strict=True):
        place = f"{a.kind}." if isinstance(a, MixerRecord) else ""
        for name in vars(a) if a else ():
            if getattr(a, name) != getattr(b, name):
                result[place + name] = getattr(a, name), getattr(b, name)
    return result


def kind_of(layer: Layer) -> str:
    """The class of a layer in a written file; "" if it mixes no tokens."""
    r, mixer = layer
    if mixer:
        together = r and isinstance(mixer, Mamba2) and mixer.together
        return "Both" if together else mixer.kind
    return "Attention" if r else ""


def _sentences(first: Layer, second: Layer, language: str) -> list[str]:
    """The parts that Llama does not have, and that one of them has alone or
    otherwise: - of the first, + of the second."""

    def texts(layer: Layer) -> list[str]:
        records = {0: layer[0]} if layer[0] else {}
        parts = parts_of(records)
        return [sentence(p, records, words(), language) for p in parts]

    ours, theirs = texts(first), texts(second)
    result = [f"- {text}" for text in ours if text not in theirs]
    result += [f"+ {text}" for text in theirs if text not in ours]
    return [text.replace("**", "") for text in result]


def tensor(first: Layer, second: Layer, number: int) -> dict[str, Any] | None:
    """Run both written layers with the same weights on one small input, in
    float64: the `place` of the first output that differs (sequence, token,
    channel), both `values`, and the `largest` difference, relative to the
    largest output. Or the `shapes` of weights that do not fit; only vectors,
    such as norms and biases, may be in one layer alone.

    None: the outputs are equal, as those of layers that differ only in whose
    keys they read. A layer may depend on its `number`.
    """
    import torch

    if all(first) and all(second) and kind_of(first) != "Both":
        # They read inputs of their own: the one that differs runs alone.
        if first[0] == second[0]:
            first, second = (None, first[1]), (None, second[1])
        else:
            first, second = (first[0], None), (second[0], None)
    with torch.device("meta"):
        ours, theirs = (
            {n: tuple(w.shape) for n, w in module.state_dict().items()}
            for module in (_module(first, number), _module(second, number))
        )
    pairs = {name: (ours.get(name), theirs.get(name)) for name in ours | theirs}
    shapes = {
        name: (a, b)
        for name, (a, b) in pairs.items()
        if a != b and ((a and b) or len(a or b or ()) > 1)
    }
    if shapes:
        return {"shapes": shapes}
    layers = _small(first, second), _small(second, first)
    modules = [_module(layer, number).double() for layer in layers]
    chance = torch.Generator().manual_seed(0)
    weights: dict[str, torch.Tensor] = {}
    for module in modules:
        for name, w in module.state_dict().items():
            noise = 0.3 * torch.randn(w.shape, generator=chance).double()
            norm = w.dim() == 1 and "norm" in name and "bias" not in name
            weights.setdefault(name, 1 + noise if norm else noise)
        module.load_state_dict({n: weights[n] for n in module.state_dict()})
    x = torch.randn(3, TOKENS, SMALL["d_model"], generator=chance).double()
    # LongRoPE rotates short texts by angles of their own.
    for T in (SMALL["rope_length"] - 2, TOKENS):
        with torch.no_grad():
            a, b = (m(x[:, :T], **inputs_of(m, x[:, :T])) for m in modules)
        gaps, most = (a - b).abs(), float(a.abs().max())
        differ = ~(gaps <= 1e-12 * most)  # also where one is NaN
        for t, row, channel in differ.transpose(0, 1).nonzero().tolist():
            place = row, t, channel
            values = float(a[place]), float(b[place])
            largest = float(gaps.max()) / most
            return {"place": place, "values": values, "largest": largest}
    return None


def inputs_of(module: "nn.Module", x: "Tensor") -> dict[str, "Tensor"]:
    """Inputs of keys and values that are not x, if the layer takes such."""
    names = [n for n in signature(module.forward).parameters if "_input" in n]
    return {n: x.roll(k, dims=-1) for k, n in enumerate(names, start=1)}


def _module(layer: Layer, number: int) -> "nn.Module":
    """A layer of a written file; without a class, one that mixes nothing."""
    r, mixer = layer
    text = rendered({0: r} if r else {}, math=True)
    text += f"\n\n{mixer_text({0: mixer})}" if mixer else ""
    space: dict[str, Any] = {}
    exec(compile(text, "<layer>", "exec"), space)
    name = kind_of(layer)
    module: nn.Module = space[name](number) if name else space["nn"].Module()
    return module


def _small(layer: Layer, other: Layer) -> Layer:
    """A layer with small sizes, which are those of the other only if they were
    equal. It reads no keys of another layer, or that another one chose."""

    def shrunk(r: Any, other: Any) -> Any:
        sizes: dict[str, Any] = {}
        for name in SMALL.keys() & (vars(r).keys() if r else ()):
            size, least = getattr(r, name), getattr(other, name) or 0
            sizes[name] = size and min(size, SMALL[name])
            if size and size > least > 0:
                sizes[name] = min(size, min(least, SMALL[name]) + 4)
        if isinstance(r, AttentionRecord):
            own = bool(r.index_topk)
            sizes |= {"shares": None, "is_shared": False, "index_own": own}
        return r and replace(r, **sizes)

    return shrunk(layer[0], other[0]), shrunk(layer[1], other[1])
