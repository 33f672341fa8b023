"""The bytes of a model's weights, as its files store them."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from attnref.numbers.weights import Format, Matrix, Share
from attnref.released.record import READ_ERRORS, Config
from attnref.released.weights import matrices_of
from attnref.words import message

WIDTHS = {"float32": 32, "bfloat16": 16, "float16": 16}
# NVIDIA's file on the format of weights and cache, beside the config.
NVIDIA = "hf_quant_config.json"
INDEX = "model.safetensors.index.json"
FULL = Format()
MXFP4 = Format(4, 1, 32, scale=8)
ALGORITHMS = {
    "NVFP4": Format(4, 1, 16, scale=8, extra=8),  # scales of weights, inputs
    "W4A16_NVFP4": Format(4, 1, 16, scale=8, extra=4),
    "FP8": Format(8, extra=8),
    "FP8_PB_WO": Format(8, 128, 128, scale=32),
    "FP8_PER_CHANNEL_PER_TOKEN": Format(8, scale=32),
    "MXFP8": Format(8, 1, 32, scale=8),
    "W4A8_MXFP4_FP8": MXFP4,
}
# Matrices that no method quantises unless it names them.
NEVER = (
    r".*(norm|embed|lm_head|conv1d|router|weights_proj|compressor\.w|"
    r"shared_expert_gate|\.gate$).*"
)
# Where a text model stands: files differ in what they write before a layer.
PREFIX = r"^((model|language_model|text_model|backbone|transformer)\.)+"
# Names of matrices that some files have for what most call otherwise.
CALLED = {
    **{"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"},
    **{"head": "lm_head", "embed": "embed_tokens"},
}
EXCLUDED = (
    *("exclude_modules", "ignore", "modules_to_not_convert"),
    "ignored_layers",
)
UNREAD = "{}: quantization_config cannot be read: {}"
FormatOf = Callable[[Matrix], Format]


def stored_bytes(config: Config) -> int:
    """Bytes of all weights, quantised as the config or a file beside it says.

    Examples:
        >>> from attnref.released.record import read_config
        >>> config = {"model_type": "llama", "num_hidden_layers": 1}
        >>> config |= {"hidden_size": 64, "num_attention_heads": 4}
        >>> config |= {"intermediate_size": 128, "vocab_size": 100}
        >>> config |= {"torch_dtype": "bfloat16", "tie_word_embeddings": False}
        >>> stored_bytes(read_config(config))
        107904
        >>> four = {"quant_method": "awq", "bits": 4, "group_size": 64}
        >>> stored_bytes(read_config(config | {"quantization_config": four}))
        48064
    """
    return sum(share.size for share in stored_shares(config))


def stored_shares(config: Config) -> list[Share]:
    """The bytes of all weights, by how devices split them.

    Each matrix has the format that the files say for its name. What an index
    of safetensors beside the config says is exact: its difference, such as
    draft layers and encoders, is one more share.
    """
    family, exact = config.family, index_bytes(config)
    matrices = matrices_of(config)
    if not matrices:
        if exact:
            return [Share(exact, 0, False)]
        raise ValueError(
            message(
                "{}: its parameters are not counted; pass the size of its "
                "weights",
                family,
            )
        )
    quant = quantization_of(config)
    dtype = dtype_of(config)
    width = WIDTHS.get(str(dtype), 16 if quant else 0)
    if dtype is None and not width:
        raise ValueError(
            message(
                "{}: the config has no torch_dtype; pass the size of its "
                "weights",
                family,
            )
        )
    if not width:
        raise ValueError(
            message(
                "{}: torch_dtype={!r} is not a dtype of weights", family, dtype
            )
        )
    try:
        format_of = reader_of(config, quant, matrices)
        shares: dict[tuple[int, bool], int] = {}
        for m in matrices:
            form = format_of(m)
            if form == FULL:
                form = Format(width)
            key = m.parts, m.attention
            size = m.copies * form.bytes_for(m.rows, m.columns)
            shares[key] = shares.get(key, 0) + size
    except READ_ERRORS as error:
        raise ValueError(
            message("{}: quantization_config cannot be read: {}", family, error)
        ) from None
    result = [Share(n, parts, kind) for (parts, kind), n in shares.items()]
    if exact:
        rest = exact - sum(share.size for share in result)
        result.append(Share(rest, 0, False))
    return result


def quantization_of(config: Config) -> Mapping[str, Any]:
    """What the config says of the format of its weights, or the file of
    NVIDIA beside it."""
    quant = config.quantization
    file = nvidia_file(config)
    if not quant and file and file.exists():
        quant = json.loads(file.read_text("utf-8"))
    if quant and not isinstance(quant, Mapping):
        raise ValueError(message(UNREAD, config.family, quant))
    return _unwrapped(quant or {})


def _unwrapped(quant: Mapping[str, Any]) -> Mapping[str, Any]:
    """What NVIDIA's file says, or a config, without its outer name."""
    inner: Mapping[str, Any] = quant.get("quantization") or quant
    return inner


def both_formats(config: Config, file: Mapping[str, Any]) -> Any:
    """What NVIDIA's file says; of layers that it does not list, what the config
    says, whose weights it has left as they were."""
    quant = _unwrapped(file)
    own = config.quantization if quant.get("quantized_layers") else {}
    return {**own, **quant} if isinstance(own, Mapping) else quant


def index_bytes(config: Config) -> int:
    """The bytes of all tensors of the safetensors beside the config, or 0."""
    if config.path is None:
        return 0
    index = Path(config.path).with_name(INDEX)
    if index.exists():
        data = json.loads(index.read_text("utf-8"))
        size = (data.get("metadata") or {}).get("total_size")
        return size if isinstance(size, int) and size > 0 else 0
    file = index.with_name("model.safetensors")
    if not file.exists():
        return 0
    with file.open("rb") as opened:  # a length, a header, the tensors
        header = int.from_bytes(opened.read(8), "little")
    return max(file.stat().st_size - 8 - header, 0)


def reader_of(
    config: Config, quant: Mapping[str, Any], matrices: Sequence[Matrix]
) -> FormatOf:
    """A function that gives the format of a matrix, by its name."""
    family, expert_dtype = config.family, config.fields.get("expert_dtype")
    method = quant.get("quant_method") or quant.get("quant_algo")
    if not quant:
        return lambda matrix: FULL
    if method is None and quant.get("bits"):
        return _mlx(family, quant)
    excluded = _excluding(quant)
    form = _default(quant, expert_dtype)
    if quant.get("quantized_layers"):
        return _listed(family, quant, form, matrices)
    if quant.get("quant_algo") in ALGORITHMS:
        form = ALGORITHMS[quant["quant_algo"]]
    elif quant.get("config_groups"):
        groups = _groups(quant["config_groups"])

        def grouped(m: Matrix) -> Format:
            if excluded(m) or re.fullmatch(NEVER, m.name):
                return FULL
            for test, all_linear, form in groups:
                if all_linear or test(m):
                    return form
            return FULL

        return grouped
    elif form is None:
        raise ValueError(
            message(
                "{}: weights that are quantised by {!r} are not counted; pass "
                "their size",
                family,
                method or [*quant],
            )
        )
    extra = quant.get("extra_config") or quant.get("dynamic") or {}
    own_bits = {name: own.get("bits", 16) for name, own in extra.items()}
    others = [
        (bits, _matching([name for name, n in own_bits.items() if n == bits]))
        for bits in {n: True for n in own_bits.values()}
    ]
    usual: Format = form

    def format_of(m: Matrix) -> Format:
        if re.fullmatch(NEVER, m.name) or excluded(m):
            return FULL
        for bits, test in others:
            if test(m):
                same = usual._replace(bits=bits, scale=16 + bits)
                return FULL if bits > 8 else same
        if ".experts." in m.name and expert_dtype == "fp4":
            return MXFP4
        if method == "mxfp4" and ".experts." not in m.name:
            return FULL
        return usual

    return format_of


def _default(
    quant: Mapping[str, Any], expert_dtype: str | None
) -> Format | None:
    """The format of what a method quantises, unless it says more."""
    method = quant.get("quant_method")
    if method == "fp8":
        block = quant.get("weight_block_size")
        if not block:
            return Format(8, scale=32, rows=0)
        rows, columns = block
        return Format(8, rows, columns, scale=8 if expert_dtype else 32)
    if method in ("awq", "gptq", "auto-round"):
        bits, group = quant["bits"], quant.get("group_size") or 0
        if quant.get("data_type") == "nv_fp":
            return ALGORITHMS["NVFP4"]
        index = 4 if method == "gptq" else 0  # the group of each column
        # Each group has a scale of 16 bits, and a zero point.
        return Format(bits, 1, max(group, 0), scale=16 + bits, per_column=index)
    return MXFP4 if method == "mxfp4" else None


def _short(name: str) -> str:
    """The name of a module without what stands before its layer; any expert
    stands for all."""
    name = re.sub(r"\bexperts\.\d+", "experts.0", re.sub(PREFIX, "", name))
    return ".".join(CALLED.get(part, part) for part in name.split("."))


def _paths(name: str) -> list[str]:
    """All parts of a dotted name, the longest first."""
    parts = name.split(".")
    n = len(parts)
    return [
        ".".join(parts[start : n - less + start])
        for less in range(n)
        for start in range(less + 1)
    ]


def checked_pattern(text: str) -> str:
    """A regular expression of a config, or an error that names it."""
    try:
        re.compile(text)
    except re.error:
        raise ValueError(
            message("{!r} is not a regular expression", text[:80])
        ) from None
    return text


def _matching(names: Sequence[str]) -> Callable[[Matrix], bool]:
    """Whether one of these names or patterns is that of a matrix: its own,
    that of a module that it is part of, with `*`, or a regular expression."""
    exact = {_short(n): True for n in names if ":" not in n and "*" not in n}
    patterns = [
        f"(?:{name.split(':', 1)[1]}).*" for name in names if ":" in name
    ]
    for name in names:
        if "*" in name and ":" not in name:
            text = _short(name).replace(".", "[.]").replace("*", ".*")
            patterns.append(f"{text}|{text}[.].*")
    whole = checked_pattern("|".join(patterns))

    def test(m: Matrix) -> bool:
        short = _short(m.name)
        if any(path in exact for path in _paths(short)):
            return True
        if not whole:
            return False
        places = short, f"model.{short}", f"model.language_model.{short}"
        return any(re.fullmatch(whole, place) for place in places)

    return test


def _excluding(quant: Mapping[str, Any]) -> Callable[[Matrix], bool]:
    """Whether a matrix is left as it is."""
    names = [n for key in EXCLUDED for n in quant.get(key) or ()]
    return _matching(names)


def _listed(
    family: str,
    quant: Mapping[str, Any],
    usual: Format | None,
    matrices: Sequence[Matrix],
) -> FormatOf:
    """Layers with a format of their own: MIXED_PRECISION of ModelOpt."""
    formats = {
        _short(name): ALGORITHMS[own["quant_algo"]]
        for name, own in quant["quantized_layers"].items()
    }
    paths = {p: True for m in matrices for p in _paths(_short(m.name))}
    for name in formats:  # silence would count them in 16 bits
        layer = ".".join(name.split(".")[:2])
        if layer in paths and name not in paths:
            raise ValueError(
                message(
                    "{}: {} is quantised, which the model is not known to "
                    "have; pass the size of the weights",
                    family,
                    name,
                )
            )

    def format_of(m: Matrix) -> Format:
        for path in _paths(_short(m.name)):
            if path in formats:
                return formats[path]
        if usual is None or re.fullmatch(NEVER, m.name):
            return FULL
        return usual

    return format_of


def _groups(
    groups: Mapping[str, Any],
) -> list[tuple[Callable[[Matrix], bool], bool, Format]]:
    """Groups of compressed-tensors: which matrices they are, or all of them,
    and their format."""
    result = []
    for group in groups.values():
        w = group["weights"]
        bits, size = w["num_bits"], w.get("group_size") or 0
        is_float, strategy = w.get("type") == "float", w.get("strategy")
        if bits == 4 and is_float:
            form = ALGORITHMS["NVFP4"] if size == 16 else MXFP4
        elif strategy == "block":
            rows, columns = w["block_structure"]
            form = Format(bits, rows, columns, scale=16)
        elif strategy == "tensor":
            form = Format(bits, 0, scale=16)
        else:  # beside packed words stands their shape
            zero = 0 if w.get("symmetric", True) else bits
            packed = 0 if is_float or bits == 8 else 16
            form = Format(bits, 1, max(size, 0), scale=16 + zero, extra=packed)
        targets = group.get("targets") or ["Linear"]
        result.append(
            (
                _matching([t for t in targets if t != "Linear"]),
                "Linear" in targets,
                form,
            )
        )
    return result


def _mlx(family: str, quant: Mapping[str, Any]) -> FormatOf:
    """MLX quantises the output head and embeddings too; each group of a row
    has a scale and a bias of 16 bits."""
    modes = {"affine": 32, "mxfp4": 8, "nvfp4": 8, "mxfp8": 8}
    own = {_short(n): x for n, x in quant.items() if n not in ("bits", "mode")}

    def format_of(m: Matrix) -> Format:
        if re.fullmatch(r".*(norm|conv1d).*", m.name):
            return FULL
        form = own.get(_short(m.name), True)
        if form is False:
            return FULL
        form = quant if form is True else {**quant, **form}
        scale = modes[form.get("mode") or "affine"]
        return Format(form["bits"], 1, form.get("group_size") or 64, scale)

    return format_of


def dtype_of(config: Config) -> Any:
    """The dtype of the weights, under both names that configs have for it."""
    return config.fields.get("torch_dtype") or config.fields.get("dtype")


def nvidia_file(config: Config) -> Path | None:
    """Where NVIDIA's file would stand, if the config was read from a file."""
    return None if config.path is None else Path(config.path).with_name(NVIDIA)


def assumed_dtype(config: Config) -> str | None:
    """The dtype for which weights are taken, if no file says a format."""
    return None if quantization_of(config) else str(dtype_of(config))


def cache_scheme(config: Config) -> str | None:
    """The format that a config gives its cache: `kv_cache_scheme` in its
    quantization_config, or what hf_quant_config.json beside it says."""
    quant, name = quantization_of(config), config.path or "config.json"
    name = Path(name).name
    schemes = "kv_cache_scheme", "kv_cache_quant_algo"
    file = nvidia_file(config)
    if not any(map(quant.get, schemes)) and file and file.exists():
        quant, name = _unwrapped(json.loads(file.read_text("utf-8"))), NVIDIA
    scheme = next(filter(None, map(quant.get, schemes)), None)
    if isinstance(scheme, Mapping):
        scheme = scheme.get("num_bits"), scheme.get("type")
    formats: dict[Any, str | None] = {"FP8": "fp8", None: None}
    formats |= {(8, "float"): "fp8", (8, "int"): "int8"}
    if scheme not in formats:
        raise ValueError(
            message(
                "{}: a cache in {} is not counted; pass --dtype", name, scheme
            )
        )
    return formats[scheme]
