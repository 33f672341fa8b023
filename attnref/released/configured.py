"""The attention of a released model as a layer of this package."""

import linecache
import sys
from collections.abc import Mapping
from copy import copy
from functools import cache
from os import PathLike
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from attnref.caches.kv_cache import Cache, KVCache, check_appended, past_of
from attnref.caches.past import view_of
from attnref.caches.ring import RingKVCache
from attnref.core.biases import Alibi
from attnref.core.checks import check_input
from attnref.core.masks import Causal, Chunk, Rule, RuleMask, Window, dense
from attnref.core.rope import check_positions, token_positions
from attnref.core.sdpa import Attend, Scores
from attnref.released.generate import rendered
from attnref.released.record import AttentionRecord, attention_of, families


class SharedCache(Cache):
    """A layer's cache as a later layer that reads its keys has to see it.

    It is as it was before the layer appended to it: `append` stores nothing,
    and returns what the layer's call of it returned, which a ring need not
    hold any more.
    """

    def __init__(
        self,
        cache: Cache,
        start: tuple[int, Tensor | None, Tensor | None],
        positions: tuple[Tensor, Tensor | None],
        tensors: tuple[Tensor, ...],
    ) -> None:
        self.keeps = cache.keeps
        super().__init__()
        self.length, self.lengths, self.numbers = start
        self.end = cache.length
        self.seen = tensors  # the code of a layer reads them by this name
        self.query_positions, self.key_positions = positions

    def append(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        self.length = self.end
        return self.seen

    def positions(self, new: int, device: torch.device) -> Tensor | None:
        return self.numbers

    def positions_of(self, new: Tensor | None, T: int) -> Tensor | None:
        return self.key_positions

    def next_positions(self, T: int) -> Tensor | None:
        return self.query_positions


class ConfiguredAttention(nn.Module):
    """Self-attention as a record says, called like the layers of `layers`.

    `attend` is a core with all that the record needs, such as `sdpa`; without
    one, the layer attends as its file does. Weights load under their names in
    transformers. If a layer reads the keys of an earlier layer, call it after
    that layer, with the same cache.
    """

    def __new__(
        cls, record: AttentionRecord, attend: Attend | None = None
    ) -> "ConfiguredAttention":
        return _empty(record)

    def __reduce__(self) -> Any:  # for copies and pickle
        return _empty, (self.r,), self.__dict__

    def __init__(
        self, record: AttentionRecord, attend: Attend | None = None
    ) -> None:
        super().__init__()
        self.r = record
        self.core, self.dropout, self.shares = attend, 0.0, record.shares
        bias = Alibi(record.n_heads) if record.alibi else None
        self.scores = Scores(record.scale, bias, record.softcap)
        self.causal: Rule = Causal()
        if record.window:
            self.causal = Window(record.window)
        if record.chunk:
            self.causal = Chunk(record.chunk)
        names = families()[record.family].names
        self._theirs = {theirs: ours for ours, theirs in names.items()}
        hook = self.register_load_state_dict_pre_hook
        hook(_rename)  # type: ignore[no-untyped-call]
        self._build()

    def _build(self) -> None:
        """Add the projections and norms of the record: see `_class_of`."""
        raise NotImplementedError

    def _attention(
        self,
        x: Tensor,
        i: Tensor,
        mask: Tensor | None,
        cache: Cache | None,
        positions: Tensor | None,
        chosen: Tensor | None,
        latents: Tensor | None,
    ) -> Tensor:
        """Apply self-attention to tokens at `i` `(..., 1, T, 1)`."""
        raise NotImplementedError

    def forward(
        self,
        x: Tensor,
        *,
        mask: Tensor | None = None,
        cache: Cache | None = None,
        positions: Tensor | None = None,
        chosen: Tensor | None = None,
        latents: Tensor | None = None,
    ) -> Tensor:
        """Apply self-attention to `x` `(B, T, E)`; returns `(B, T, E)`.

        `mask` is bool, True = may attend, and broadcasts to `(B, H, T, S)`.
        With a `cache`, the S keys are the cached ones followed by the T new
        ones; without, S = T. Unless `positions` are given, those of a row
        count its real tokens, if `mask` is a padding mask. Where an
        indexer chose the keys, they are in `chosen` of its layer, and layers
        that have none take them as `chosen`. So it is with `latents`, of a
        layer whose latents this one reads.
        """
        check_input("x", x.shape, self.r.d_model)
        if positions is not None:
            check_positions(positions, x.shape[0], x.shape[1], x.device)
        if self.r.shares is not None and not self.r.kv_rank:
            cache = self._shared(x, cache)  # it knows the positions
        elif positions is None:
            positions = _real_positions(mask, x, cache)
        if self.r.index_topk and not self.r.index_own and chosen is None:
            raise ValueError(
                "the layer has no indexer: pass chosen=, the `chosen` of the "
                "last layer that has one"
            )
        i, past = self.positions_of(x, cache, positions)
        reads = self.r.shares is not None and bool(self.r.kv_rank)
        stored = 0 if latents is None else latents.shape[2]
        if reads and stored != past + x.shape[1]:
            raise ValueError(
                f"the layer reads the latents of layer {self.r.shares}: pass "
                "latents=, the `latents` of that layer after these tokens"
            )
        i = i[:, None, :, None]
        return self._attention(x, i, mask, cache, positions, chosen, latents)

    def cache(self, max_len: int) -> Cache:
        """An empty cache that fits: a `RingKVCache` for a window or chunks."""
        rule = self.causal
        if isinstance(rule, Window | Chunk):
            return RingKVCache(rule.size)
        return KVCache(max_len)

    def _shared(self, x: Tensor, cache: Cache | None) -> SharedCache:
        """What the layer whose keys this one reads has left in its cache."""
        shared = None if cache is None else cache.handed
        if (
            not isinstance(shared, SharedCache)
            or cache is None
            or shared.end != cache.length
            or shared.end - shared.length != x.shape[1]
        ):
            raise ValueError(
                f"the layer reads the keys of layer {self.r.shares}: call that "
                "one first, with the same tokens and the same cache"
            )
        return copy(shared)

    def positions_of(
        self, x: Tensor, cache: Cache | None, positions: Tensor | None
    ) -> tuple[Tensor, int]:
        """Positions of new tokens, `(1, T)` or `(B, T)`; how many are past."""
        past = past_of(cache, self.causal)
        if positions is None and cache is not None:
            positions = cache.next_positions(x.shape[1])
        if positions is None:
            end = past + x.shape[1]
            positions = torch.arange(past, end, device=x.device)
        return positions if positions.dim() == 2 else positions[None], past

    def is_longer(
        self, x: Tensor, cache: Cache | None, positions: Tensor | None
    ) -> bool:
        """LongRoPE: whether the text, without pads, is longer than trained."""
        if not x.numel():
            return False
        past = past_of(cache, self.causal)
        longest: int = self.r.rope_length
        end = past + x.shape[1]
        if positions is not None and not positions.is_meta:
            end = int(positions.max()) + 1
        if cache is not None:
            length = getattr(cache, "rotated", 0) or past
            if past and (length > longest) is not (end > longest):
                raise ValueError(
                    f"the cached keys were rotated for a text of {length} "
                    f"tokens, and LongRoPE rotates one of {end} by other "
                    "angles: read the whole text again, without these keys"
                )
            cache.rotated = end
        return end > longest

    def stored(
        self,
        new: tuple[Tensor, ...],
        q: Tensor,
        mask: Tensor | None,
        cache: Cache | None,
        positions: Tensor | None,
    ) -> tuple[tuple[Tensor, ...], Tensor | None, Tensor]:
        """What is kept of all tokens, which of them are seen, and where.

        None is the causal mask of a prompt, which PyTorch then does not need.
        """
        r, B, H = self.r, q.shape[0], q.shape[1]
        i, past = self.positions_of(q.transpose(1, 2), cache, positions)
        view = view_of(self, cache, q, mask=mask, positions=positions)
        rows, numbers, lengths = view.token_positions, view.keys, view.lengths
        rule = view.shown(self.causal, H)
        if cache is not None:
            new = cache.append(*new)
            check_appended(cache, new[0], numbers, rows)
            if r.is_shared and not r.kv_rank:
                start = past, lengths, numbers
                cache.handed = SharedCache(cache, start, (i, rows), new)
        by_hand = self.scores.bias or self.scores.softcap or r.with_sinks
        causal = self.core is None and not by_hand and not r.index_topk
        causal = causal and isinstance(rule, RuleMask) and rule.is_triangle()
        visible = None if causal else dense(rule)
        if visible is None and not causal:
            visible = torch.ones((1, 1), dtype=torch.bool, device=q.device)
        j = numbers
        if j is None:
            j = torch.arange(new[0].shape[2], device=q.device)
        j = j if j.dim() == 2 else j[None]
        if rows is not None:
            j = rows.expand(B, -1).gather(1, j.clamp(min=0).expand(B, -1))
        return new, visible, j[:, None, None]

    def by_core(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor,
        i: Tensor,
        j: Tensor,
    ) -> Tensor:
        """The heads by the layer's core, with the options of the record."""
        assert self.core is not None
        options = self.scores.options(getattr(self, "sinks", None))
        if self.scores.bias is not None:  # the mask does not know positions
            h = torch.arange(self.r.n_heads, device=q.device)[:, None, None]
            options["bias"] = self.scores.bias(h, i, j)
        return self.core(q, k, v, mask, **options)


def _empty(record: AttentionRecord) -> ConfiguredAttention:
    return nn.Module.__new__(_class_of(record))


@cache
def _class_of(record: AttentionRecord) -> type[ConfiguredAttention]:
    """The class whose `_build` and `_attention` are those of the record.

    Its source is the file of a model with this layer, where masks and caches
    are those of the package.
    """
    text = rendered({0: record}, inside=True)
    name = f"<attention of {record.family}, {hash(record):x}>"
    module = ModuleType(name)
    # Where tracebacks and torch.compile look for it.
    linecache.cache[name] = len(text), None, text.splitlines(True), name
    sys.modules[name] = module
    vars(module)["Layer"] = ConfiguredAttention
    exec(compile(text, name, "exec"), vars(module))
    layer: type[ConfiguredAttention] = vars(module)["Attention"]
    layer.__name__ = layer.__qualname__ = "ConfiguredAttention"
    return layer


def _real_positions(
    mask: Tensor | None, x: Tensor, cache: Cache | None
) -> Tensor | None:
    """Positions `(B, T)` of the new tokens, which count only real tokens."""
    (B, T), S = x.shape[:2], 0 if mask is None else mask.shape[-1]
    if mask is None or mask.shape[:-1] != (B, 1, 1) or S == 0:
        return None
    positions = token_positions(mask[:, 0, 0])
    new = None if cache is None else cache.next_positions(T)
    return positions[:, S - T :] if new is None else positions.gather(1, new)


def attention_from_config(
    config: Mapping[str, object] | str | PathLike[str],
    layer: int = 0,
    *,
    attend: Attend | None = None,
) -> ConfiguredAttention:
    """The attention of one layer of a released model, from its `config.json`.

    Examples:
        >>> config = {"model_type": "olmo2", "num_hidden_layers": 2}
        >>> config |= {"hidden_size": 64, "num_attention_heads": 8}
        >>> layer = attention_from_config(config)
        >>> layer(torch.randn(3, 5, 64)).shape, layer.q_norm.weight.shape
        (torch.Size([3, 5, 64]), torch.Size([64]))
    """
    return ConfiguredAttention(attention_of(config, layer), attend)


def _rename(module: Any, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Give weights under the names of transformers ours."""
    for name in [*state]:
        local = name.removeprefix(prefix)
        for theirs, ours in module._theirs.items():
            if f"{local}.".startswith(f"{theirs}."):
                new = prefix + ours + local.removeprefix(theirs)
                state[new] = state.pop(name)
