"""The gradients of Gated DeltaNet's recurrence, a chunk at a time.

Needs only PyTorch.
"""

import torch


def in_chunk(q, k, v, decay, beta, state):
    """What both passes compute of one chunk, and the state after it.

    q, k (B, H, C, D), v (B, H, C, Dv), decay and beta (B, H, C, 1).
    """
    lower = torch.ones_like(decay @ decay.mT).tril()  # (B, H, C, C)
    between = (decay * lower.tril(-1)).cumsum(dim=-2)  # sums over (j, i]
    fade = between.exp() * lower  # (B, H, C, C)
    since = decay.cumsum(dim=-2).exp()  # (B, H, C, 1); from the state
    until = fade[..., -1:, :].mT  # (B, H, C, 1); to the end of the chunk
    read = since * (k @ state)  # (B, H, C, Dv); what the state has at k
    system = torch.eye(k.shape[2]).to(k) + beta * (fade * (k @ k.mT)).tril(-1)
    u = torch.linalg.solve_triangular(system, beta * (v - read), upper=False)
    last = since[..., -1:, :] * state + (until * k).mT @ u  # (B, H, D, Dv)
    return fade, since, until, read, system, u, last


def delta_backward(q, k, v, decay, beta, state, d_out, d_state, chunk=64):
    """Gradients of q, k, v, decay, beta (B, H, T) and of the first state.

    d_out (B, H, T, Dv) and d_state (B, H, D, Dv) are those of the outputs
    and of the last state. Only one state per chunk is kept.
    """
    inputs = q, k, v, decay[..., None], beta[..., None]
    chunks = [*zip(*(x.split(chunk, dim=2) for x in inputs), strict=True)]
    states = [state]
    for parts in chunks[:-1]:
        states.append(in_chunk(*parts, states[-1])[-1])
    found = []
    steps = zip(chunks, states, d_out.split(chunk, dim=2), strict=True)
    for parts, state, d_o in reversed([*steps]):
        *grads, d_state = chunk_backward(*parts, state, d_o, d_state)
        found.append(grads)
    *rows, d_decay, d_beta = (torch.cat(x[::-1], 2) for x in zip(*found))
    return *rows, d_decay[..., 0], d_beta[..., 0], d_state


def chunk_backward(q, k, v, decay, beta, state, d_o, d_last):
    """Gradients of the inputs of one chunk, and of the state before it."""
    parts = in_chunk(q, k, v, decay, beta, state)
    fade, since, until, read, system, u, _ = parts
    scores = fade * (q @ k.mT)  # (B, H, C, C)
    d_scores = d_o @ u.mT  # (B, H, C, C); fade below makes it triangular
    d_u = scores.mT @ d_o + until * (k @ d_last)  # (B, H, C, Dv)
    d_new = torch.linalg.solve_triangular(system.mT, d_u, upper=True)
    d_system = -(d_new @ u.mT).tril(-1)  # (B, H, C, C)
    d_read = -beta * d_new  # (B, H, C, Dv)

    d_alike = beta * fade * d_system  # (B, H, C, C); of k @ k.mT
    d_q = since * (d_o @ state.mT) + (fade * d_scores) @ k
    d_k = (fade * d_scores).mT @ q + since * (d_read @ state.mT)
    d_k = d_k + (d_alike + d_alike.mT) @ k + until * (u @ d_last.mT)
    d_beta = ((v - read) * d_new).sum(-1, True)
    d_beta = d_beta + (fade * (k @ k.mT) * d_system).sum(-1, True)
    d_state = (since * q).mT @ d_o + (since * k).mT @ d_read
    d_state = d_state + since[..., -1:, :] * d_last  # (B, H, D, Dv)

    # Each decay t lies between all pairs j < t <= i, and after the state.
    pairs = scores * d_scores + (k @ k.mT) * d_alike  # (B, H, C, C)
    since_end = (until * k * (u @ d_last.mT)).sum(-1, True)  # (B, H, C, 1)
    pairs[..., -1:, :] += since_end.mT  # from token j to the last
    own = (since * (q @ state) * d_o + read * d_read).sum(-1, True)
    own[..., -1:, :] += (since[..., -1:, :] * state * d_last).sum((-2, -1), True)
    back = pairs.tril(-1).sum(-1, True) - pairs.tril(-1).sum(-2)[..., None] + own
    d_decay = back.flip(-2).cumsum(-2).flip(-2)  # (B, H, C, 1); t and later
    return d_q, d_k, -d_read, d_decay, d_beta, d_state
