"""What the answers of the fifty questions say, computed."""

import math
import re
from collections import Counter

import pytest
import torch

from attnref import (
    MultiHeadLatentAttention,
    apply_rope,
    causal_mask,
    rope_table,
    sdpa,
)
from attnref.numbers.cost import attention_cost
from attnref.numbers.kv_memory import kv_bytes, size, state_bytes
from attnref.released.specs import find_model
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


def said(*texts, page=PAGE):
    """They stand in one paragraph of the page, each as often as here."""
    times = Counter(texts)
    assert any(
        all(line.count(text) >= times[text] for text in texts)
        for line in body_of(page).splitlines()
    ), texts


def said_beyond(*texts):
    said(*texts, page=PAGE.with_name("more-questions.md"))


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


def test_numbers_of_the_questions_beyond():
    (page,) = (p for p in markdown_files("en") if p.stem == "more-questions")
    body = body_of(page)
    outs = [
        torch.tensor(scores).softmax(-1) @ torch.tensor(values)
        for scores, values in (
            ([0.0, 2.0, 2.0], [2.0, 0.0, 2.0]),
            ([1.0, 0.0, 1.0], [0.0, 4.0, 4.0]),
        )
    ]
    for said in (
        rf"({outs[0]:.2f},\ {sum(outs):.2f})",
        f"{2**30 / 64e9 * 1e3:.1f} ms",
        f"{2**30 / BANDWIDTH * 1e3:.2f} ms",
        f"{PEAK / (400e9 / 8) * 8 / 32:,.0f} tokens",
    ):
        assert said in body


def test_a_bias_of_the_keys_changes_nothing_without_rope():
    q, k, v = torch.randn(3, 1, 2, 7, 5, dtype=torch.float64)
    bias = 3 * torch.randn(2, 1, 5, dtype=torch.float64)
    torch.testing.assert_close(sdpa(q, k + bias, v), sdpa(q, k, v))
    assert (sdpa(q + bias, k, v) - sdpa(q, k, v)).abs().max() > 0.1
    cos, sin = rope_table(torch.arange(7), 4)
    q, k, moved = (apply_rope(x[..., :4], cos, sin) for x in (q, k, k + bias))
    assert (sdpa(q, moved, v) - sdpa(q, k, v)).abs().max() > 0.1


def test_two_tokens_by_hand():
    values = torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]])
    eye = torch.eye(2)[None, None]
    first, second = sdpa(eye, eye, values, causal_mask(2))[0, 0].tolist()
    assert first == [1, 2]
    said_beyond(rf"({second[0]:.2f},\ {second[1]:.2f})")


def test_scalings_of_longer_contexts():
    d, s, theta = 128, 8, 1e4
    longer = theta * s ** (d / (d - 2))
    assert (longer / theta) ** ((d - 2) / d) == pytest.approx(s)
    squares = [(0.1 * math.log(s) + 1) ** 2 for s in (4, 40)]
    said_beyond(f"{int(longer):,}")
    said_beyond(*(f"{x:.2f}" for x in squares))


def test_one_layer_of_deepseek_v3_as_a_sum():
    with torch.device("meta"):
        layer = MultiHeadLatentAttention(
            d_model=7168,
            n_heads=128,
            q_lora_rank=1536,
            kv_lora_rank=512,
            qk_nope_head_dim=128,
            qk_rope_head_dim=64,
            v_head_dim=128,
        )
    each = {n: p.numel() for n, p in layer.named_parameters()}
    norms = sum(n for name, n in each.items() if "norm" in name)
    attention, expert = sum(each.values()), 3 * 7168 * 2048
    rest = (256 + 1) * expert + 256 * 7168
    parts = [n for name, n in each.items() if "norm" not in name]
    said_beyond(*(f"{n:,}" for n in (*parts, norms, attention, expert, rest)))
    said_beyond(f"{attention / (attention + rest):.1%} of the weights")
    assert attention / (attention + 9 * expert) == pytest.approx(
        1 / 3, abs=0.02
    )


def test_costs_of_the_questions_beyond():
    llama, large = map(find_model, ("llama-3.1-8b", "llama-3.1-70b"))
    weights = 2 * (llama.params - EMBEDDING)  # FLOPs per token, and bytes
    crossover = weights / (32 * 4 * 4096)
    caches = weights / (32 * kv_bytes(llama, 1))
    said_beyond(
        f"{weights / 1e9:.1f} GFLOPs",
        f"{crossover:,.0f} for",
        f"{math.ceil(caches):,} tokens",
    )
    # What is kept for the backward pass.
    elements = 6 * 4096 + 2 * 8 * 128 + 3 * 14_336
    kept, shares = 8192 * elements * 2, 32 * 8192**2 * 2
    assert kept == 1.0625 * 2**30 and 32 * kept == 34 * 2**30
    assert shares == 4 * 2**30 and 32 * 8192 * 4096 * 2 == 2 * 2**30
    said_beyond(f"{elements:,} elements")
    # A fleet: what eight devices of 80 GB hold, and what they read in 28 ms.
    cache, room = kv_bytes(large, 32_768), (80e9, 0.028 * 0.75 * BANDWIDTH)
    left = [8 * each - 2 * large.params for each in (*room, room[1])]
    sizes = cache, cache, cache / 2
    users = [int(x // n) for x, n in zip(left, sizes, strict=True)]
    groups = [-(-1000 // n) for n in users]
    assert cache == 10 * 2**30
    said_beyond(
        f"{users[0]} users: {groups[0]} groups, {8 * groups[0]} GPUs",
        f"{room[1] / 1e9:.0f} GB in 30 ms: {users[1]} users per group, "
        f"{groups[1]} groups, {8 * groups[1]} GPUs",
        f"{users[2]} users per group need {8 * groups[2]} GPUs",
        f"{80e9 / BANDWIDTH * 1e3:.1f} ms",
    )
    # All-reduces over a ring of eight, two per layer.
    sizes = [tokens * 8192 * 2 for tokens in (32, 8192)]
    times = [2 * 7 / 8 * n / 450e9 for n in sizes]
    assert sizes == [512 * 2**10, 128 * 2**20]
    prompt = 2 * (large.params - 2 * 128_256 * 8192) * 8192 / (8 * PEAK)
    said_beyond(
        f"{times[0] * 1e6:.1f} µs",
        f"{times[1] * 1e6:.0f} µs",
        f"{160 * times[0] * 1e3:.2f} ms and {160 * times[1] * 1e3:.0f} ms",
        f"at least {prompt * 1e3:.0f} ms",
    )
    # Chunks of a prompt.
    read = sum(kv_bytes(llama, 512 * n) for n in range(1, 17))
    blocks = weights - 2 * EMBEDDING  # only the last token needs logits
    said_beyond(
        f"{blocks * 512 / PEAK * 1e3:.1f} ms for 512 tokens, "
        f"{blocks * 2048 / PEAK * 1e3:.0f} ms for 2,048",
        f"{read / 2**30:g} GiB in all, {read / BANDWIDTH * 1e3:.1f} ms",
    )


def test_caches_of_the_questions_beyond():
    next_, gemma = map(find_model, ("qwen3-next-80b", "gemma-3-27b"))
    state, whole = state_bytes(next_), kv_bytes(next_, 131_072)
    assert whole - state == 3 * 2**30
    said_beyond(size(state), size(kv_bytes(gemma, 131_072)))
    assert 1600 * kv_bytes(find_model("llama-3.1-8b"), 1) == 200 * 2**20
    assert 1600 * 8 * 2 * 8 * 128 * 2 == 50 * 2**20
    passes = 8192 // 128
    assert passes * 2 * 8192 * 128 * 2 == 256 * 2**20
    assert 4 * 8192**2 * 2 == 512 * 2**20


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
    said(f"{128**-0.5:.2f} for a width of 128")


def test_a_layer_of_8192_tokens_in_bytes():
    q = 32 * 8192 * 128 * 2
    said(size(2 * q + 2 * q // 4), size(32 * 8192**2 * 2))


def test_twice_as_many_heads_of_half_the_width_cost_the_same():
    costs = [
        attention_cost(d_model=4096, n_heads=h, past=4095) for h in (32, 64)
    ]
    assert costs[0] == costs[1]
    said(f"{costs[0].parameters:,}")


@pytest.mark.parametrize("N", [1, 7, 1000])
def test_the_closed_forms_of_a_generation(N):
    P, wide = 41_943_040, 4096  # parameters of the layer, h * d_k
    afresh = sum(attention_cost(**LLAMA, new=i + 1).flops for i in range(N))
    cached = sum(attention_cost(**LLAMA, past=i).flops for i in range(N))
    squares = N * (N + 1) * (2 * N + 1) // 3
    assert afresh == P * N * (N + 1) + 2 * wide * squares
    assert cached == 2 * P * N + 2 * wide * N * (N + 1)
    if N == 1000:
        said(f"{afresh / 1e12:.1f} TFLOPs", f"{cached / 1e12:.3f} TFLOPs")
        said(f"{afresh / cached:.0f} times")


def test_steps_of_an_8b_model():
    llama = find_model("llama-3.1-8b")
    weights = 2 * (llama.params - EMBEDDING)
    cache = kv_bytes(llama, 8192)
    assert cache == 2**30
    said(f"{weights / 1e9:.1f} GB", f"{weights / BANDWIDTH * 1e3:.2f} ms")
    said(f"{cache / BANDWIDTH * 1e3:.2f} ms")
    for batch in 1, 32:
        step = (weights + batch * cache) / BANDWIDTH
        # Multiplying takes less than reading, so that the bytes decide.
        assert batch * weights / PEAK < weights / BANDWIDTH
        said(f"{step * 1e3:.1f} ms", f"{batch / step:,.0f} tokens/s")
    ridge = PEAK / BANDWIDTH
    # weights + 4 * 131,072 * S FLOPs on 131,072 * S bytes a sequence
    longest = weights / (131_072 * (ridge - 4))
    said(f"{ridge:.0f}")
    said(f"{ridge + 1:.0f} sequences")
    said(f"{longest:.0f} tokens")


def test_bytes_between_prefill_and_decode():
    llama, v3 = find_model("llama-3.1-8b"), find_model("deepseek-v3")
    link = 400e9 / 8
    for model in llama, v3:
        taken = kv_bytes(model, 8192)
        said(size(taken), f"{taken / link * 1e3:.0f} ms")
    # The output table multiplies the last token, the embedding none.
    matrices = 2 * (llama.params - 2 * EMBEDDING) * 8192 + 2 * EMBEDDING
    attention = llama.groups[0].layers * 4 * 4096 * 8192 * 8193 // 2
    said(f"{(matrices + attention) / PEAK * 1e3:.0f} ms")


def test_a_window_in_bytes():
    mistral = find_model("mistral-7b")
    whole = 32_768 * kv_bytes(mistral, 1)
    said(size(kv_bytes(mistral, 32_768)), size(whole))


def test_blocks_in_numbers():
    tokens, prompt, samples, block = 1100, 1000, 4, 16
    blocks = -(-tokens // block)
    shared = prompt // block
    said(f"{blocks} blocks", f"{blocks * block - tokens} slots")
    said(f"{samples * blocks} to {shared + samples * (blocks - shared)}")
    llama = find_model("llama-3.1-8b")
    said(size(kv_bytes(llama, block)), f"{tokens / 8192:.0%}")


def test_tokens_of_a_speculative_step():
    for a, k in (0.8, 4), (0.6, 4), (0.8, 8):
        expected = sum(a**i for i in range(k + 1))
        assert expected == pytest.approx((1 - a ** (k + 1)) / (1 - a))
        said(f"{expected:.2f}")


def test_bits_of_a_quantised_cache():
    said(f"{4 + 32 / 32:g} bits")  # 16 for the scale, 16 for the minimum
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
    slow = [row[2] for row in questions.wavelengths()]
    assert slow[0] == "6.3" and slow[-1] == "2,559,195.5"


@pytest.mark.parametrize("language", ["en", "zh"])
def test_fifty_questions_and_each_test_that_is_named(language):
    (page,) = (p for p in markdown_files(language) if p.stem == PAGE.stem)
    body = body_of(page)
    numbers = re.findall(r'^\?\?\? question "(\d+)\. ', body, re.MULTILINE)
    assert [int(n) for n in numbers] == list(range(1, 51))
    ids = re.findall(r"^ +\{ #q-([\w-]+) \}$", body, re.MULTILINE)
    assert ids[4:] == numbers and len(set(ids)) == 54
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
    found = row.findall(body_of(page))
    assert len(found) > 7
    assert [exercise.places()[name] for _, name in found] == [
        stem for stem, _ in found
    ]


def test_a_course_of_ten_hours_and_the_bytes_of_a_whiteboard():
    course, board = (
        body_of(p)
        for p in markdown_files("en")
        if p.stem in ("course", "interview")
    )
    minutes = re.findall(r"\| (\d+) \| [^|]+ \|$", course, re.MULTILINE)
    assert sum(map(int, minutes)) == 600
    token = kv_bytes(find_model("deepseek-v3"), 1)
    whole = 2 * 128 * 128 * 2
    assert token == 61 * 1152
    assert f"{token:,} bytes per token" in board
    assert f"{whole * 61 / token:.0f} times less" in board
