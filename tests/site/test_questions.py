"""What the answers to the questions say, computed."""

import copy
import math
import re

import pytest
import torch
import torch.nn.functional as F

from attnref import (
    GroupedQueryAttention,
    apply_rope,
    rope_table,
    sdpa,
)
from attnref.judge.tasks import COURSE
from attnref.numbers.cost import attention_cost
from sitekit import ROOT
from sitekit.check import exercise
from sitekit.drawn import questions
from sitekit.drawn.operations import H100
from sitekit.markdown.pages import body_of, markdown_files

(PAGE,) = (p for p in markdown_files("en") if p.stem == "questions")
LLAMA = {"d_model": 4096, "n_heads": 32, "n_kv_heads": 8}
PEAK, BANDWIDTH = H100.peak, H100.bandwidth
# Of the 8.03 billion weights a step looks up one row of this table.
EMBEDDING = 128_256 * 4096


def test_the_jacobian_of_softmax_vanishes_where_it_saturates():
    # --8<-- [start:jacobian]
    import torch

    from attnref import softmax

    x = torch.tensor([2.0, 1.0, 0.0], dtype=torch.float64)
    largest = []
    for times in 1, 5, 25:
        A = softmax(times * x)
        jacobian = torch.autograd.functional.jacobian(softmax, times * x)
        assert torch.allclose(jacobian, A.diag() - A.outer(A))
        largest.append(f"{jacobian.abs().max():.1e}")
    assert largest == ["2.2e-01", "6.7e-03", "1.4e-11"]
    # --8<-- [end:jacobian]


def test_one_matrix_for_queries_and_keys_makes_scores_symmetric():
    # --8<-- [start:alike]
    import torch

    X = torch.randn(6, 8)
    W_q, W_k = torch.randn(2, 8, 4)
    scores = (X @ W_q) @ (X @ W_k).T
    assert not torch.allclose(scores, scores.T)
    alike = (X @ W_q) @ (X @ W_q).T
    assert torch.allclose(alike, alike.T, atol=1e-5)
    assert alike.max() == alike.diag().max()
    # --8<-- [end:alike]


def test_packed_documents_are_as_if_alone():
    # --8<-- [start:packed]
    import torch
    from torch import nn

    from attnref import MultiHeadAttention, causal_mask

    document = torch.tensor([[0, 0, 0, 1, 1]])  # a row that holds two
    same = document[:, None, :, None] == document[:, None, None, :]
    assert (same & causal_mask(5))[0, 0].int().tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0],
        [0, 0, 0, 1, 0],
        [0, 0, 0, 1, 1],
    ]
    layer = MultiHeadAttention(d_model=12, n_heads=3, rope_theta=10000.0)
    nn.init.normal_(layer.q_proj.weight)  # sharp
    x = torch.randn(1, 5, 12)
    assert torch.allclose(
        layer(x, mask=same)[:, 3:], layer(x[:, 3:]), atol=1e-5
    )
    # --8<-- [end:packed]
    leaks = layer(x)[:, 3:] - layer(x[:, 3:])
    assert leaks.abs().max() > 1e-2


def test_a_prefix_is_read_both_ways():
    # --8<-- [start:prefix]
    import torch

    from attnref import causal_mask

    T, prefix = 5, 3
    assert (causal_mask(T) | (torch.arange(T) < prefix)).int().tolist() == [
        [1, 1, 1, 0, 0],
        [1, 1, 1, 0, 0],
        [1, 1, 1, 0, 0],
        [1, 1, 1, 1, 0],
        [1, 1, 1, 1, 1],
    ]
    # --8<-- [end:prefix]


def test_blocks_of_a_cache_are_found_through_a_table():
    # --8<-- [start:paged]
    import torch

    size, pool = 4, torch.zeros(8, 3, 4, 5)  # 8 blocks: heads, slots, width
    tables = [6, 0, 3], [6, 7]  # both sequences begin in block 6
    one = torch.randn(3, 10, 5)
    other = torch.cat((one[:, :4], torch.randn(3, 3, 5)), dim=1)
    for table, keys in zip(tables, (one, other), strict=True):
        for i in range(keys.shape[1]):
            pool[table[i // size], :, i % size] = keys[:, i]
    for table, keys in zip(tables, (one, other), strict=True):
        read = pool[table].transpose(0, 1).flatten(1, 2)
        assert torch.equal(read[:, : keys.shape[1]], keys)
    # --8<-- [end:paged]


def test_linear_attention_is_a_recurrence():
    # --8<-- [start:linear]
    import torch

    Q, K = torch.randn(2, 7, 3, dtype=torch.float64).exp()  # phi of q and k
    V = torch.randn(7, 5, dtype=torch.float64)
    A = (Q @ K.T).tril()
    full = A @ V / A.sum(-1, keepdim=True)
    S, z = torch.zeros(3, 5), torch.zeros(3)
    for i in range(7):
        S = S + K[i].outer(V[i])
        z = z + K[i]
        assert torch.allclose(Q[i] @ S / (Q[i] @ z), full[i])
    # --8<-- [end:linear]


def test_an_accepted_or_redrawn_token_has_the_distribution_of_the_model():
    # --8<-- [start:accept]
    import torch

    p, q = torch.randn(2, 9, dtype=torch.float64).softmax(-1)
    accepted = q * (p / q).clamp(max=1)
    redrawn = (p - q).clamp(min=0)
    rejected = 1 - accepted.sum()
    assert torch.allclose(accepted + rejected * redrawn / redrawn.sum(), p)
    # --8<-- [end:accept]


def test_a_token_of_a_tree_sees_its_ancestors():
    # --8<-- [start:tree]
    import torch

    parent = [None, 0, 0, 1]  # two tokens follow the first, one of them goes on
    mask = torch.eye(4, dtype=torch.bool)
    for token, above in enumerate(parent):
        if above is not None:
            mask[token] |= mask[above]
    assert mask.int().tolist() == [
        [1, 0, 0, 0],
        [1, 1, 0, 0],
        [1, 0, 1, 0],
        [1, 1, 0, 1],
    ]
    assert (mask.sum(-1) - 1).tolist() == [0, 1, 1, 2]  # depths: positions
    # --8<-- [end:tree]


def test_a_shifted_sinusoid_is_a_rotated_one():
    p, k, theta = torch.arange(50.0).double(), 7, 0.3

    def encoded(p):
        return torch.stack(((p * theta).sin(), (p * theta).cos()))

    c, s = encoded(torch.tensor(k)).flip(0)
    shift = torch.stack((torch.stack((c, s)), torch.stack((-s, c)))).double()
    torch.testing.assert_close(
        encoded(p + k), shift @ encoded(p), atol=1e-6, rtol=0
    )


def test_a_bias_of_the_keys_changes_nothing_without_rope():
    q, k, v = torch.randn(3, 1, 2, 7, 5, dtype=torch.float64)
    bias = 3 * torch.randn(2, 1, 5, dtype=torch.float64)
    torch.testing.assert_close(sdpa(q, k + bias, v), sdpa(q, k, v))
    assert (sdpa(q + bias, k, v) - sdpa(q, k, v)).abs().max() > 0.1
    cos, sin = rope_table(torch.arange(7), 4)
    q, k, moved = (apply_rope(x[..., :4], cos, sin) for x in (q, k, k + bias))
    assert (sdpa(q, moved, v) - sdpa(q, k, v)).abs().max() > 0.1


def test_the_recurrence_of_flash_attention_and_the_merge():
    q, k, v = (torch.randn(3, 2, n, 7).double() for n in (5, 12, 12))
    q = 9 * q  # sharp

    def part(of):
        s = q @ k[..., of, :].mT / 7**0.5
        m = s.amax(-1, keepdim=True)
        w = (s - m).exp()
        return m, w.sum(-1, keepdim=True), w @ v[..., of, :]

    m, ell, o = part(slice(0, 5))
    for of in slice(5, 10), slice(10, 12):
        m_new, ell_new, o_new = part(of)
        most = torch.maximum(m, m_new)
        a, b = (m - most).exp(), (m_new - most).exp()
        m, ell, o = most, a * ell + b * ell_new, a * o + b * o_new
    exact = sdpa(q, k, v)
    torch.testing.assert_close(o / ell, exact)

    parts = [part(of) for of in (slice(0, 12, 2), slice(1, 12, 2))]
    lse = torch.stack([m + ell.log() for m, ell, _ in parts])
    shares = (lse - lse.logsumexp(0)).exp()
    outs = torch.stack([o / ell for _, ell, o in parts])
    torch.testing.assert_close((shares * outs).sum(0), exact)
    assert (outs.mean(0) - exact).abs().max() > 0.1  # no plain mean


def test_the_backward_pass_needs_the_log_sum_exp_alone():
    q, k, v = (torch.randn(3, 5, 7).double().requires_grad_() for _ in "qkv")
    out = sdpa(3 * q[:, None], k[:, None], v[:, None])[:, 0]
    slope = torch.randn_like(out)
    dq, dk, dv = torch.autograd.grad(out, (q, k, v), slope)
    s = 3 * q @ k.mT / 7**0.5
    A = (s - s.logsumexp(-1, keepdim=True)).exp()
    ds = A * (slope @ v.mT - (slope * out).sum(-1, keepdim=True))
    torch.testing.assert_close(A.mT @ slope, dv)
    torch.testing.assert_close(3 * ds @ k / 7**0.5, dq)
    torch.testing.assert_close(3 * ds.mT @ q / 7**0.5, dk)


def test_scores_that_are_divided_by_the_width_are_small():
    q, k = torch.randn(2, 20_000, 128)
    spread = ((q * k).sum(-1) / 128).std()
    assert spread == pytest.approx(128**-0.5, rel=0.05)


def test_twice_as_many_heads_of_half_the_width_cost_the_same():
    costs = [
        attention_cost(d_model=4096, n_heads=h, past=4095) for h in (32, 64)
    ]
    assert costs[0] == costs[1]


@pytest.mark.parametrize("N", [1, 7, 1000])
def test_the_closed_forms_of_a_generation(N):
    P, wide = 41_943_040, 4096  # parameters of the layer, h * d_k
    afresh = sum(attention_cost(**LLAMA, new=i + 1).flops for i in range(N))
    cached = sum(attention_cost(**LLAMA, past=i).flops for i in range(N))
    squares = N * (N + 1) * (2 * N + 1) // 3
    assert afresh == P * N * (N + 1) + 2 * wide * squares
    assert cached == 2 * P * N + 2 * wide * N * (N + 1)


def test_steps_of_an_8b_model():
    page = questions.numbers()
    for batch in 1, 32:  # multiplying takes less time than reading
        assert batch * questions.READ / H100.peak < page["read_weights"] / 1e3


def test_bytes_between_prefill_and_decode():
    page = questions.numbers()
    assert page["sending"] < page["prefill"] / 5, "most of it can overlap"
    assert page["sending_v3"] < page["sending"], "a small cache is cheaper"


def test_blocks_in_numbers():
    """Four answers of 100 tokens to a prompt of 1,000, in blocks of 16."""
    tables = [
        {i if 16 * (i + 1) <= 1000 else (answer, i) for i in range(69)}
        for answer in range(4)
    ]
    assert 68 * 16 < 1100 <= 69 * 16
    page = questions.numbers()
    counted = len(tables[0]), sum(map(len, tables)), len(set().union(*tables))
    assert counted == (page["blocks"], page["apart"], page["together"])
    assert len(set.intersection(*tables)) == page["shared"]


def exchanged(parts, cut, joined):
    """All-to-all: what each device then has, elements that the first sent."""
    pieces = [part.chunk(len(parts), cut) for part in parts]
    sent = sum(piece.numel() for piece in pieces[0][1:])
    return [torch.cat(each, joined) for each in zip(*pieces, strict=True)], sent


@pytest.mark.parametrize("N", [2, 4, 8])
def test_ulysses_is_attention_and_sends_what_the_page_says(N):
    n, page = 3, questions.numbers()  # tokens per device
    q, k, v = (torch.randn(1, heads, N * n, 128) for heads in (32, 8, 8))
    parts = [x.chunk(N, 2) for x in (q, k, v)]
    by_heads, sent = zip(*(exchanged(x, 1, 2) for x in parts), strict=True)
    outs = [
        F.scaled_dot_product_attention(*qkv, is_causal=True, enable_gqa=True)
        for qkv in zip(*by_heads, strict=True)
    ]
    by_tokens, back = exchanged(outs, 2, 1)
    torch.testing.assert_close(
        torch.cat(by_tokens, 2),
        F.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=True
        ),
    )
    assert 2 * (sum(sent) + back) == n * page[f"ulysses_{N}"]
    keys_and_values = parts[1][0].numel() + parts[2][0].numel()
    assert 2 * (N - 1) * keys_and_values == n * page[f"ring_{N}"]


@pytest.mark.parametrize(
    ("queries", "keys", "same"),
    [
        ([4, 5, 0, 1, 2, 3], [2, 0, 1], True),  # whole groups
        ([1, 0, 2, 3, 5, 4], [0, 1, 2], True),  # within a group
        ([2, 1, 0, 3, 4, 5], [0, 1, 2], False),  # of two groups
    ],
)
@torch.no_grad()
def test_heads_change_places_within_a_group_or_with_it(queries, keys, same):
    layer = GroupedQueryAttention(
        d_model=30, n_heads=6, n_kv_heads=3, head_dim=4, rope_theta=1e4
    ).double()
    for weight in layer.parameters():
        weight.normal_()
    moved, x = copy.deepcopy(layer), torch.randn(3, 7, 30).double()
    orders = {"q": (queries, 0), "k": (keys, 0), "v": (keys, 0)}
    for name, (order, axis) in (orders | {"o": (queries, 1)}).items():
        weight = moved.get_submodule(f"{name}_proj").weight
        heads = weight.unflatten(axis, (-1, 4))
        heads = heads.index_select(axis, torch.tensor(order))
        weight.copy_(heads.flatten(axis, axis + 1))
    difference = (moved(x) - layer(x)).abs().max() / layer(x).abs().max()
    assert difference < 1e-12 if same else difference > 0.1


def test_bits_of_a_quantised_cache():
    of_bits = questions.quantised()
    rows = {row[0]: [float(n) for n in row[1:]] for row in of_bits}
    for row in rows.values():
        k_channel, k_token, v_channel, v_token = row
        assert k_token > 2 * k_channel
        assert v_token == pytest.approx(v_channel, abs=0.03)


def test_scalings_are_those_of_their_formulas():
    rows = {int(row[0]): row[1:] for row in questions.scalings()}
    for pair, (turns, linear, ntk, yarn) in rows.items():
        assert float(linear) == 8
        assert float(ntk) == pytest.approx(8 ** (2 * pair / 126), abs=0.01)
        if float(turns) > 32:
            assert yarn == "1.00"
        if float(turns) < 1:
            assert yarn == "8.00"
    *_, (pair, *waves) = questions.wavelengths()
    for wave, theta in zip(waves, (1e4, 5e5), strict=True):
        turn = 2 * math.pi * theta ** (2 * int(pair) / 128)
        assert float(wave.replace(",", "")) == pytest.approx(turn)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_questions_are_counted_and_each_test_that_is_named_is_there(language):
    (page,) = (p for p in markdown_files(language) if p.stem == PAGE.stem)
    body = body_of(page)
    numbers = re.findall(r'^\?\?\? question "(\d+)\. ', body, re.MULTILINE)
    assert sorted(map(int, numbers)) == list(range(1, 93))
    ids = re.findall(r"^ +\{ #(?:q|more)-([\w-]+) \}$", body, re.MULTILINE)
    usual = [n for n in numbers if int(n) < 51]
    assert [id for id in ids if id.isdigit()] == usual
    assert len(set(ids)) == len(ids) == 96
    tests = "".join(
        path.read_text(encoding="utf-8")
        for path in (ROOT / "tests").rglob("test_*.py")
    )
    named = set(re.findall(r"`(test_\w+)`", body))
    assert len(named) > 15
    assert {name for name in named if f"def {name}(" not in tests} == set()


@pytest.mark.parametrize("stem", ["interview", "course"])
def test_each_exercise_stands_on_the_page_beside_its_command(stem):
    (page,) = (p for p in markdown_files("en") if p.stem == stem)
    row = re.compile(r"\]\(\.\./(.+?)\.md\).*`attnref check (\w+)`")
    rows = row.findall(body_of(page))
    assert len(rows) > 7
    assert [exercise.places()[name] for _, name in rows] == [
        stem for stem, _ in rows
    ]


def test_the_command_and_the_page_have_the_course_in_one_order():
    """What `attnref check` says after a success."""
    (page,) = (p for p in markdown_files("en") if p.stem == "course")
    steps = body_of(page).partition("{ #steps }")[2].partition("| Step ")[2]
    assert (*re.findall(r"`attnref check (\w+)`", steps),) == COURSE


def test_a_course_takes_ten_hours():
    (course,) = (p for p in markdown_files("en") if p.stem == "course")
    minutes = re.findall(
        r"\| (\d+) \| [^|]+ \|$", body_of(course), re.MULTILINE
    )
    assert sum(map(int, minutes)) == 600
