"""The plain forms at work: the example that stands below each on its page."""

import torch

from attnref.plain.cross import CrossAttention


def test_softmax():
    from attnref.plain.softmax import online_softmax, softmax

    # --8<-- [start:softmax]
    scores = torch.tensor([2.0, 1.0, 0.0])
    weights = torch.tensor([0.67, 0.24, 0.09])
    torch.testing.assert_close(softmax(scores), weights, atol=0.01, rtol=0)
    # Only differences count: (102, 101, 100) gives the same.
    torch.testing.assert_close(softmax(scores + 100), softmax(scores))
    torch.testing.assert_close(online_softmax(scores, 2), softmax(scores))
    # --8<-- [end:softmax]


def test_attention():
    from attnref.plain.attention import attention

    # --8<-- [start:attention]
    mask = torch.tensor([[True, False], [True, True]])
    q = k = v = torch.tensor([[[[2.0, 0.0], [1.0, 1.0]]]])  # two tokens
    out = attention(q, k, v, mask)  # the second token sees both alike
    assert out.tolist() == [[[[2.0, 0.0], [1.5, 0.5]]]]
    # --8<-- [end:attention]


def test_masks():
    from attnref.plain.masks import (
        causal_mask,
        document_mask,
        padding_mask,
        window_mask,
    )

    # --8<-- [start:masks]
    assert causal_mask(2, 4).int().tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]
    assert window_mask(2, 4, 2).int().tolist() == [[0, 1, 1, 0], [0, 0, 1, 1]]
    ids = torch.tensor([[0, 0, 1]])  # two documents in one row
    assert document_mask(ids).int().tolist() == [
        [[[1, 0, 0], [1, 1, 0], [0, 0, 1]]]
    ]
    valid = torch.tensor([[False, True, True]])  # a pad, and two tokens
    both = causal_mask(3) & padding_mask(valid)
    assert both.int().tolist() == [[[[0, 0, 0], [0, 1, 0], [0, 1, 1]]]]
    # --8<-- [end:masks]


def test_mha():
    from attnref.plain.mha import MHA

    # --8<-- [start:mha]
    layer = MHA(d_model=64, n_heads=8)
    x = torch.randn(3, 7, 64)  # three sequences of seven tokens
    out = layer(x)
    assert out.shape == (3, 7, 64)
    # Causal: the first four tokens alone give the same.
    torch.testing.assert_close(layer(x[:, :4]), out[:, :4])
    # --8<-- [end:mha]


def test_rope():
    from attnref.plain.rope import rope

    # --8<-- [start:rope]
    q, k = torch.randn(2, 1, 1, 1, 8)  # one query and one key
    near = rope(q, torch.tensor([5])) @ rope(k, torch.tensor([2])).mT
    far = rope(q, torch.tensor([105])) @ rope(k, torch.tensor([102])).mT
    torch.testing.assert_close(near, far)  # the distance is 3 in both
    # --8<-- [end:rope]


def test_kv_cache():
    # --8<-- [start:kv_cache]
    import torch
    import torch.nn.functional as F

    from attnref.plain.kv_cache import KVCache

    q, k, v = torch.randn(3, 3, 2, 6, 8)  # six tokens
    attend = F.scaled_dot_product_attention
    whole = attend(q, k, v, is_causal=True)
    cache = KVCache(max_len=7)
    cache.append(k[:, :, :5], v[:, :, :5])  # prefill
    keys, values = cache.append(k[:, :, 5:], v[:, :, 5:])  # decode
    assert cache.length == 6
    last = attend(q[:, :, 5:], keys, values)  # one query, six keys
    torch.testing.assert_close(last, whole[:, :, 5:])
    # --8<-- [end:kv_cache]


def test_ring():
    # --8<-- [start:ring]
    import torch
    import torch.nn.functional as F

    from attnref.plain.ring import RingKVCache, sees

    q, k, v = torch.randn(3, 3, 2, 9, 8)  # nine tokens, two heads
    at = torch.arange(9)
    whole = F.scaled_dot_product_attention(q, k, v, sees(at, at, W=4))
    cache, parts = RingKVCache(W=4), []
    for i in at.split([6, 1, 1, 1]):  # a prompt longer than the ring
        keys, values, j = cache.append(k[:, :, i], v[:, :, i])
        mask = sees(i, j, W=4)
        part = F.scaled_dot_product_attention(q[:, :, i], keys, values, mask)
        parts.append(part)
    torch.testing.assert_close(torch.cat(parts, dim=2), whole)
    assert cache.at.tolist() == [8, 5, 6, 7]
    # --8<-- [end:ring]


def test_quantised():
    # --8<-- [start:quantised]
    import torch

    from attnref.plain.gqa import GQA
    from attnref.plain.quantised import QuantisedCache

    layer = GQA(d_model=256, n_heads=8, n_kv_heads=2)  # heads of 32
    x, cache = torch.randn(3, 100, 256), QuantisedCache(4, 32, residual=16)
    steps = [layer(token, cache) for token in x.split(1, dim=1)]
    exact, result = layer(x), torch.cat(steps, dim=1)
    assert 0 < (result - exact).norm() / exact.norm() < 0.1
    assert cache.new[0].shape[3] == 36  # tokens as they came, 64 are packed
    packed = [tensor for kv in cache.old for part in kv for tensor in part]
    elements = 2 * 3 * 2 * 64 * 32  # keys and values, rows, heads
    assert sum(tensor.nbytes for tensor in packed) == 0.625 * elements
    # --8<-- [end:quantised]


def test_window():
    # --8<-- [start:window]
    import torch
    import torch.nn.functional as F

    from attnref.plain.window import window_attention

    q = torch.randn(3, 4, 9, 8)  # nine tokens, four heads
    k, v = torch.randn(2, 3, 2, 9, 8)  # two key/value heads
    mask = torch.ones(9, 9, dtype=torch.bool).tril().triu(-3)  # W = 4
    whole = F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)
    blocks = window_attention(q, k, v, W=4, size=2)
    torch.testing.assert_close(blocks, whole)
    step = window_attention(q[:, :, -1:], k, v, W=4)  # after eight cached ones
    torch.testing.assert_close(step, whole[:, :, -1:])
    # --8<-- [end:window]


def test_gated_delta():
    # --8<-- [start:gated_delta]
    import torch

    from attnref.plain.gated_delta import GatedDeltaNet, State

    layer = GatedDeltaNet(d_model=64, n_heads=2, n_v_heads=4, D=8, Dv=12)
    x, cache = torch.randn(3, 7, 64), State()  # three texts of seven tokens
    steps = [layer(token, cache) for token in x.split(1, dim=1)]
    torch.testing.assert_close(torch.cat(steps, dim=1), layer(x))
    assert cache.state.shape == (3, 4, 8, 12)  # whatever the length
    assert cache.inputs.shape == (3, 2 * 2 * 8 + 4 * 12, 3)  # q, k, v
    # --8<-- [end:gated_delta]


def test_kda_chunk():
    # --8<-- [start:kda_chunk]
    import torch

    from attnref.plain.kda import kda_rule

    def kda_chunk(q, k, v, decay, beta, state):
        """What kda_rule returns for these tokens, in a few products."""
        T, b = q.shape[2], beta[..., None]
        past = decay.cumsum(dim=2)  # (B, H, T, D); a log, as decay is
        between = past[:, :, :, None] - past[:, :, None]  # (B, H, T, T, D)
        later = torch.ones(T, T, dtype=torch.bool).triu(1)[..., None]
        between = between.masked_fill(later, -torch.inf).exp()
        L, A = (
            torch.einsum("...td,...tsd,...sd->...ts", x, between, k)
            for x in (k, q)
        )
        error = v - (k * past.exp()) @ state
        U = torch.linalg.solve_triangular(
            b * L, b * error, upper=False, unitriangular=True
        )  # of L, what stands below the diagonal is read
        out = (q * past.exp()) @ state + A @ U
        state = past[:, :, -1, :, None].exp() * state
        return out, state + (k * between[:, :, -1]).mT @ U

    q, k, v, decay = torch.rand(4, 3, 2, 16, 8, dtype=torch.float64)
    k, decay, beta = k / k.norm(dim=-1, keepdim=True), -5 * decay, v[..., 0]
    args = q, k, v, decay, beta, q[:, :, :8]  # a state that is not empty
    torch.testing.assert_close(kda_chunk(*args), kda_rule(*args))

    # Kernels split `between` into two factors, so that it needs no axis for
    # pairs. The second one is e^80 after 16 tokens at the bound of -5, ...
    for bound, fits in ((-5.0, True), (-6.0, False)):
        past = torch.full((16,), bound).cumsum(0)  # float32
        assert (-past).exp().isfinite().all() == fits  # ... and e^96 is inf
    # --8<-- [end:kda_chunk]


def test_newer_rules():
    # --8<-- [start:newer]
    import torch
    from torch import outer

    def rwkv7(S, a, k, v, erased, step):
        return S * a[:, None] - outer(step * erased, erased @ S) + outer(k, v)

    def gated_delta_2(S, a, k, v, erase, write):
        S = S * a[:, None]
        return S + outer(k, write * v - (erase * k) @ S)

    def mamba3(S, a, k, v, step, share, k_before, v_before):
        S = a * (S + step * (1 - share) * outer(k_before, v_before))
        return S + step * share * outer(k, v)

    S, (a, k, v, new) = torch.rand(8, 8), torch.rand(4, 8)
    k, beta, one = k / k.norm(), 0.7, torch.ones(8)
    u = beta * (v - k @ (S * a[:, None]))
    kda = S * a[:, None] + outer(k, u)
    torch.testing.assert_close(gated_delta_2(S, a, k, v, beta, beta), kda)
    delta = S + outer(k, beta * (v - k @ S))  # no decay, and k erases itself
    torch.testing.assert_close(rwkv7(S, one, beta * k, v, k, beta), delta)
    mamba2 = 0.9 * S + 0.2 * outer(k, v)  # all of a token, at once
    torch.testing.assert_close(mamba3(S, 0.9, k, v, 0.2, 1, k, new), mamba2)
    # --8<-- [end:newer]


def test_recall():
    # --8<-- [start:recall]
    import torch
    import torch.nn.functional as F

    from attnref.plain.recall import attended, recalled, written

    torch.manual_seed(0)
    N, D = 64, 32  # pairs, and the rows of the state
    k, v = F.normalize(torch.randn(2, 16, N, D), dim=-1)
    assert 0.8 < recalled(k @ written(k, v), v) < 0.9  # linear attention
    assert 0.4 < recalled(k @ written(k, v, delta=True), v) < 0.5
    assert recalled(attended(k, k, v), v) == 1

    # Sixteen keys get a second value: does the read find the newer one?
    k, (old, new) = k[:, :16], v.split((48, 16), dim=1)
    twice = torch.cat((k, k), dim=1), torch.cat((old[:, :16], new), dim=1)
    values = torch.cat((new, old[:, :16]), dim=1)
    assert recalled(k @ written(*twice), values) < 0.6
    assert recalled(k @ written(*twice, delta=True), values) > 0.9
    assert recalled(attended(k, *twice), values) < 0.6  # it averages the two
    # --8<-- [end:recall]


def test_gqa():
    from attnref.plain.gqa import GQA, KVCache

    # --8<-- [start:gqa]
    layer = GQA(d_model=64, n_heads=8, n_kv_heads=2)  # heads of width 8
    x = torch.randn(3, 7, 64)  # three sequences of seven tokens
    cache = KVCache(max_len=7)
    steps = [layer(token, cache) for token in x.split(1, dim=1)]
    torch.testing.assert_close(torch.cat(steps, dim=1), layer(x))
    assert cache.stored.shape == (2, 3, 2, 7, 8)  # keys and values of 2 heads
    # --8<-- [end:gqa]


def test_mqa():
    from attnref.plain.gqa import KVCache
    from attnref.plain.mqa import MQA

    # --8<-- [start:mqa]
    layer = MQA(d_model=64, n_heads=8)  # heads of width 8
    x = torch.randn(3, 7, 64)  # three sequences of seven tokens
    cache = KVCache(max_len=7)
    steps = [layer(token, cache) for token in x.split(1, dim=1)]
    torch.testing.assert_close(torch.cat(steps, dim=1), layer(x))
    assert cache.stored.shape == (2, 3, 1, 7, 8)  # one key, one value head
    # --8<-- [end:mqa]


def test_cross():
    # --8<-- [start:cross]
    import torch

    layer = CrossAttention(d_model=64, n_heads=8, d_context=32)
    x, context = torch.randn(3, 7, 64), torch.randn(3, 5, 32)
    valid = torch.tensor([[True] * 5, [True] * 5, [True] * 3 + [False] * 2])
    out = layer(x, context, valid)
    assert out.shape == (3, 7, 64)
    # The last row gets what it gets from its three tokens alone.
    torch.testing.assert_close(out[2:], layer(x[2:], context[2:, :3]))
    # --8<-- [end:cross]


def test_mla():
    from attnref.plain.mla import MLA, KVCache

    # --8<-- [start:mla]
    layer = MLA(d_model=64, n_heads=8, R=24, Dn=16, Dr=8, Dv=16)
    x = torch.randn(3, 7, 64)  # three sequences of seven tokens
    cache = KVCache(max_len=7)
    steps = [layer(t, cache, absorbed=True) for t in x.split(1, dim=1)]
    whole = layer(x, absorbed=False)  # the latent form
    torch.testing.assert_close(torch.cat(steps, dim=1), whole)
    assert cache.stored.shape == (1, 3, 1, 7, 24 + 8)  # for all 8 heads
    # --8<-- [end:mla]


def test_dsa():
    from attnref.plain.dsa import DSA, KVCache

    # --8<-- [start:dsa]
    from attnref.plain.mla import MLA

    sizes = dict(d_model=64, n_heads=8, R=24, Dn=16, Dr=8, Dv=16, q_rank=32)
    index = 16, 12, 4  # 16 heads of width 12 choose 4 keys for each query
    layer = DSA(**sizes, index=index, theta=10000.0, halves=True)
    x = torch.randn(3, 7, 64)  # three sequences of seven tokens
    cache = KVCache(max_len=7)
    steps = [layer(t, cache) for t in x.split(1, dim=1)]
    torch.testing.assert_close(torch.cat(steps, dim=1), layer(x))
    assert cache.stored.shape == (1, 3, 1, 7, 24 + 8 + 12)

    mla = MLA(**sizes)
    mla.load_state_dict(layer.state_dict(), strict=False)  # but the indexer
    same = (layer(x) - mla(x)).abs().amax(dim=(0, 2)) < 1e-5
    assert same.tolist() == [True] * 4 + [False] * 3  # from the fifth token on
    # --8<-- [end:dsa]


def test_index_loss():
    from attnref.plain.index_loss import index_loss

    # --8<-- [start:index_loss]
    B, H, T, S, topk = 3, 2, 5, 7, 4
    scores = torch.randn(B, T, S, requires_grad=True)  # of the indexer
    weights = torch.randn(B, H, T, S).softmax(-1).requires_grad_()
    chosen = scores.topk(topk, dim=-1).indices
    all_keys = torch.arange(S).expand(B, T, S)
    for keys in (all_keys, chosen):  # the warm-up, and sparse training
        loss = index_loss(scores, weights, keys)
        (grad,) = torch.autograd.grad(loss, scores, retain_graph=True)
        read = torch.zeros(B, T, S).scatter(-1, keys, 1)
        target = read * weights.mean(1)
        target = target / target.sum(-1, keepdim=True)
        p = scores.masked_fill(read == 0, -torch.inf).softmax(-1)
        torch.testing.assert_close(grad, (p - target) / (B * T))
        assert torch.autograd.grad(loss, weights, allow_unused=True) == (None,)
    torch.testing.assert_close(
        index_loss(scores, weights, all_keys), index_loss(scores, weights)
    )
    # --8<-- [end:index_loss]


def test_flash():
    from attnref.plain.flash import flash

    # --8<-- [start:flash]
    q, k, v = torch.randn(3, 3, 2, 7, 4)
    out, lse = flash(q, k, v, tile=(2, 3))
    scores = q @ k.mT / 4**0.5
    torch.testing.assert_close(out, scores.softmax(dim=-1) @ v)
    torch.testing.assert_close(lse, scores.logsumexp(dim=-1))
    # --8<-- [end:flash]


def test_flash_backward():
    from attnref.plain.flash import flash, flash_backward

    # --8<-- [start:flash_backward]
    from attnref.plain.sinks import add_sinks, attention_with_sinks

    q, k, v = torch.randn(3, 3, 2, 7, 4).requires_grad_()
    mask = torch.ones(7, 7, dtype=torch.bool).tril()
    sinks = torch.randn(2, requires_grad=True)
    want = attention_with_sinks(q, k, v, sinks, mask)
    d_out = torch.randn_like(want)

    with torch.no_grad():
        saved = add_sinks(*flash(q, k, v, mask), sinks)  # out and lse alone
        grads = flash_backward(d_out, q, k, v, *saved, mask, sinks, (2, 3))
    autograd = torch.autograd.grad(want, (q, k, v, sinks), d_out)
    torch.testing.assert_close(grads, autograd)
    # --8<-- [end:flash_backward]


def test_merge():
    from attnref.plain.merge import merge

    # --8<-- [start:merge]
    outs = torch.tensor([[[[0.0, 0.0]]]]), torch.tensor([[[[4.0, 8.0]]]])
    lses = torch.tensor([[[0.0]]]), torch.tensor([[[0.0]]])
    out, lse = merge(outs, lses)  # both parts weigh the same
    assert out.tolist() == [[[[2.0, 4.0]]]]
    torch.testing.assert_close(lse.exp(), torch.tensor([[[2.0]]]))
    # --8<-- [end:merge]


def test_sinks():
    from attnref.plain.sinks import attention_with_sinks, streaming_positions

    # --8<-- [start:sinks]
    q = k = v = torch.ones(1, 2, 1, 4)  # two heads, one query, one key
    sinks = 2 + torch.tensor([1.0, 3.0]).log()  # the score is 4 / 4**0.5 = 2
    out = attention_with_sinks(q, k, v, sinks)  # the sink takes 1/2, and 3/4
    torch.testing.assert_close(out[0, :, 0, 0], torch.tensor([0.5, 0.25]))
    kept, positions = streaming_positions(S=9, first=2, window=3)
    assert kept.tolist() == [0, 1, 6, 7, 8]
    assert positions.tolist() == [0, 1, 2, 3, 4]
    # --8<-- [end:sinks]


def test_alibi():
    from attnref.plain.alibi import alibi, biased_attention, slopes

    # --8<-- [start:alibi]
    assert slopes(8)[:3].tolist() == [1 / 2, 1 / 4, 1 / 8]
    bias = alibi(8, T=1, S=3)  # the query is the third token
    assert bias[0].tolist() == [[-1.0, -0.5, 0.0]]
    q, k, v = torch.zeros(3, 1, 8, 3, 4)  # keys all fit alike: the near wins
    v[..., 0] = torch.tensor([0.0, 0.0, 1.0])
    out = biased_attention(q[:, :, :1], k, v, bias)
    near = 1 / (1 + torch.tensor([0.5, 1.0]).neg().exp().sum())
    torch.testing.assert_close(out[0, 0, 0, 0], near)
    # --8<-- [end:alibi]


def test_order():
    from attnref.plain.order import todays_heads

    # --8<-- [start:order]
    q = k = v = torch.randn(1, 2, 1, 4)  # two heads, one token
    ones, gate = torch.ones(4), torch.zeros(1, 2, 1, 4)  # half is let through
    turn = torch.nn.Identity()
    args = ones, ones, turn, 1e6, torch.tensor([2.0, -1e6]), ones[:1] > 0
    out = todays_heads(q, k, v, gate, *args)  # the score is 4 / 4**0.5 = 2
    torch.testing.assert_close(out[0, 0], v[0, 0] / 4, rtol=1e-2, atol=0)
    torch.testing.assert_close(out[0, 1], v[0, 1] / 2)  # without a sink
    # --8<-- [end:order]


def test_scaling():
    from attnref.plain.scaling import frequencies, linear, llama3, rotate, yarn

    # --8<-- [start:scaling]
    f = frequencies(128, theta=5e5)  # of Llama 3.1
    slowed = llama3(f, factor=8.0, length=8192)
    assert slowed[0] == f[0] and slowed[-1] == f[-1] / 8
    q, k = torch.randn(2, 1, 1, 1, 128).double()

    def score(f, distance):
        return rotate(q, torch.tensor([distance]), f) @ k.mT

    torch.testing.assert_close(score(linear(f, 8.0), 800), score(f, 100))
    f = frequencies(64, theta=1e4)  # of DeepSeek-V3
    slowed, size = yarn(f, factor=40.0, length=4096)
    assert slowed[-1] == f[-1] / 40 and round(size, 3) == 1.369
    # --8<-- [end:scaling]


def test_sample():
    from attnref.plain.sample import sample

    # --8<-- [start:sample]
    logits = torch.tensor([[2.0, 1.0, 0.0]]).expand(1000, 3)
    assert set(sample(logits, top_k=2).tolist()) == {0, 1}
    assert set(sample(logits, top_p=0.6).tolist()) == {0}  # has 0.67 alone
    # --8<-- [end:sample]


def test_llama():
    from attnref.plain.llama import Llama

    # --8<-- [start:llama]
    heads = dict(n_heads=8, n_kv_heads=2)
    model = Llama(vocab=101, n_layers=2, d_model=64, d_ff=96, **heads)
    prompt = torch.randint(101, (3, 5))
    tokens = model.generate(prompt, steps=4)  # with a cache
    assert tokens.shape == (3, 9)
    again = model(tokens)[:, 4:-1].argmax(dim=-1)  # without one
    assert torch.equal(again, tokens[:, 5:])
    # --8<-- [end:llama]


def test_paged():
    from attnref.plain.paged import Pool

    # --8<-- [start:paged]
    pool = Pool(blocks=6, size=4, shape=(2, 2, 8))  # k and v, 2 heads of 8
    kv = torch.randn(2, 2, 10, 8)
    a, b = [], list("systemABCD")
    pool.append(a, list("system"), kv[:, :, :6])
    assert a == [0, 1]  # six tokens: a full block, and a half-full one
    table = pool.find(b)
    assert table == [0]  # "syst": four tokens need not be read again
    pool.append(table, b, kv[:, :, 4:])
    assert table == [0, 2, 3]
    torch.testing.assert_close(pool.gather(table, 10), kv)

    fork = pool.fork(a)
    pool.append(fork, list("systems"), kv[:, :, 6:7])
    assert a == [0, 1] and fork == [0, 4]  # block 1 was copied, block 0 not
    pool.release(a)
    assert pool.readers == [2, 0, 1, 1, 1, 0]
    torch.testing.assert_close(pool.gather(fork, 7), kv[:, :, :7])
    # --8<-- [end:paged]


def test_ring_attention():
    # --8<-- [start:ring_attention]
    import torch
    import torch.nn.functional as F

    from attnref.plain.ranks import on_threads
    from attnref.plain.ring_attention import join, place, ring_attention

    q, k, v = torch.randn(3, 3, 8, 20, 16)  # eight heads, twenty tokens
    k, v = k[:, :2], v[:, :2]  # two key heads
    placed = place(20, 4)  # four ranks; the last chunk is shorter: pads

    def attend_on(group):
        local = placed[group.rank]
        parts = [x[:, :, local] for x in (q, k, v)]
        return ring_attention(*parts, local, group)

    outs = on_threads(attend_on, 4)
    attend = F.scaled_dot_product_attention
    whole = attend(q, k, v, is_causal=True, enable_gqa=True)
    torch.testing.assert_close(join(outs, placed), whole)
    # --8<-- [end:ring_attention]

    # --8<-- [start:ring_packed]
    from attnref.plain.sinks import attention_with_sinks

    doc = torch.tensor([0] * 9 + [1] * 11)  # two documents in each row
    sinks = torch.randn(8)

    def same_document(i, j):  # positions of queries and of keys
        return (j <= i) & (doc[i] == doc[j])

    def packed_on(group):
        local = placed[group.rank]  # in the packed text; RoPE's may restart
        parts = [x[:, :, local] for x in (q, k, v)]
        return ring_attention(*parts, local, group, same_document, sinks)

    outs, i = on_threads(packed_on, 4), torch.arange(20)
    heads = (x.repeat_interleave(4, dim=1) for x in (k, v))
    mask = same_document(i[:, None], i)
    packed = attention_with_sinks(q, *heads, sinks, mask)
    torch.testing.assert_close(join(outs, placed), packed)
    # --8<-- [end:ring_packed]

    # --8<-- [start:ring_layer]
    from copy import copy

    from attnref import GroupedQueryAttention

    sizes = {"d_model": 64, "n_heads": 8, "n_kv_heads": 2}
    layer = GroupedQueryAttention(**sizes, rope_theta=1e4)
    x = torch.randn(3, 20, 64)

    def layer_on(group):
        local = placed[group.rank]
        ring_layer = copy(layer)  # a thread must not set another one's ring

        def ring(q, k, v, mask, **_):  # its mask knows no other ranks
            return ring_attention(q, k, v, local, group)

        ring_layer.attend = ring
        turned = local.clamp(min=0)  # RoPE: positions in the whole text
        out = ring_layer(x[:, local], positions=turned)
        return out[:, None]  # as one head, for join

    outs = on_threads(layer_on, 4)
    torch.testing.assert_close(join(outs, placed)[:, 0], layer(x))
    # --8<-- [end:ring_layer]

    # --8<-- [start:hybrid]
    from attnref.plain.ulysses import ulysses

    def hybrid_on(group):
        r, local = group.rank, placed[group.rank]
        near = group.part([r // 2 * 2, r // 2 * 2 + 1])  # 0, 1 or 2, 3
        far = group.part([r % 2, r % 2 + 2])  # 0, 2 or 1, 3

        def attend(q, k, v, positions):
            return ring_attention(q, k, v, positions, far)

        parts = [x[:, :, local] for x in (q, k, v)]
        return ulysses(*parts, local, near, attend)

    outs = on_threads(hybrid_on, 4)
    torch.testing.assert_close(join(outs, placed), whole)
    # --8<-- [end:hybrid]

    # --8<-- [start:loss]
    weight = torch.randn(50, 64)
    tokens = torch.randint(50, (3, 21))
    labels = tokens[:, 1:].clone()  # shifted before they are split
    labels[:, :9] = -100  # the prompt is not learned: rank 0 has few labels

    def loss_on(group):
        w = weight.clone().requires_grad_()  # each rank has its own copy
        local = placed[group.rank]
        real = local[local >= 0]
        some = (x[:, real] @ w.T).flatten(0, 1), labels[:, real].flatten()
        total = F.cross_entropy(*some, reduction="sum")
        loss = total / group.total((labels[:, real] >= 0).sum())
        loss.backward()
        return loss.detach(), group.total(w.grad)  # of all tokens

    losses, grads = zip(*on_threads(loss_on, 4), strict=True)
    weight.requires_grad_()
    whole = F.cross_entropy((x @ weight.T).flatten(0, 1), labels.flatten())
    whole.backward()
    torch.testing.assert_close(sum(losses), whole)  # no mean of means
    torch.testing.assert_close(grads[0], weight.grad)
    # --8<-- [end:loss]


def test_relay():
    # --8<-- [start:relay]
    import torch

    from attnref.plain.gated_delta import delta_rule
    from attnref.plain.ranks import on_threads
    from attnref.plain.relay import relay

    q, k, v = torch.randn(3, 3, 2, 20, 8)  # twenty tokens
    k = torch.nn.functional.normalize(k, dim=-1)
    decay, beta = -torch.rand(3, 2, 20), torch.rand(3, 2, 20)
    inputs = q, k, v, decay, beta

    def relay_on(group):
        local = slice(5 * group.rank, 5 * group.rank + 5)
        parts = [x[:, :, local] for x in inputs]
        out, _ = relay(delta_rule, *parts, group=group)
        return out

    whole, _ = delta_rule(*inputs, torch.zeros(3, 2, 8, 8))
    out = torch.cat(on_threads(relay_on, 4), dim=2)
    torch.testing.assert_close(out, whole)
    # --8<-- [end:relay]


def test_tensor_parallel():
    # --8<-- [start:tensor_parallel]
    import torch

    from attnref import GroupedQueryAttention
    from attnref.plain import tensor_parallel as tp
    from attnref.plain.ranks import on_threads

    sizes = {"d_model": 64, "n_heads": 8, "n_kv_heads": 2}
    layer, x = GroupedQueryAttention(**sizes), torch.randn(3, 7, 64)
    q, k, v, o = (p.detach() for p in layer.parameters())

    def heads_on(group):
        keys, values = (tp.rows(w, 2, group, copied=True) for w in (k, v))
        queries, outputs = tp.rows(q, 8, group), tp.columns(o, 8, group)
        return tp.gqa(x, queries, keys, values, outputs, 8, group), keys

    outs, keys = zip(*on_threads(heads_on, 4), strict=True)
    torch.testing.assert_close(outs[3], layer(x))
    assert keys[0].equal(keys[1])  # four ranks, two key heads: a copy
    assert not keys[1].equal(keys[2])
    # --8<-- [end:tensor_parallel]


def test_split_decoding():
    # --8<-- [start:split_decoding]
    import torch
    import torch.nn.functional as F

    from attnref.plain.flash import flash
    from attnref.plain.merge import merge
    from attnref.plain.ranks import on_threads

    q, k, v = torch.randn(3, 3, 4, 9, 16)  # four heads
    q = q[:, :, -1:]  # one new token; nine are cached

    def step_on(group):
        head = q[:, group.rank : group.rank + 1]  # if heads are split, too
        heads = torch.cat([*group.gather(head)], dim=1)  # all are needed
        local = slice(group.rank, None, group.size)  # token p: rank p mod n
        out, lse = flash(heads, k[:, :, local], v[:, :, local])
        return merge([*group.gather(out)], [*group.gather(lse)])[0]

    whole = F.scaled_dot_product_attention(q, k, v)
    for out in on_threads(step_on, 4):
        torch.testing.assert_close(out, whole)
    # --8<-- [end:split_decoding]
