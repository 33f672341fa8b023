"""Worked by hand: each table against PyTorch, and numbers short enough."""

import math
import re

import torch
import torch.nn.functional as F

from sitekit import ROOT
from sitekit.drawn import by_hand
from tests.kit.pages import PAGES

X = torch.tensor([[1.0, 0], [0, 1], [1, 1]])
# As the matrices stand on the page.
PAGE = (ROOT / "docs/en/learn/by-hand.md").read_text(encoding="utf-8")
W_Q, W_K, W_V, W_O = (
    torch.tensor([[float(n) for n in m[1:]][:2], [float(n) for n in m[3:]]])
    for m in re.findall(
        r"(W\^.) = \\begin{bmatrix} (\d) & (\d) \\\\ (\d) & (\d)", PAGE
    )
)
Q, K, V = X @ W_Q, X @ W_K, X @ W_V
OUT = F.scaled_dot_product_attention(Q[None], K[None], V[None], is_causal=True)


def close(cell, want):
    """A cell with a number, a vector or several numbers."""
    got = torch.tensor([float(n) for n in re.findall(r"-?[\d.]+", cell)])
    want = torch.as_tensor(want, dtype=torch.float32).flatten()
    torch.testing.assert_close(got, want, atol=0.00501, rtol=0)


def test_the_steps_of_attention_are_those_of_torch():
    projected = [*by_hand.projected()]
    scored, weighed = [*by_hand.scores()], [*by_hand.softmaxes()]
    whole, stepped = [*by_hand.outputs()], [*by_hand.cached()]
    for i in range(3):
        for cell, want in zip(projected[i][1:], (X, Q, K, V), strict=True):
            close(cell, want[i])
        for j in range(3):
            dot = Q[i] @ K[j]
            close(scored[i][1 + j], dot)
            close(scored[i][4 + j], dot / math.sqrt(2))
        left = (Q[i] @ K[: i + 1].mT) / math.sqrt(2)
        columns = left, left.exp(), left.exp().sum(), left.softmax(0)
        for cell, want in zip(weighed[i][1:], columns, strict=True):
            close(cell, want)
        close(whole[i][1], left.softmax(0))
        close(whole[i][2], left.softmax(0)[:, None] * V[: i + 1])
        close(whole[i][3], OUT[0, i])
        close(stepped[i][4], 4 * (i + 1))
        close(stepped[i][5], OUT[0, i])


def test_heads_share_keys_as_in_torch():
    for n_kv_heads in (2, 1):
        q, k, v = (x.mT[None, :, :, None] for x in (Q[2:], K, V))
        k, v = k[:, :n_kv_heads], v[:, :n_kv_heads]
        want = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        *heads, mixed = by_hand.heads(n_kv_heads=n_kv_heads)
        for row, head in zip(heads, want[0, :, 0, 0], strict=True):
            close(row[6], head)
        close(mixed[6], torch.cat([want.flatten(), want.flatten() @ W_O]))
        assert not any(mixed[1:6])  # they are no scores, and no weights


def test_rope_by_hand_is_a_rotation_by_an_angle():
    for row, (i, j) in zip(
        by_hand.rotated(), ((5, 2), (3, 0), (2, 5)), strict=True
    ):
        turned = [
            torch.view_as_real(torch.view_as_complex(x) * complex(*c))
            for x, c in (
                (Q[2], (math.cos(i), math.sin(i))),
                (K[2], (math.cos(j), math.sin(j))),
            )
        ]
        assert row[0] == f"{i}, {j}"
        for cell, want in zip(row[1:3], turned, strict=True):
            close(cell, want)
        close(row[3], turned[0] @ turned[1])


def test_tiles_latents_and_absorption_give_the_output_over_all_keys():
    one, two, merged = by_hand.merged()
    for (*_, cell, _, _), want in ((one, slice(2)), (two, slice(2, 3))):
        part = F.scaled_dot_product_attention(Q[2:], K[want], V[want])
        close(cell, part)
    close(merged[3], (Q[2] @ K.mT / math.sqrt(2)).logsumexp(0))
    close(merged[6], OUT[0, 2])
    c = X @ torch.tensor([[1.0], [2.0]])
    k, v = c * torch.tensor([1.0, -1.0]), c * torch.tensor([2.0, 1.0])
    want = F.scaled_dot_product_attention(Q[2:], k, v)
    *rows, total = by_hand.expanded()
    for row, cells in zip(
        rows, zip(c, k, v, k @ Q[2], strict=True), strict=True
    ):
        for cell, number in zip(row[1:5], cells, strict=True):
            close(cell, number)
    close(total[6], want)
    *rows, mean, out = by_hand.absorbed()
    close(mean[4], want[0, 1])  # times 1
    close(out[4], want)


def test_the_gradients_through_two_tiles_are_those_of_autograd():
    q, k, v = (x.clone().requires_grad_() for x in (Q[2:], K, V))
    scores = q @ k.mT / math.sqrt(2)
    out = scores.softmax(-1) @ v
    inputs = q, k, v, scores
    d_q, _, d_v, d_scores = torch.autograd.grad(out.sum(), inputs)
    *rows, total = by_hand.gradients()
    delta = out.sum()  # do is 1 in both elements
    for j, row in enumerate(rows):
        columns = scores[0, j], scores.softmax(-1)[0, j], v[j].sum()
        columns = *columns, v[j].sum() - delta, d_scores[0, j]
        for cell, want in zip(row[1:], columns, strict=True):
            close(cell, want)
    assert total[1:] == ["", "1", "", "", "0"]
    numbers = by_hand.numbers()
    close(numbers["lse"], scores.logsumexp(-1))
    close(numbers["delta"], delta)
    close(numbers["d_q"], d_q)
    close(numbers["d_v"], d_v[2])


def test_pages_lead_to_their_step():
    for stem, id in {
        "core/sdpa": "projections",
        "core/rope": "rope",
        "core/merge": "merge",
        "core/flash": "backward",
        "layers/mha": "heads",
        "layers/gqa": "gqa",
        "layers/mla": "mla",
        "layers/absorption": "absorption",
        "caches/kv-cache": "cache",
    }.items():
        for path in PAGES:
            if str(path).endswith(f"{stem}.md"):
                assert f"../learn/by-hand.md#{id})" in path.read_text("utf-8")
