"""The next token from logits. Needs only PyTorch."""

import torch


def sample(logits, temperature=1.0, top_k=None, top_p=None):
    """Tokens (B,) from logits (B, vocab)."""
    logits = logits / temperature
    if top_k is not None:
        least = logits.topk(top_k).values[:, -1:]  # (B, 1)
        logits = logits.masked_fill(logits < least, -torch.inf)
    if top_p is not None and top_p < 1:  # the fewest whose sum reaches it
        p, order = logits.softmax(dim=-1).sort(dim=-1, descending=True)
        before = p.cumsum(dim=-1) - p  # the sum of those that are likelier
        p = p.masked_fill(before >= top_p, 0)
        logits = logits.scatter(1, order, p.log())
    return torch.multinomial(logits.softmax(dim=-1), 1)[:, 0]  # (B,)
