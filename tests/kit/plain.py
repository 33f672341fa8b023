"""The layers of the plain forms: how each is built, its cache, and outputs
beside others with the same weights."""

import inspect
import sys
from collections.abc import Callable
from importlib import import_module
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import nn

from attnref.plain import (
    cross,
    deepseek_v4,
    dsa,
    gated_delta,
    gqa,
    kda,
    kv_cache,
    lightning,
    llama,
    mamba2,
    mha,
    mla,
    mlstm,
    mqa,
)
from sitekit import ROOT

FILES = sorted(
    path.stem
    for path in (ROOT / "attnref" / "plain").glob("*.py")
    if path.stem != "__init__"
)
E = 32
F = 1e4 ** -(torch.arange(4).double() / 4)  # RoPE's angles of 4 pairs


def compressed(**kind: Any) -> nn.Module:
    sizes = {"D": 16, "W": 128, "Rq": 16, "Ro": 8, "G": 2}
    return deepseek_v4.CompressedAttention(E, 4, f=F, **sizes, **kind)


# Each with inputs of width E; by the file, and by what it is of it.
FORMS: dict[str, Callable[[], nn.Module]] = {
    "mha": lambda: mha.MHA(E, 2),
    "mqa": lambda: mqa.MQA(E, 4),
    "gqa": lambda: gqa.GQA(E, 4, 2),
    "llama": lambda: llama.Block(E, 59, 1e-5, n_heads=4, n_kv_heads=2),
    "cross": lambda: cross.CrossAttention(E, 4),
    "mla": lambda: mla.MLA(E, 4, 24, 12, 8, 16),
    "dsa": lambda: dsa.DSA(E, 4, 24, 12, 8, 16, 20, (11, 16, 32), 1e4, False),
    "deepseek_v4, window": compressed,
    "deepseek_v4, heavily compressed": lambda: compressed(rate=32),
    "deepseek_v4, chosen": lambda: compressed(rate=4, index=(11, 16, 16)),
    "gated_delta": lambda: gated_delta.GatedDeltaNet(E, 2, 4, 8, 12),
    "kda": lambda: kda.KDA(E, 4, 8),
    "kda, bounded": lambda: kda.KDA(E, 4, 8, bound=-5.0, full_rank=True),
    "mamba2": lambda: mamba2.Mamba2(E, 4, 2, 8, 12),
    "mlstm": lambda: mlstm.MLSTM(E, 4, 8, 12),
    "lightning": lambda: lightning.LightningAttention(E, 4, 8, 0, 4),
    "lightning, last": lambda: lightning.LightningAttention(E, 4, 8, 3, 4),
}
CHOOSING = {"dsa", "deepseek_v4, chosen"}  # the keys that they read


def parameters(form: nn.Module) -> set[str]:
    """The names of the arguments of its forward."""
    return {*inspect.signature(form.forward).parameters}


WITH_VALID = [name for name in FORMS if "valid" in parameters(FORMS[name]())]


def layers_with_valid() -> set[str]:
    """The files in which a layer of tokens x takes `valid`."""
    return {
        stem
        for stem in FILES
        for kind in vars(import_module(f"attnref.plain.{stem}")).values()
        if inspect.isclass(kind)
        and issubclass(kind, nn.Module)
        and kind.__module__.endswith(f".{stem}")
        and {"x", "valid"} <= parameters(kind)
    }


def cache_of(form: nn.Module, max_len: int) -> Any:
    """An empty cache for this layer, which its file defines but for MQA's;
    None, if it takes none."""
    if "cache" not in parameters(form):
        return None
    definitions = vars(sys.modules[type(form).__module__])
    for name in ("CompressedCache", "LightningState", "MLSTMState", "State"):
        if name in definitions:
            return definitions[name]()
    return definitions.get("KVCache", kv_cache.KVCache)(max_len)


def outputs(ours, theirs, x, valid, chunks, **options):
    """What the plain layer gives with the weights of the other, at once and,
    with the cache of its file, in chunks."""
    ours.to(x.dtype).load_state_dict(theirs.state_dict())
    cache, outs = cache_of(ours, x.shape[1]), []
    yield ours(x, valid=valid, **options)
    for start, end in pairwise(accumulate(chunks, initial=0)):
        mask = None if valid is None else valid[:, :end]
        outs.append(ours(x[:, start:end], cache, mask, **options))
    yield torch.cat(outs, dim=1)
