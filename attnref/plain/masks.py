"""Masks: bool, True = may attend, joined by `&`. Needs only PyTorch."""

import torch


def causal_mask(T, S=None):
    """(T, S): the queries are the last T of S tokens and see no later one."""
    S = T if S is None else S
    return torch.ones(T, S, dtype=torch.bool).tril(S - T)  # (T, S)


def padding_mask(valid):
    """From valid (B, S), True = a real token: for all heads and queries."""
    return valid[:, None, None, :]  # (B, 1, 1, S)


def window_mask(T, S, size):
    """(T, S): each query sees itself and the size - 1 tokens before it."""
    return causal_mask(T, S).triu(S - T - size + 1)  # (T, S)


def document_mask(ids):
    """From ids (B, S): each token sees the earlier ones of its document."""
    same = ids[:, :, None] == ids[:, None, :]  # (B, S, S)
    return same.tril()[:, None]  # (B, 1, S, S)
