"""Each kernel against attention in float64: on a GPU if there is one, and else
in Triton's interpreter.

A check takes the file of a kernel, which may be one with a planted mistake, a
dtype and a device; it returns the largest error, as a share of the largest
element, or raises an AssertionError.
"""

import importlib.util

import torch

from tests.kit.interpreter import mend

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
BOUND = {F32: 3e-6, F16: 3e-3, BF16: 2e-2}
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# Triton can be imported, and so can its interpreter.
ABSENT = (
    ""
    if importlib.util.find_spec("triton")
    else "Triton is not installed: it is for Linux"
)
# Python runs the lines of a kernel in the interpreter alone.
INTERPRETED = not ABSENT and DEVICE == "cpu"


def prepare():
    if DEVICE == "cpu":
        mend()


def draw(*shape, dtype=F32, seed=0, sharp=1.0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator) * sharp
    return x.to(dtype).to(DEVICE)


def near(got, want, bound, name):
    """-inf only where it is wanted; NaN nowhere."""
    got, finite = got.double(), want.isfinite()
    assert torch.equal(got[~finite], want[~finite]), f"{name}: -inf"
    gap = (got - want)[finite].abs().max() / want[finite].abs().max()
    assert gap <= bound, f"{name}: {gap:.1g} > {bound:.1g}"
    return gap.item()


def exact(q, k, v, seen, scale=None, softcap=None, sinks=None):
    """The output and the log-sum-exp in float64, with autograd."""
    G = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(G, dim=1) for x in (k, v))
    scores = q @ k.mT * (q.shape[3] ** -0.5 if scale is None else scale)
    if softcap is not None:
        scores = softcap * (scores / softcap).tanh()
    if sinks is None:  # queries that see no key: one that does not count
        extra = scores.new_zeros(())
        extra = extra.where(~seen.any(-1, keepdim=True), -torch.inf)
    else:
        extra = sinks[:, None, None]
    extra = extra.expand(*scores.shape[:3], 1)
    scores = torch.cat((scores.masked_fill(~seen, -torch.inf), extra), -1)
    lse = scores.logsumexp(-1)
    out = (scores.softmax(-1)[..., :-1]) @ v
    if sinks is None:
        lse = lse.masked_fill(~seen.any(-1), -torch.inf)
    return out, lse


def rule(T, S, causal=True, window=None):
    i = torch.arange(S - T, S, device=DEVICE)[:, None]
    j = torch.arange(S, device=DEVICE)
    seen = (j <= i) if causal or window else (j >= 0) & (i == i)
    return seen & (j > i - window) if window else seen


# B, H, K, T, S, D, Dv: T < S, T > S (queries that see no key), T = 1.
FLASH = [
    ((1, 4, 2, 21, 37, 16, 16), {}),
    ((3, 2, 1, 35, 24, 10, 18), {}),
    ((3, 3, 3, 1, 21, 16, 16), {"scale": 0.5}),
    ((1, 2, 2, 18, 33, 16, 16), {"causal": False}),
    ((1, 4, 2, 40, 41, 16, 16), {"window": 7, "softcap": 2.0, "sinks": True}),
]


def check_flash(file, dtype, cases=FLASH, block=(16, 16), backward=True):
    errors = []
    for (B, H, K, T, S, D, DV), options in cases:
        given = dict(options)
        q = draw(B, H, T, D, dtype=dtype, sharp=3)
        k = draw(B, S, K, D, dtype=dtype, seed=1).transpose(1, 2)
        v = draw(B, K, S, DV, dtype=dtype, seed=2)
        inputs = [q, k, v]
        if given.pop("sinks", None):
            inputs.append(draw(H, seed=3))
        wide = [x.double().requires_grad_() for x in inputs]
        inputs = [x.requires_grad_() for x in inputs]
        factors = {x: given.get(x) for x in ("scale", "softcap")}
        seen = rule(T, S, given.get("causal", True), given.get("window"))
        q64, k64, v64, *sinks = wide
        want = exact(q64, k64, v64, seen, **factors, sinks=(*sinks, None)[0])
        if len(inputs) > 3:
            given["sinks"] = inputs[3]
        got = file.flash(*inputs[:3], block=block, **given)
        errors.append(near(got[0], want[0], BOUND[dtype], "output"))
        near(got[1], want[1], BOUND[F32], "log-sum-exp")
        if not backward:
            continue
        d_out = draw(B, H, T, DV, dtype=dtype, seed=4)
        d_lse = draw(B, H, T, seed=5).masked_fill(want[1] == -torch.inf, 0)
        got = torch.autograd.grad(got, inputs, (d_out, d_lse))
        want = (want[0], want[1].masked_fill(want[1] == -torch.inf, 0))
        above = (d_out.double(), d_lse.double())
        want = torch.autograd.grad(want, wide, above)
        for name, x, y in zip(
            ("q", "k", "v", "sinks"), got, want, strict=False
        ):
            bound = 3 * BOUND[dtype]
            errors.append(near(x, y, bound, f"gradient of {name}"))
    return max(errors)


def prefixes(lengths, S):
    j = torch.arange(S, device=DEVICE)
    return (j < lengths[:, None])[:, None, None]  # (B, 1, 1, S)


def check_decode(file, dtype, D=16, DV=18, G=3, K=2, lengths=(70, 1, 0, 48)):
    """Rows behind a length are NaN, and so are pages of nobody."""
    S, lengths = 80, torch.tensor(lengths, device=DEVICE, dtype=torch.int32)
    B = len(lengths)
    q = draw(B, G * K, 1, D, dtype=dtype, sharp=3)
    k = draw(B, K, S, D, dtype=dtype, seed=1)
    v = draw(B, K, S, DV, dtype=dtype, seed=2)
    seen = prefixes(lengths, S)
    want, _ = exact(q.double(), k.double(), v.double(), seen)
    k, v = (x.masked_fill(~seen.mT, torch.nan) for x in (k, v))
    got = file.decode(q, k, v, lengths, span=32, block=16)
    error = near(got, want, BOUND[dtype], "output")
    size, pages = 20, S // 20
    order = torch.randperm(B * pages + 3).to(DEVICE)[: B * pages]
    table = order.view(B, pages).int()
    pools = []
    for x in (k, v):
        width = x.shape[3]
        pool = x.new_full((B * pages + 3, K, size, width), torch.nan)
        rows = x.view(B, K, pages, size, width).transpose(1, 2)
        pool[order] = rows.flatten(0, 1)
        pools.append(pool)
    got = file.decode(q, *pools, lengths, table=table, span=32, block=16)
    return max(error, near(got, want, BOUND[dtype], "output, paged"))


def check_far(file, dtype):
    """Sequences that begin beyond element 2^31; memory that nobody touches."""
    if DEVICE == "cuda":
        return 0.0
    room = torch.empty(2**31 + 4096, dtype=dtype)
    k = room.as_strided((3, 1, 40, 32), (2**30, 1280, 32, 1))
    k.copy_(draw(3, 1, 40, 32, dtype=dtype))
    q = draw(3, 2, 1, 32, dtype=dtype, seed=1)
    lengths = torch.tensor([40, 3, 33], dtype=torch.int32)
    got = file.decode(q, k, k, lengths, span=64, block=32)
    wide = [x.double() for x in (q, k, k)]
    want, _ = exact(*wide, prefixes(lengths, 40))
    return near(got, want, BOUND[dtype], "output, far away")


def check_mla_decode(
    file, dtype, H=24, R=48, DR=16, S=70, lengths=(70, 0, 33), **options
):
    """Against heads that are not absorbed: keys and values of their own."""
    lengths = torch.tensor(lengths, device=DEVICE, dtype=torch.int32)
    B, DN, DV = len(lengths), 32, 24
    cache = draw(B, S, R + DR, dtype=dtype)
    up_k = draw(H, R, DN, seed=1).double() * R**-0.5
    up_v = draw(H, R, DV, seed=2).double() * R**-0.5
    query = draw(B, H, 1, DN, seed=3, sharp=3).double()
    rotated = draw(B, H, 1, DR, dtype=dtype, seed=4, sharp=3)
    q = torch.cat(((query @ up_k.mT).to(dtype), rotated), -1)
    latent, key = cache.double()[:, None].split((R, DR), -1)
    keys = torch.cat((latent @ up_k, key.expand(-1, H, -1, -1)), -1)
    seen, scale = prefixes(lengths, S), (DN + DR) ** -0.5
    query = torch.cat((query, rotated.double()), -1)
    want, _ = exact(query, keys, latent @ up_v, seen, scale)
    cache = cache.masked_fill(~seen[:, 0].mT, torch.nan)
    options = {"span": 32, "block": 16, "rows": 16} | options
    got = file.mla_decode(q, cache, lengths, R, scale=scale, **options)
    return near(got.double() @ up_v, want, BOUND[dtype], "output")


def check_gated_delta(file, dtype, D=16, DV=20):
    """Slow and strong decay; keys that differ, and keys nearly alike."""
    errors = []
    cases = (3, 37, 0.1, 0), (1, 21, 20.0, 0), (1, 37, 1e-3, 5), (2, 1, 1.0, 0)
    for B, T, strength, same in cases:
        q, k = draw(2, B, 2, T, D)
        k = torch.nn.functional.normalize(k + same, dim=-1).to(dtype)
        q, v = q.to(dtype), draw(B, 2, T, DV, dtype=dtype, seed=1)
        decay = -strength * draw(B, 2, T, seed=2).exp()
        beta = (draw(B, 2, T, seed=3) + same).sigmoid()
        state = draw(B, 2, D, DV, seed=4)
        wide = [x.double() for x in (q, k, v, decay, beta, state)]
        want = token_by_token(*wide)
        old = state.clone()
        got = file.gated_delta(q, k, v, decay, beta, state)
        assert torch.equal(state, old), "the state that was passed has changed"
        errors.append(near(got[0], want[0], BOUND[dtype], "output"))
        # Products of 16-bit inputs are those of TF32.
        bound = BOUND[F32] if dtype == F32 else 2e-3
        near(got[1], want[1], bound, "state")
    return max(errors)


def token_by_token(q, k, v, decay, beta, state):
    outs = []
    for t in range(q.shape[2]):
        state = state * decay[:, :, t, None, None].exp()
        known = torch.einsum("bhd,bhde->bhe", k[:, :, t], state)
        new = beta[:, :, t, None] * (v[:, :, t] - known)
        state = state + torch.einsum("bhd,bhe->bhde", k[:, :, t], new)
        outs.append(torch.einsum("bhd,bhde->bhe", q[:, :, t], state))
    return torch.stack(outs, 2), state


CHECKS = {
    "flash": [check_flash],
    "decode": [check_decode, check_far],
    "mla_decode": [check_mla_decode],
    "gated_delta": [check_gated_delta],
}
