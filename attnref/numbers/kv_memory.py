"""Bytes of a model's KV cache, exactly, and what fits into a budget."""

# --8<-- [start:imports]
from collections.abc import Iterable
from dataclasses import fields, replace
from difflib import get_close_matches
from fractions import Fraction
from typing import NamedTuple

from attnref.core.checks import check_counts, check_sizes, whole_number
from attnref.numbers.shapes import Full, Group, Model, Shipped, Store
from attnref.words import message

# --8<-- [end:imports]


def size(n: float | Fraction) -> str:
    """Bytes as text: four digits, in the largest unit that gives 1 or more.

    Examples:
        >>> size(512), size(131_072), size(8.6 * 2**30), size(2**55)
        ('512 B', '128 KiB', '8.6 GiB', '32770 TiB')
    """
    n, units = float(n), ["B", "KiB", "MiB", "GiB", "TiB"]
    while float(f"{n:.4g}") >= 1024 and len(units) > 1:
        n /= 1024
        units.pop(0)
    return f"{float(f'{n:.4g}'):.10g} {units[0]}"


# --8<-- [start:storage]
class Storage(NamedTuple):
    """A storage format: `bits` per element, `scale_bits` per block of them.

    A block has `block` elements; in a format without scales, `scale_bits` is 0.

    Examples:
        >>> Storage(4, scale_bits=16, block=32).bits_for(128)
        576
    """

    bits: int
    scale_bits: int = 0
    block: int = 1

    def bits_for(self, width: int) -> int:
        """Bits of a vector of `width` elements, with its scales."""
        return width * self.bits + -(-width // self.block) * self.scale_bits


DTYPES = {
    "fp32": Storage(32),
    "bf16": Storage(16),
    "fp16": Storage(16),
    "fp8": Storage(8),
    "int8": Storage(8),
    "int4": Storage(4),
}


def dtype_called(name: str, *others: str) -> Storage:
    """A dtype by its name. The error lists all names, `others` too."""
    if not isinstance(name, str):
        raise TypeError(f"dtype is {type(name).__name__}; pass a name")
    if name in DTYPES:
        return DTYPES[name]
    names = [*DTYPES, *others]
    short = name.lower().removeprefix("torch.").replace("bfloat", "bf")
    near = get_close_matches(short.replace("float", "fp"), names, 1)
    known = message(
        "; did you mean {}? there are {}" if near else "; there are {}",
        *near,
        message(", ").join(names),
    )
    raise ValueError(message("no dtype {!r}", name) + known)


# --8<-- [end:storage]


# --8<-- [start:entry]
def storage_of(
    model: Model, dtype: str | Storage, known: Iterable[str] = ()
) -> Storage | Shipped:
    """The format of a name; `"shipped"` is what the model's kernels store.

    An error names the models `known`, for which a source gives it.
    """
    if isinstance(dtype, Storage):
        check_sizes(bits=dtype.bits, block=dtype.block)
        check_counts(scale_bits=dtype.scale_bits)
        return dtype
    if dtype != "shipped":
        return dtype_called(dtype, "shipped")
    if model.shipped is None:
        others = message(", ").join(known)
        raise ValueError(
            message(
                "no source says how kernels store the cache of {}; it is known "
                "for {}",
                model.id,
                others,
            )
            if others
            else f"no source says how kernels store the cache of {model.id}; "
            "name a dtype"
        )
    return model.shipped


def entry_bytes(
    store: Store, storage: Storage | Shipped, *, ranks: int = 1
) -> int:
    """Bytes of one entry in one layer, on the fullest of `ranks` devices.

    Heads are split over the devices. With more devices than heads, heads are
    replicated, so that each device has one: what is shared by all query heads
    is on every device. Channels of convolutions are split evenly, although an
    engine may have to replicate some of them.
    """
    if store.fixed:
        storage = Storage(store.bits)
    if isinstance(storage, Shipped):
        if store.role == "index":
            return storage.index
        return (store.window and storage.window) or storage.kv
    heads = -(-store.heads // ranks)
    bits = heads * sum(storage.bits_for(width) for width in store.widths)
    return -(-bits // 8)


# --8<-- [end:entry]


# --8<-- [start:total]
def group_bytes(
    group: Group,
    tokens: int,
    storage: Storage | Shipped,
    *,
    batch: int = 1,
    ranks: int = 1,
    block: int = 1,
    prefix: int = 0,
) -> int:
    """Bytes that the layers of a group keep of `batch` sequences."""
    taken = 0
    for store in group.stores:
        entries = batch * store.entries(tokens, block)
        entries -= (batch - 1) * store.shared(prefix, block)
        taken += entries * entry_bytes(store, storage, ranks=ranks)
    return group.layers * taken


def kv_bytes(
    model: Model,
    tokens: int,
    *,
    batch: int = 1,
    dtype: str | Storage = "bf16",
    ranks: int = 1,
    block: int = 1,
    prefix: int = 0,
) -> int:
    """Bytes of the cache of `batch` sequences of `tokens` each, per device.

    An engine stores whole blocks of `block` tokens. Sequences that begin with
    the same `prefix` tokens share the whole blocks of these.

    Examples:
        >>> from attnref.released.specs import find_model
        >>> llama = find_model("llama-3.1-8b")
        >>> kv_bytes(llama, 131_072, batch=8) / 2**30
        128.0
        >>> kv_bytes(llama, 1000, block=16) // kv_bytes(llama, 1)
        1008
        >>> both = {"batch": 8, "prefix": 900, "block": 16}
        >>> kv_bytes(llama, 1000, **both) // kv_bytes(llama, 1)
        1792
    """
    check_sizes(tokens=tokens, batch=batch, ranks=ranks, block=block)
    check_counts(prefix=prefix)
    if prefix >= tokens:
        raise ValueError(
            message(
                "a prefix of {} tokens needs sequences of more than {}",
                prefix,
                tokens,
            )
        )
    storage = storage_of(model, dtype)
    how = {"ranks": ranks, "block": block, "prefix": prefix}
    return sum(
        group_bytes(group, tokens, storage, batch=batch, **how)
        for group in model.groups
    )


def state_bytes(model: Model, *, batch: int = 1, ranks: int = 1) -> int:
    """Bytes of the states of recurrent layers, whatever the length.

    Examples:
        >>> from attnref.released.specs import find_model
        >>> state_bytes(find_model("kimi-k3"))
        449372160
    """
    check_sizes(batch=batch, ranks=ranks)
    return batch * sum(
        group.layers * entry_bytes(store, Storage(store.bits), ranks=ranks)
        for group in model.groups
        for store in group.stores
        if store.fixed
    )


# --8<-- [end:total]


# --8<-- [start:growth]
class Growth(NamedTuple):
    """Bytes that a token adds: at first, and once all windows are full."""

    first: Fraction
    later: Fraction


def token_bytes(
    group: Group, storage: Storage | Shipped, *, ranks: int = 1
) -> Growth:
    """Bytes that a token adds to one layer of a group, on average."""
    first = later = Fraction(0)
    for store in group.stores:
        if not store.fixed:
            entry = entry_bytes(store, storage, ranks=ranks)
            first += Fraction(entry, store.ratio)
            if store.window is None:
                later += Fraction(entry, store.ratio)
    return Growth(first, later)


def growth(
    model: Model, *, dtype: str | Storage = "bf16", ranks: int = 1
) -> Growth:
    """Bytes that a token adds to the cache, in all layers of a model.

    Examples:
        >>> from attnref.released.specs import find_model
        >>> [int(n) for n in growth(find_model("gpt-oss-120b"))]
        [73728, 36864]
    """
    check_sizes(ranks=ranks)
    storage = storage_of(model, dtype)
    parts = [
        (group.layers, token_bytes(group, storage, ranks=ranks))
        for group in model.groups
    ]
    return Growth(
        sum((n * part.first for n, part in parts), Fraction(0)),
        sum((n * part.later for n, part in parts), Fraction(0)),
    )


# --8<-- [end:growth]


def reserved(model: Model) -> Model:
    """The model as an engine sees it that reserves windows in full length.

    Examples:
        >>> from attnref.released.specs import find_model
        >>> oss = find_model("gpt-oss-20b")
        >>> [kv_bytes(m, 8192, batch=32) >> 20 for m in (oss, reserved(oss))]
        [6240, 12288]
    """
    names = [f.name for f in fields(Full)]
    return replace(
        model,
        groups=tuple(
            Full(**{n: getattr(group, n) for n in names})
            if isinstance(group, Full)
            else group
            for group in model.groups
        ),
    )


# --8<-- [start:fits]
def weight_bytes(
    model: Model,
    dtype: str | Storage = "bf16",
    *,
    ranks: int = 1,
    dp_attention: bool = False,
) -> int:
    """Bytes of a model's weights per device, split evenly over `ranks`.

    They are computed from `Model.params`, a number that makers publish
    rounded. MTP draft layers and vision encoders may come on top. With
    `dp_attention` each device stores all weights of attention.

    Examples:
        >>> from attnref.released.specs import find_model
        >>> weight_bytes(find_model("llama-3.1-8b"))
        16060522496
        >>> weight_bytes(find_model("deepseek-v3"), "fp8", ranks=8)
        83875000000
    """
    check_sizes(ranks=ranks)
    storage = dtype if isinstance(dtype, Storage) else dtype_called(dtype)
    if model.params is None:
        raise ValueError(
            message(
                "no source gives the number of parameters of {}; pass the "
                "size of its weights",
                model.id,
            )
        )
    whole = 0
    if dp_attention:
        if model.attention_params is None:
            raise ValueError(
                message(
                    "the weights of attention of {} are not counted; pass its "
                    "config.json",
                    model.id,
                )
            )
        whole = model.attention_params
    split = -(-storage.bits_for(model.params - whole) // (8 * ranks))
    return split - (-storage.bits_for(whole) // 8)


def longest_context(
    model: Model,
    budget: int,
    *,
    batch: int = 1,
    dtype: str | Storage = "bf16",
    ranks: int = 1,
    block: int = 1,
    prefix: int = 0,
) -> int | None:
    """The most tokens per sequence that fit into `budget` bytes per device.

    The budget is only for the cache, so subtract the weights first. The result
    is 0 if not even one token fits, also for a budget below 0, and None if the
    cache stops growing before it fills the budget.

    Examples:
        >>> from attnref.released.specs import find_model
        >>> longest_context(find_model("llama-3.1-8b"), 16 * 2**30)
        131072
        >>> longest_context(find_model("mistral-7b"), 16 * 2**30) is None
        True
    """
    budget = whole_number("budget", budget)
    check_sizes(batch=batch, ranks=ranks)
    storage = storage_of(model, dtype)

    entries = [
        (group.layers * entry_bytes(store, storage, ranks=ranks), store)
        for group in model.groups
        for store in group.stores
    ]

    def fits(tokens: int) -> bool:
        taken, common = 0, min(prefix, tokens - 1)
        for each, store in entries:
            taken += batch * each * store.entries(tokens, block)
            taken -= (batch - 1) * each * store.shared(common, block)
        return taken <= budget

    if not fits(1):
        return 0
    low, high = 1, 2
    windows = [store.window or 0 for _, store in entries]
    endless = not growth(model).later
    while fits(high):
        if endless and high >= max(windows) + block:
            return None
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def largest_batch(
    model: Model,
    tokens: int,
    budget: int,
    *,
    dtype: str | Storage = "bf16",
    ranks: int = 1,
    block: int = 1,
    prefix: int = 0,
) -> int:
    """How many sequences of `tokens` fit into `budget` bytes per device.

    Examples:
        >>> from attnref.released.specs import find_model
        >>> v3 = find_model("deepseek-v3")
        >>> largest_batch(v3, 8192, 24 * 2**30)
        44
        >>> left = 72 * 10**9 - weight_bytes(v3, "fp8", ranks=8)
        >>> left, largest_batch(v3, 8192, left, ranks=8)
        (-11875000000, 0)
    """
    budget = whole_number("budget", budget)
    how = {"ranks": ranks, "block": block, "prefix": prefix}
    one = kv_bytes(model, tokens, dtype=dtype, **how)
    more = kv_bytes(model, tokens, batch=2, dtype=dtype, **how) - one
    return 1 + (budget - one) // more if budget >= one else 0


# --8<-- [end:fits]
