"""FP4 with a scale per block, a rotation, and attention in 8 bits.

Needs only PyTorch.
"""

import torch


def hadamard(x):
    """x times a Hadamard matrix, which spreads a channel over all; twice: x."""
    D = x.shape[-1]  # a power of 2
    for n in range(D.bit_length() - 1):
        a, b = x.unflatten(-1, (-1, 2, 2**n)).unbind(dim=-2)
        x = torch.stack((a + b, a - b), dim=-2).flatten(-3)
    return x / D**0.5


def to_nvfp4(x):
    """Codes, a scale in E4M3 per 16 channels, and one in float32 for all."""
    x = x.float().unflatten(-1, (-1, 16))
    largest = x.abs().amax(dim=-1, keepdim=True)
    whole = largest.max().clamp(min=1e-30) / (448 * 6)
    scale = (largest / 6 / whole).clamp(min=2**-6)
    scale = scale.to(torch.float8_e4m3fn)
    return to_e2m1(x / (scale.float() * whole)), scale, whole


def to_mxfp4(x):
    """Codes, and a power of two per 32 channels, as a byte with a bias."""
    x = x.float().unflatten(-1, (-1, 32))
    largest = x.abs().amax(dim=-1, keepdim=True)
    power = largest.frexp().exponent.clamp(min=-124) - 3
    return to_e2m1(x.ldexp(-power)), (power + 127).byte()


def to_e2m1(x):
    """Two numbers per byte, each the nearest of 0, 0.5, 1, 1.5, 2, 3, 4, 6."""
    power = x.abs().clamp(1, 6).log2().floor()  # 0, 1 or 2: steps double
    codes = (2 * x.abs() / power.exp2()).round() + 2 * power
    codes = codes.clamp(max=7).byte() + 8 * x.signbit().byte()
    return codes[..., ::2] + 16 * codes[..., 1::2]


def from_e2m1(packed, scale):
    """The numbers of all blocks in one row, times their scales."""
    codes = torch.stack((packed % 16, packed // 16), dim=-1).flatten(-2).int()
    power = (codes % 8 // 2 - 1).clamp(min=0)
    x = (codes % 8 - 2 * power) * power.float().exp2() / 2
    return (x.where(codes < 8, -x) * scale).flatten(-2)


def attention_in_8_bits(q, k, v, mask=None, smooth=True):
    """SageAttention2: q and k in int8, weights and v in E4M3; as many heads."""
    q, k, v = q.float(), k.float(), v.float()
    if smooth:
        k = k - k.mean(dim=2, keepdim=True)  # all scores of a query move alike
    q_step, k_step = (
        x.abs().amax(-1, keepdim=True).clamp(min=1e-9) / 127 for x in (q, k)
    )
    q, k = (q / q_step).round(), (k / k_step).round()  # int8 in a kernel
    scores = q @ k.mT * q_step * k_step.mT / q.shape[-1] ** 0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    largest = scores.amax(dim=-1, keepdim=True).clamp(min=-1e30)
    p = (scores - largest).exp()  # (B, H, T, S); at most 1
    total = p.sum(dim=-1, keepdim=True).clamp(min=1e-30)
    scale = v.abs().amax(dim=2, keepdim=True).clamp(min=1e-9) / 448
    p, v = (x.to(torch.float8_e4m3fn).float() for x in (448 * p, v / scale))
    return p @ v * scale / (448 * total)  # (B, H, T, Dv)
