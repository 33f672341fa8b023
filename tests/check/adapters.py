"""Eighteen adapters in NumPy, as strangers write them: seven are right in other
conventions than the package, eleven have a mistake each."""

import numpy as np


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def hide(scores, mask, causal, offset=None):
    """Bottom-right, unless another offset is passed."""
    T, S = scores.shape[-2:]
    if causal:
        k = S - T if offset is None else offset
        scores = np.where(np.tril(np.ones((T, S), bool), k), scores, -np.inf)
    if mask is None:
        return scores
    if mask.dtype == bool:
        return np.where(mask, scores, -np.inf)
    return scores + mask


def weigh(scores, v):
    with np.errstate(all="ignore"):
        return np.nan_to_num(softmax(scores)) @ v


def score(q, k, scale=None):
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    return scale * np.einsum("bhtd,bhsd->bhts", q, k)


def group(q, *tensors):
    return [np.repeat(x, q.shape[1] // x.shape[1], 1) for x in tensors]


def numbers_refused(mask):
    if mask.dtype != bool:
        raise TypeError("a mask of bools")
    return mask


# --------------------------------------------- right, in other conventions


def top_left_and_nan(q, k, v, mask=None, causal=False, scale=None):
    k, v = group(q, k, v)
    with np.errstate(all="ignore"):
        return softmax(hide(score(q, k, scale), mask, causal, 0)) @ v


def true_is_hidden(q, k, v, mask=None, causal=False):
    k, v = group(q, k, v)
    mask = None if mask is None else ~numbers_refused(mask)
    return weigh(hide(score(q, k), mask, causal), v)


def unscaled_and_interleaved(q, k, v, mask=None, causal=False, scale=1.0):
    k, v = (np.tile(x, (1, q.shape[1] // x.shape[1], 1, 1)) for x in (k, v))
    return weigh(hide(score(q, k, scale), mask, causal), v)


def mean_and_wider_window(q, k, v, mask=None, causal=False, window=None):
    """Hidden scores get the least number: an empty row gives the mean."""
    k, v = group(q, k, v)
    T, S = q.shape[2], k.shape[2]
    keep = np.ones((T, S), bool)
    if causal:
        keep = np.tril(keep, S - T)
    if window is not None:
        keep = np.triu(keep, S - T - window)
    if mask is not None:
        keep = keep & numbers_refused(mask)
    least = np.finfo(np.float32).min
    return softmax(np.where(keep, score(q, k), least)) @ v


def powers_of_two(q, k, v, mask=None, log_sum_exp=False):
    """As kernels compute it; the log-sum-exp is (B, T, H), in base 2."""
    k, v = group(q, k, v)
    scores = hide(score(q, k), mask, False) * np.log2(np.e)
    top = scores.max(-1, keepdims=True)
    top = np.where(top == -np.inf, 0, top)
    e = np.exp2(scores - top)
    total = e.sum(-1, keepdims=True)
    out = (e / np.where(total > 0, total, 1)) @ v
    with np.errstate(divide="ignore"):
        lse = (top + np.log2(total))[..., 0].swapaxes(1, 2)
    return (out, lse) if log_sum_exp else out


def minus_1e9_in_float64(q, k, v, mask=None, causal=False):
    """The score of a row without keys is not lost in the sum: it stays open."""
    k, v = group(q, k, v)
    scores = score(q, k).astype(np.float64)
    T, S = scores.shape[-2:]
    if causal:
        scores = scores - 1e9 * (1 - np.tri(T, S, S - T))
    if mask is not None:
        hidden = mask.dtype == bool
        scores = scores + (-1e9 * ~mask if hidden else mask)
    return softmax(np.maximum(scores, -1e30)) @ v


def numbers_alone(q, k, v, mask=None):
    if mask is not None and mask.dtype == bool:
        raise TypeError("a mask is added to the scores")
    k, v = group(q, k, v)
    return weigh(hide(score(q, k), mask, False), v)


# ------------------------------------------------------------------- wrong


def softmax_over_queries(q, k, v, mask=None, causal=False):
    k, v = group(q, k, v)
    scores = hide(score(q, k), mask, causal).swapaxes(-1, -2)
    return np.nan_to_num(softmax(scores)).swapaxes(-1, -2) @ v


def scale_of_values(q, k, v, mask=None, causal=False):
    k, v = group(q, k, v)
    scores = score(q, k, v.shape[-1] ** -0.5)
    return weigh(hide(scores, mask, causal), v)


def sees_next(q, k, v, mask=None, causal=False):
    k, v = group(q, k, v)
    offset = k.shape[2] - q.shape[2] + 1
    return weigh(hide(score(q, k), mask, causal, offset), v)


def never_itself(q, k, v, mask=None, causal=False):
    k, v = group(q, k, v)
    offset = k.shape[2] - q.shape[2] - 1
    return weigh(hide(score(q, k), mask, causal, offset), v)


def no_maximum(q, k, v, mask=None, causal=False):
    k, v = group(q, k, v)
    with np.errstate(all="ignore"):
        e = np.exp(hide(score(q, k), mask, causal))
        return np.nan_to_num(e / e.sum(-1, keepdims=True)) @ v


def softcap_after_mask(q, k, v, mask=None, causal=False, softcap=None):
    k, v = group(q, k, v)
    scores = hide(score(q, k), mask, causal)
    if softcap is not None:
        scores = softcap * np.tanh(scores / softcap)
    return weigh(scores, v)


def hidden_by_minus_100(q, k, v, mask=None, causal=False):
    k, v = group(q, k, v)
    keep = np.ones((q.shape[2], k.shape[2]), bool)
    if causal:
        keep = np.tril(keep, k.shape[2] - q.shape[2])
    keep = keep if mask is None else keep & numbers_refused(mask)
    return softmax(np.where(keep, score(q, k), -100.0)) @ v


def scales_in_place(q, k, v, mask=None, causal=False):
    q *= q.shape[-1] ** -0.5
    k, v = group(q, k, v)
    return weigh(hide(score(q, k, 1.0), mask, causal), v)


def values_tiled(q, k, v, mask=None, causal=False):
    (k,), G = group(q, k), q.shape[1] // v.shape[1]
    scores = hide(score(q, k), mask, causal)
    return weigh(scores, np.tile(v, (1, G, 1, 1)))


def read_by_head(q, k, v, mask=None, causal=False):
    k, v = group(q, k, v)
    out = weigh(hide(score(q, k), mask, causal), v)
    return out.swapaxes(1, 2).reshape(out.shape)


def pairs_of_keys(q, k, v, mask=None, causal=False):
    """In tiles of two, but earlier sums are not rescaled."""
    k, v = group(q, k, v)
    scores = hide(score(q, k), mask, causal)
    m = np.full((*scores.shape[:3], 1), np.finfo(np.float32).min, np.float32)
    total, out = 0, 0
    for j in range(0, k.shape[2], 2):
        tile = scores[..., j : j + 2]
        larger = np.maximum(m, tile.max(-1, keepdims=True))
        e = np.exp(tile - larger)
        total = total * np.exp(m - larger) + e.sum(-1, keepdims=True)
        out, m = out + e @ v[:, :, j : j + 2], larger
    return out / np.where(total > 0, total, 1)
