"""How the indexer of DSA is trained: a loss of its own, and a warm-up.

Needs only PyTorch.
"""

import torch


def index_loss(scores, weights, chosen=None):
    """KL divergence of softmax(scores) from attention, mean over queries.

    scores (B, T, S) are the indexer's, -inf for hidden keys; weights are those
    of attention (B, H, T, S). chosen (B, T, topk): over these keys alone.
    """
    target = weights.detach().sum(dim=1)  # (B, T, S); of all heads
    if chosen is not None:
        scores = scores.take_along_dim(chosen, dim=-1)  # (B, T, topk)
        target = target.take_along_dim(chosen, dim=-1)
    seeing = target.sum(dim=-1) > 0  # not the pads, which see no key
    wide = torch.promote_types(scores.dtype, torch.float32)
    scores, target = scores[seeing].to(wide), target[seeing].to(wide)
    target = target / target.sum(dim=-1, keepdim=True)
    log_p = scores.log_softmax(dim=-1)
    log_p = log_p.masked_fill(target == 0, 0)  # 0 * -inf would be NaN
    return (target.xlogy(target) - target * log_p).sum(dim=-1).mean()


def warm_up(indexer, batches, lr=1e-2):
    """Train the indexer alone, while attention reads every key.

    A batch is x, c_q, positions and mask, which the indexer reads, and the
    weights (B, H, T, S) of attention. Yields the loss of each.
    """
    optimizer = torch.optim.Adam(indexer.parameters(), lr)
    for x, c_q, at, mask, weights in batches:
        x, c_q = x.detach(), c_q.detach()  # nothing else learns from this loss
        scores = indexer.scores(x, c_q, at, indexer.key(x, at), mask)
        loss = index_loss(scores, weights)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()


def recall(chosen, weights):
    """The share of attention's weight on the chosen keys, (B, T, topk)."""
    target = weights.sum(dim=1)  # (B, T, S)
    kept = target.take_along_dim(chosen, dim=-1).sum(dim=-1)
    total = target.sum(dim=-1)
    return (kept[total > 0] / total[total > 0]).mean().item()
