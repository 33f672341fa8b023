"""A KV cache of 8, 4 or 2 bits, and FP8. Needs only PyTorch."""

import torch


def quantise(x, bits, dim, group):
    """Codes of groups along dim, -1 or -2, with their steps and minima."""
    x = x.float().unflatten(dim, (-1, group))  # dim now counts in a group
    low, high = x.aminmax(dim=dim, keepdim=True)
    low, step = low.half(), ((high - low) / (2**bits - 1)).half() + 1e-7
    n = 8 // bits  # codes per byte
    codes = ((x - low) / step).round().clamp(0, 2**bits - 1).byte()
    return sum(codes[..., i::n] << bits * i for i in range(n)), step, low


def restore(packed, step, low, bits, dim):
    """The x that quantise was given, up to half a step."""
    x = torch.stack([packed >> i & 2**bits - 1 for i in range(0, 8, bits)], -1)
    return (x.flatten(-2) * step.float() + low).flatten(dim - 1, dim)


def to_fp8(x, scale):
    """x in e4m3, back by .float() * scale; scale: its largest |x| / 448."""
    return (x.float() / scale).clamp(-448, 448).to(torch.float8_e4m3fn)


class QuantisedCache:
    """Keys in groups of tokens, values of channels; the newest as they are."""

    def __init__(self, bits, group, residual):
        self.bits, self.group, self.residual = bits, group, residual
        self.length, self.old, self.new = 0, ([], []), ()

    def append(self, *new):
        """Store the new k and v, (B, K, T, D) each; return all so far."""
        self.length += new[0].shape[2]
        new, out = torch.cat((*self.new, torch.stack(new)), dim=3), []
        full = max(new.shape[3] - self.residual, 0) // self.group * self.group
        for x, old, dim in zip(new, self.old, (-2, -1), strict=True):
            past = [restore(*o, self.bits, dim).to(x.dtype) for o in old]
            out.append(torch.cat((*past, x), dim=2))
            if full > 0:
                old.append(quantise(x[:, :, :full], self.bits, dim, self.group))
        self.new = (new[:, :, :, full:].clone(),)  # a view would keep all
        return out
