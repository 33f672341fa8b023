"""The gradients of Gated DeltaNet's recurrence, a chunk at a time.

Needs only PyTorch.
"""

import torch


def in_chunk(q, k, v, decay, beta, state):
    """What both passes compute of one chunk, and the state after it.

    q, k (B, H, C, D), v (B, H, C, Dv), decay and beta (B, H, C, 1).
    """
    C = k.shape[2]
    lower = torch.ones(C, C, dtype=torch.bool, device=k.device).tril()
    between = torch.where(lower.tril(-1), decay, 0).cumsum(dim=-2)  # (j, i]
    fade = between.exp() * lower  # (B, H, C, C)
    since = decay.cumsum(dim=-2).exp()  # (B, H, C, 1); from the state
    until = fade[..., -1:, :].mT  # (B, H, C, 1); to the end of the chunk
    read = since * (k @ state)  # (B, H, C, Dv); what the state has at k
    system = torch.eye(C).to(k) + beta * (fade * (k @ k.mT)).tril(-1)
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
    found = zip(*reversed(found), strict=True)
    *rows, d_decay, d_beta = (torch.cat(parts, dim=2) for parts in found)
    return *rows, d_decay[..., 0], d_beta[..., 0], d_state


def chunk_backward(q, k, v, decay, beta, state, d_o, d_last):
    """Gradients of the inputs of one chunk, and of the state before it."""
    parts = in_chunk(q, k, v, decay, beta, state)
    fade, since, until, read, system, u, _ = parts
    alike, whole = k @ k.mT, since[..., -1:, :]
    d_u = (fade * (q @ k.mT)).mT @ d_o + until * (k @ d_last)
    d_right = torch.linalg.solve_triangular(system.mT, d_u, upper=True)
    d_read = -beta * d_right  # (B, H, C, Dv)
    d_fade = -(d_right @ u.mT).tril(-1)  # (B, H, C, C); of beta * fade * alike
    d_alike = beta * fade * d_fade  # (B, H, C, C)
    d_scores = fade * (d_o @ u.mT)  # (B, H, C, C); of q @ k.mT
    d_until = u @ d_last.mT  # (B, H, C, D); of until * k

    d_q = since * (d_o @ state.mT) + d_scores @ k  # (B, H, C, D)
    d_k = d_scores.mT @ q + since * (d_read @ state.mT) + until * d_until
    d_k = d_k + (d_alike + d_alike.mT) @ k  # (B, H, C, D)
    d_beta = (v - read) * d_right  # (B, H, C, Dv)
    d_beta = d_beta.sum(-1, True) + (fade * alike * d_fade).sum(-1, True)
    d_state = (since * q).mT @ d_o + (since * k).mT @ d_read + whole * d_last

    # Decay t stands in every fade from j < t to i >= t, and from the state.
    pairs = (q @ k.mT) * d_scores + alike * d_alike  # (B, H, C, C)
    pairs[..., -1:, :] += (until * k * d_until).sum(-1, True).mT
    from_state = (since * (q @ state) * d_o + read * d_read).sum(-1, True)
    from_state[..., -1, 0] += (whole * state * d_last).sum((-2, -1))
    pairs = pairs.tril(-1)
    ends = pairs.sum(-1, True) - pairs.sum(-2)[..., None] + from_state
    d_decay = ends.flip(-2).cumsum(dim=-2).flip(-2)  # (B, H, C, 1)
    return d_q, d_k, -d_read, d_decay, d_beta, d_state
