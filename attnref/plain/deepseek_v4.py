"""The three attention layers of DeepSeek-V4. Needs only PyTorch 2.5+."""

import torch
import torch.nn.functional as F
from torch import nn


def rope(x, positions, f):
    """Rotate the last Dr elements of x (B, H, T, D), pair by pair; f has one
    angle per pair and token."""
    Dr = 2 * len(f)
    angle = positions[:, None] * f.to(x.device)  # (..., Dr // 2)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    still, x = x.tensor_split((-Dr,), dim=-1)
    a, b = x[..., 0::2], x[..., 1::2]  # (..., Dr // 2)
    pairs = torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1)
    return torch.cat((still, pairs.flatten(-2)), dim=-1)


class CompressedCache:
    """What one layer keeps of a text; behind the window only entries grow."""

    def __init__(self):
        self.length, self.kept = 0, {}  # by name: tensors, batch axis first
        self.rows = []  # a cache for each row, once there are pads

    def row(self, b):
        own, kept = CompressedCache(), self.kept.items()
        own.kept = {name: [x[b : b + 1] for x in held] for name, held in kept}
        own.length = self.length
        return own


class Compressor(nn.Module):
    """An entry for each block of `rate` tokens: their mean, by channel.

    With overlap it is a mean of two blocks: the one before, through the first
    D channels of both projections, and its own, through the last D.
    """

    def __init__(self, d_model, D, f, rate, overlap):
        super().__init__()
        self.D, self.f, self.rate, self.overlap = D, f, rate, overlap
        C = 2 * D if overlap else D
        self.kv_proj = nn.Linear(d_model, C, bias=False)
        self.gate_proj = nn.Linear(d_model, C, bias=False)
        self.position_bias = nn.Parameter(torch.zeros(rate, C))
        self.kv_norm = nn.RMSNorm(D, eps=1e-6)

    def forward(self, x, kept, name):
        """Read x (B, T, E): all entries so far, (B, 1, N, D)."""
        D, rate = self.D, self.rate
        new = torch.stack((self.kv_proj(x), self.gate_proj(x)), dim=1)
        if name not in kept:
            before = new.new_zeros(len(x), 2, 1, rate * self.overlap, D)
            before[:, 1] = -torch.inf  # there is no block before the first
            kept[name] = new[:, :, :0], before, x.new_zeros(len(x), 1, 0, D)
        waiting, before, entries = kept[name]
        waiting = torch.cat((waiting, new), dim=2)
        n = waiting.shape[2] // rate  # blocks that are now complete
        blocks = waiting[:, :, : n * rate].unflatten(2, (n, rate))
        if self.overlap:
            first = torch.cat((before, blocks[..., :D]), dim=2)
            before = first[:, :, n:].clone()
            blocks = torch.cat((first[:, :, :n], blocks[..., D:]), dim=3)
        kv, gate = blocks.unbind(dim=1)  # a block per entry, or two
        gate = gate + torch.cat(self.position_bias.split(D, dim=1))
        new = self.kv_norm((kv * gate.softmax(dim=2)).sum(dim=2))[:, None]
        at = (torch.arange(n, device=x.device) + entries.shape[2]) * rate
        entries = torch.cat((entries, rope(new, at, self.f)), dim=2)
        kept[name] = waiting[:, :, n * rate :].clone(), before, entries
        return entries


class EntryIndexer(Compressor):
    """Small heads with separate entries, which choose topk for a query."""

    def __init__(self, d_model, f, rate, Rq, Hi, Di, topk):
        super().__init__(d_model, Di, f, rate, overlap=True)
        self.topk = topk
        self.q_b_proj = nn.Linear(Rq, Hi * Di, bias=False)
        self.scorer = nn.Module()
        self.scorer.weights_proj = nn.Linear(d_model, Hi, bias=False)

    def choose(self, x, q_latent, at, kept, seen):
        """Of seen (B, T, N), the topk entries with the highest scores."""
        entries = self(x, kept, "index")  # (B, 1, N, Di)
        q = self.q_b_proj(q_latent).unflatten(-1, (-1, self.D)).transpose(1, 2)
        q = rope(q, at, self.f).float()  # (B, Hi, T, Di)
        scores = (q @ entries.float().mT).relu()  # (B, Hi, T, N)
        weights = self.scorer.weights_proj(x).float()  # (B, T, Hi)
        scores = torch.einsum("bhts,bth->bts", scores, weights)  # (B, T, N)
        scores = scores.masked_fill(~seen, -torch.inf)  # before the choice
        best = scores.topk(min(self.topk, seen.shape[2]), dim=-1).indices
        return seen & torch.zeros_like(seen).scatter(2, best, True)


class CompressedAttention(nn.Module):
    """A window of W tokens; with rate, entries too (HCA); with index = (Hi,
    Di, topk), only the topk that Hi heads of width Di choose (CSA). f (Dr //
    2,) are RoPE's angles per token: theta ** (-2p / Dr), or slowed by YaRN.
    """

    def __init__(self, d_model, n_heads, D, W, f, Rq, Ro, G, rate=0, index=()):
        super().__init__()
        self.D, self.W, self.G, self.rate, self.index = D, W, G, rate, index
        self.f = f = torch.as_tensor(f)
        self.q_a_proj = nn.Linear(d_model, Rq, bias=False)
        self.q_a_norm = nn.RMSNorm(Rq, eps=1e-6)
        self.q_b_proj = nn.Linear(Rq, n_heads * D, bias=False)
        self.kv_proj = nn.Linear(d_model, D, bias=False)
        self.kv_norm = nn.RMSNorm(D, eps=1e-6)
        self.sinks = nn.Parameter(torch.zeros(n_heads))
        self.o_a_proj = nn.Linear(n_heads * D // G, G * Ro, bias=False)
        self.o_b_proj = nn.Linear(G * Ro, d_model, bias=False)
        if rate:
            self.compressor = Compressor(d_model, D, f, rate, bool(index))
        if index:
            self.compressor.indexer = EntryIndexer(d_model, f, rate, Rq, *index)

    def forward(self, x, cache=None, valid=None):
        """x (B, T, E) to (B, T, E); valid (B, S), True = no pad, all so far."""
        B, T, E = x.shape
        cache = CompressedCache() if cache is None else cache
        past, end = cache.length, cache.length + T
        if valid is not None and valid.shape != (B, end):
            raise ValueError(f"{(B, end)=}, {valid.shape=}")
        if cache.rows or not (valid is None or valid.all()):
            return self.row_by_row(x, cache, valid)
        at = torch.arange(past, end, device=x.device)  # (T,)
        q_latent = self.q_a_norm(self.q_a_proj(x))  # (B, T, Rq)
        q = self.q_b_proj(q_latent).unflatten(-1, (-1, self.D))
        q = F.rms_norm(q, (self.D,), eps=1e-6).transpose(1, 2)
        q = rope(q, at, self.f)  # (B, H, T, D)
        kv = self.kv_norm(self.kv_proj(x))[:, None]  # both, for all heads
        kv = rope(kv, at, self.f)  # (B, 1, T, D)
        kv = torch.cat((*cache.kept.get("window", ()), kv), dim=2)
        window = kv[:, :, -self.W :].clone()
        cache.length, cache.kept["window"] = end, [window]
        back = at[:, None] - torch.arange(end - kv.shape[2], end).to(at)
        mask = ((back >= 0) & (back < self.W)).expand(B, -1, -1)
        if self.rate:
            entries = self.compressor(x, cache.kept, "main")  # (B, 1, N, D)
            complete = (at[:, None] + 1) // self.rate  # with the query itself
            seen = torch.arange(entries.shape[2]).to(at) < complete  # (T, N)
            seen = seen.expand(B, -1, -1)  # (B, T, N)
            if self.index:
                choose = self.compressor.indexer.choose
                seen = choose(x, q_latent, at, cache.kept, seen)  # (B, T, N)
            kv = torch.cat((kv, entries), dim=2)  # (B, 1, S, D)
            mask = torch.cat((mask, seen), dim=2)  # (B, T, S)
        scores = q @ kv.mT * self.D**-0.5  # (B, H, T, S)
        scores = scores.masked_fill(~mask[:, None], -torch.inf)
        sinks = self.sinks.to(q)[:, None, None].expand(B, -1, T, 1)
        scores = torch.cat((scores, sinks), dim=-1)  # (B, H, T, S + 1)
        weights = scores.softmax(dim=-1)[..., :-1]  # (B, H, T, S)
        out = weights @ kv  # (B, H, T, D)
        out = rope(out, -at, self.f).transpose(1, 2)  # back, as V was rotated
        wide = self.o_a_proj.in_features  # of the heads of a group
        groups = out.reshape(B, T, self.G, wide)  # (B, T, G, H * D // G)
        w = self.o_a_proj.weight.view(self.G, -1, wide)  # (G, Ro, H * D // G)
        mixed = torch.einsum("btgi,goi->btgo", groups, w)  # (B, T, G, Ro)
        return self.o_b_proj(mixed.flatten(2))  # (B, T, E)

    def row_by_row(self, x, cache, valid):
        """Each row without its pads, which would move the borders of blocks."""
        cache.rows = cache.rows or [cache.row(b) for b in range(len(x))]
        out = torch.zeros_like(x)
        for b, own in enumerate(cache.rows):
            real = slice(None) if valid is None else valid[b, cache.length :]
            out[b, real] = self(x[b : b + 1, real], own)[0]
        cache.length += x.shape[1]
        return out
