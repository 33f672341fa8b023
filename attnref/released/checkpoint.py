"""The released weights of one layer's attention, from a folder as published.

Of a folder with one file of safetensors, or an index and its shards, only the
tensors of that layer are read. They are renamed, split and joined as the row of
their family in checkpoints.toml says, and dequantised. What is left over, is
missing or has another shape is refused by name.
"""

import json
import re
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from attnref.released.dequantise import dequantised
from attnref.released.published import TEXT, names_of, places_of, unused_of
from attnref.released.record import Config, read_config
from attnref.words import message

Module = TypeVar("Module", bound=nn.Module)
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"


def load(
    folder: str | PathLike[str],
    module: Module,
    layer: int,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
) -> Module:
    """Give a layer's attention its released weights, and return it.

    `folder` is that of a model: its config.json and its safetensors. `module`
    is the attention of `layer`, or what mixes its tokens instead: of a written
    file, `mixer(layer)`, or `attention_from_config`. Weights stay in the dtype
    of the file, quantised ones become float32; `dtype` converts them all. Needs
    safetensors.
    """
    folder = Path(folder)
    config = read_config(folder / "config.json")
    names = names_of(config)
    shapes = {name: t.shape for name, t in module.state_dict().items()}
    # Of a layer with attention and a state, the one that the module is.
    stored = max(
        (
            _tensors_of(folder, place.format(layer), names, device)
            for place in dict.fromkeys(_places_of(config, layer))
        ),
        key=lambda tensors: len(tensors.keys() & shapes.keys()),
    )
    if layer in config.mixers and places_of(config)[1].endswith("{}"):
        # The whole layer: leave what mixes no tokens.
        parts = {name.partition(".")[0] for name in shapes}
        stored = {
            name: tensor
            for name, tensor in stored.items()
            if name.partition(".")[0] in parts
        }
    read = {
        name: tensor
        for name, tensor in stored.items()
        if not re.fullmatch(unused_of(names), name)
    }
    quant = config.quantization or {}
    weights = _turned(dequantised(read, quant), names, shapes)
    weights = _by_names_of(module, weights, config)
    outside = names.get("outside")  # one for all layers, which stays exact
    if outside in shapes:
        found = _tensors_of(folder, outside, names, device)
        weights[outside] = found[""].float()
    _check(weights, shapes, folder, layer)
    if dtype is not None:
        weights = {
            name: weight if name == outside else weight.to(dtype)
            for name, weight in weights.items()
        }
    module.load_state_dict(weights, assign=True)
    return module


def _places_of(config: Config, layer: int) -> list[str]:
    """Where a layer has what mixes its tokens: a state, its attention, or
    both."""
    attention, mixer = places_of(config)
    places = [mixer] if layer in config.mixers else []
    if layer in config.records or not places:
        places.append(attention)
    return places


def _turned(
    stored: Mapping[str, Tensor],
    names: Mapping[str, Any],
    shapes: Mapping[str, torch.Size],
) -> dict[str, Tensor]:
    """Published weights by the names that the module has."""
    weights = dict(stored)
    for joined, parts in names.get("join", {}).items():
        if parts[0] in weights:
            rows = [weights.pop(part) for part in parts]
            weights[joined] = torch.cat(rows)
    for fused, parts in names.get("split", {}).items():
        if fused in weights:
            heights = [shapes[part][0] for part in parts]
            split = weights.pop(fused).split(heights)
            weights |= zip(parts, split, strict=True)
    for pattern, replacement in names.get("rename", {}).items():
        weights = {
            re.sub(pattern, replacement, name): weight
            for name, weight in weights.items()
        }
    for name in weights.keys() & shapes.keys() & {*names.get("padded", ())}:
        n = shapes[name][0]
        if not weights[name][n:].any():  # rows of zeros
            weights[name] = weights[name][:n]
    return weights


def _by_names_of(
    module: nn.Module, weights: Mapping[str, Tensor], config: Config
) -> dict[str, Tensor]:
    """A layer of this package has our names where transformers has others."""
    known = module.state_dict()
    result = {}
    for name, weight in weights.items():
        part, dot, rest = name.partition(".")
        ours = next((o for o, t in config.row.names.items() if t == part), part)
        result[name if name in known else ours + dot + rest] = weight
    return result


def _tensors_of(
    folder: Path,
    place: str,
    names: Mapping[str, Any],
    device: torch.device | str,
) -> dict[str, Tensor]:
    """The tensors of one module of one layer, by their names within it."""
    safe_open, within = _reader(), names.get("within", "")
    places: dict[str, dict[str, tuple[str, Path]]] = {}
    for name, path in files_of(folder).items():
        short = re.sub(rf"\b({within})\.", "", name) if within else name
        before, there, inner = f"{short}.".partition(f"{place}.")
        if there and {*TEXT}.issuperset(before.split(".")):
            places.setdefault(before, {})[inner[:-1]] = name, path
    if len(places) != 1:
        raise ValueError(
            message(
                "{} stands in {} places of {}: {}",
                place,
                len(places),
                folder,
                ", ".join(places) or "-",
            )
        )
    (found,) = places.values()
    tensors = {}
    for path in dict.fromkeys(path for _, path in found.values()):
        with safe_open(path, "pt", device=str(device)) as file:
            for inner, (name, home) in found.items():
                if home == path:
                    tensors[inner] = file.get_tensor(name)
    return tensors


def files_of(folder: Path) -> dict[str, Path]:
    """The file of each tensor."""
    index, single = folder / INDEX, folder / SINGLE
    if index.exists():
        names = json.loads(index.read_text("utf-8"))["weight_map"]
        return {name: folder / file for name, file in names.items()}
    if not single.exists():
        raise FileNotFoundError(
            message("{} has neither {} nor {}", folder, INDEX, SINGLE)
        )
    with _reader()(single, "pt") as file:
        return dict.fromkeys(file.keys(), single)


def _reader() -> Any:
    try:
        from safetensors import safe_open
    except ImportError as error:
        raise ImportError(
            message("weights are read by safetensors: pip install safetensors")
        ) from error
    return safe_open


def _check(
    weights: Mapping[str, Tensor],
    shapes: Mapping[str, torch.Size],
    folder: Path,
    layer: int,
) -> None:
    """Refuse what is left over, missing or of another shape, by name."""
    wrong = [
        f"{name} {tuple(weight.shape)}"
        for name, weight in weights.items()
        if weight.shape != shapes.get(name)
    ]
    missing = [
        f"{name} {tuple(shape)}"
        for name, shape in shapes.items()
        if name not in weights
    ]
    if wrong or missing:
        raise ValueError(
            message(
                "layer {} of {}: no place for {}; nothing for {}",
                layer,
                folder,
                ", ".join(wrong) or "-",
                ", ".join(missing) or "-",
            )
        )
