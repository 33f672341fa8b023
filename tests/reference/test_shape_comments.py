"""A comment is a test: every shape comment is reached, and right."""

import ast
import re
from functools import partial
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch

import attnref
from attnref.core.few import few
from attnref.judge import questions
from attnref.judge.shapes import Tracer, comments
from attnref.plain import (
    alibi,
    deepseek_v4,
    delta_backward,
    dsa,
    flash,
    gqa,
    index_loss,
    llama,
    low_bits,
    masks,
    mla,
    order,
    paged,
    recall,
    ring,
    sinks,
    window,
)
from attnref.plain import scaling as scaled
from attnref.plain.attention import attention
from attnref.plain.cross import CrossAttention
from attnref.plain.kv_cache import KVCache
from attnref.plain.mha import MHA
from attnref.plain.mha_cached import mha_cached
from attnref.plain.mqa import MQA
from attnref.plain.rope import rope
from attnref.plain.sample import sample
from attnref.released.generate import rendered, source
from attnref.released.record import AttentionRecord
from sitekit import ROOT
from sitekit.markdown.pages import markdown_files, stem_of
from tests.kit import kernels, sampled
from tests.kit.layers import DN, DR, DV, B, D, E, H, K, Q, R, S, T
from tests.kit.programs import SLOW, program_of
from tests.variants import (
    SERVING,
    VARIANTS,
    built,
    declared,
    inputs,
    run,
    takes,
)

LETTERS = {
    **{"B": B, "T": T, "S": S, "H": H, "K": K, "D": D, "Dv": DV, "E": E},
    **{"R": R, "Dn": DN, "Dr": DR},
}


def every_public_call():
    """Each public function once a branch, with a size for each letter."""
    q = torch.randn(B, H, T, D)
    k, v = torch.randn(B, K, S, D), torch.randn(B, K, S, DV)
    valid = torch.ones(B, S, dtype=torch.bool)
    attnref.softmax(q)
    attnref.online_softmax(q, chunk=2)
    mask = attnref.causal_mask(T, S)
    attnref.padding_mask(valid)
    attnref.padding_mask_from_hf(valid.long())
    attnref.padding_mask_from_hf(valid)
    attnref.cross_mask(torch.ones(B, T, dtype=torch.bool), valid)
    attnref.attention_weights(q, k)
    attnref.sdpa(q, k, v, mask)
    attnref.sdpa(q, k, v, mask, dropout=0.5)
    parts = {"softcap": 3.0, "sinks": torch.randn(H), "bias": attnref.Alibi(H)}
    attnref.sdpa(q, k, v, mask, **parts)
    attnref.split_kv(q, k, v, mask, **parts)
    attnref.fused(q, k, v, mask)
    few(q, k, v, mask)
    attnref.split_kv(q, k, v, mask)
    prefix = torch.randn(1, K, S, D), torch.randn(1, K, S, DV)
    attnref.with_prefix(q, prefix, k, v)
    attnref.token_positions(valid)
    cos, sin = attnref.rope_table(torch.arange(T), D)
    attnref.apply_rope(q, cos, sin, layout="interleaved")
    x = torch.randn(B, T, E)
    heads, shared = torch.randn(H, E, D), torch.randn(E, D)
    groups, out = torch.randn(K, E, D), torch.randn(H * D, E)
    past = attnref.causal_mask(T)
    attnref.multi_head_loop(x, heads, heads, heads, out, past)
    attnref.multi_query_loop(x, heads, shared, shared, out, past)
    attnref.grouped_query_loop(x, heads, groups, groups, out, past)
    block = attnref.Block(built("mha"), d_model=E, d_ff=59)
    decoder = attnref.Decoder([block], n_tokens=61, d_model=E)
    cache = attnref.KVCache(S)
    with torch.no_grad():
        cache.append(*torch.randn(2, B, H, S - T, D))
        decoder(torch.zeros(B, T, dtype=torch.int64), caches=[cache])


def asked():
    """With heads of the letters' sizes: its own have as many tokens as rows."""
    heads = partial(questions.heads, B, H, K, T, S, D)
    with patch.object(questions, "heads", heads):
        questions.log_sum_exp(questions.Conventions())


def plain_functions():
    q, k = torch.randn(B, H, T, D), torch.randn(B, H, S, D)
    v, seen = torch.randn(B, H, S, DV), masks.window_mask(T, S, 3)
    attention(q, k, v, seen)
    low_bits.attention_in_8_bits(q, k, v, seen)
    saved = flash.flash(q, k, v, seen)
    d_out = torch.randn(B, H, T, DV)
    flash.flash_backward(d_out, q, k, v, *saved, seen, torch.randn(H))
    sinks.attention_with_sinks(q, k, v, torch.randn(H), seen)
    sinks.add_sinks(torch.randn(B, H, T, DV), q[..., 0], torch.randn(H))
    sinks.streaming_mask(T, S, 2, 3)
    alibi.biased_attention(q, k, v, alibi.alibi(H, T, S), 3.0, seen)
    norms = torch.ones(D), torch.ones(D), torch.nn.Identity()
    seen = masks.causal_mask(T, S)
    order.todays_heads(q, k, k, q, *norms, 3.0, torch.randn(H), seen)
    order.norm_of_all_heads(q, torch.ones(H * D))
    order.query_and_gate(torch.randn(B, T, H * 2 * D), H)
    masks.padding_mask(torch.ones(B, S))
    masks.document_mask(torch.zeros(B, S))
    window.window_attention(q, k, k, 3, size=4)
    rope(q, torch.arange(T))
    f = scaled.frequencies(D)
    scaled.linear(scaled.ntk(f, 8.0), 8.0)
    scaled.llama3(f, 8.0, 8192)
    scaled.rotate(q, torch.arange(T), *scaled.yarn(f, 8.0, 4096))
    mla.rope(q, torch.arange(T))  # by itself, as in MLA its D is Dr
    for halves in (False, True):
        dsa.rope(q, torch.arange(T), halves=halves)
    sample(torch.randn(B, 61), top_k=3)
    KVCache(S).append(*torch.randn(2, B, K, T, D))
    ring.sees(torch.arange(T), torch.arange(S), 3)
    ring.RingKVCache(43).append(*torch.randn(2, B, K, T, D))
    pool = paged.Pool(T, 3, (2, K, D))
    pool.append([], list(range(T)), torch.randn(2, K, T, D))


def plain_layers():
    """T tokens after T others, so S is 2 T."""
    x, tokens = torch.randn(B, T, E), torch.zeros(B, T, dtype=torch.int64)
    heads = {"n_heads": H, "n_kv_heads": K, "head_dim": D}
    model = llama.Llama(61, 1, E, 59, **heads)
    model.generate(tokens, 1)
    for layer, given, cache in (
        (gqa.GQA(E, **heads), x, gqa.KVCache(2 * T)),
        (model, tokens, [llama.KVCache(2 * T)]),
    ):
        layer(given, cache)
        layer(given, cache, torch.ones(B, 2 * T, dtype=torch.bool))


def plain_full_width():
    x, context = torch.randn(B, T, H * D), torch.randn(B, S, H * D)
    MHA(H * D, H)(x)
    CrossAttention(H * D, H)(x, context)
    weights = torch.randn(4, H * D, H * D)
    _, cache = mha_cached(x, *weights, H)
    mha_cached(x, *weights, H, cache)


def plain_one_key():
    layer, cache = MQA(H * D, H), KVCache(2 * T)
    for x in torch.randn(2, B, T, H * D):
        layer(x, cache)


def plain_latent():
    layer, x, cache = (
        mla.MLA(E, H, R, DN, DR, DV),
        torch.randn(B, T, E),
        mla.KVCache(2 * T),
    )
    layer(x, cache, absorbed=False)
    layer(x, cache, torch.ones(B, 2 * T, dtype=torch.bool))


def sparse():
    for halves in (False, True):
        yield dsa.DSA(E, H, R, DN, DR, DV, Q, (12, DR + 9, 6), 100.0, halves)


def plain_sparse():
    for layer in sparse():
        cache = dsa.KVCache(2 * T)
        layer(torch.randn(B, T, E), cache)
        layer(torch.randn(B, T, E), cache, torch.ones(B, 2 * T).bool())


def plain_index_loss():
    scores, weights = torch.randn(B, T, S), torch.rand(B, H, T, S)
    chosen = scores.topk(2).indices
    for keys in (None, chosen):
        index_loss.index_loss(scores, weights, keys)
    index_loss.recall(chosen, weights)


CHUNK = 101


def plain_delta_backward():
    """Two whole chunks."""
    n = 2 * CHUNK
    q, k = torch.randn(2, B, H, n, D)
    v, d_out = torch.randn(2, B, H, n, DV)
    decay, beta = -torch.rand(B, H, n), torch.rand(B, H, n)
    state = torch.randn(B, H, D, DV)
    inputs = q, k, v, decay, beta, state
    delta_backward.delta_backward(*inputs, d_out, state, chunk=CHUNK)


PAIRS = 43  # no other size


def plain_recall():
    k, v = torch.randn(2, B, PAIRS, D)
    recall.written(k, v, delta=True)
    recall.recalled(recall.attended(k, k, v), v)


def plain_sparse_step():
    for layer in sparse():
        cache = dsa.KVCache(S)
        cache.stored, cache.length = torch.randn(1, B, 1, S, SPARSE["D"]), S - 1
        layer(torch.randn(B, 1, E), cache)


def plain_compressed():
    """All of a window and 4 entries, so that S is neither T nor 2 T."""
    f = torch.ones(DR // 2)
    for index in ((), (2, 12, 5)):
        layer = deepseek_v4.CompressedAttention(
            *(E, H, 16, 9, f, 29, 31, 2), rate=3, index=index
        )
        cache, x = deepseek_v4.CompressedCache(), torch.randn(B, T, E)
        layer(x, cache)
        layer(x, cache)


def configured():
    """Records whose files have, between them, each comment of the template."""
    heads = {"d_model": E, "n_heads": H, "family": "", "kind": ""}
    groups = heads | {"n_kv_heads": K, "head_dim": D, "v_head_dim": DV}
    turned = {"rope_theta": 100.0, "rope_width": D}
    scaled = {"rope_kind": "linear", "rope_factor": 2.0}
    latent = {"n_kv_heads": 1, "head_dim": DN + DR, "v_head_dim": DV}
    latent |= {"kv_rank": R, "rope_dim": DR}
    latent |= {"rope_theta": 100.0, "rope_width": DR}
    return [
        AttentionRecord(**groups, norm="LayerNorm by heads", with_sinks=True),
        AttentionRecord(**groups, **turned, window=2 * T, gate="per head"),
        AttentionRecord(**groups, **turned, **scaled),
        AttentionRecord(**heads, **latent),
        AttentionRecord(**heads, **latent, q_rank=R + 2),
    ]


WRITTEN = {f"file {n}": rendered({0: r}) for n, r in enumerate(configured())}


def written():
    """The files, each called twice."""
    x, valid = torch.randn(B, T, E), torch.ones(B, 2 * T, dtype=torch.bool)
    valid[0, 0] = False
    for name, text in WRITTEN.items():
        space = {}
        exec(compile(text, name, "exec"), space)
        layer = space["Attention"]()
        cache = layer.cache(2 * T)
        layer(x, cache=cache, valid=valid[:, :T])
        layer(x, cache=cache, valid=valid)


def test_the_files_have_every_shape_comment_of_the_template():
    wanted = set(re.findall(r"# \([A-Z.].*\)", source()))
    shown = [c.text for t in WRITTEN.values() for c in comments(t).values()]
    assert wanted == {f"# {text}" for text in shown}


SPARSE = {"K": 1, "D": R + 2 * DR + 9, "Di": DR + 9, "Hi": 12, "topk": 6}
SPARSE |= {"q_rank": Q}
# With the letters that stand for other sizes in them.
PLAIN = {
    written: {"S": 2 * T},
    plain_functions: {},
    plain_layers: {},
    plain_full_width: {"E": H * D},
    plain_one_key: {"E": H * D, "K": 1},
    plain_compressed: {"D": 16},
    plain_latent: {
        "S": 2 * T,
        "K": 1,
        "D": R + DR,
    },  # one key of R + Dr for all heads
    plain_sparse: SPARSE,
    plain_index_loss: {"topk": 2},
    plain_delta_backward: {"C": CHUNK},
    plain_recall: {"N": PAIRS},
    plain_sparse_step: SPARSE | {"T": 1},
}


@torch.no_grad()
def each_layer_after_others():
    """Calls with T tokens after S - T others, or with a context of S."""
    for name, variant in VARIANTS.items():
        for options in variant.options:
            layer, cache = (
                built(name, **options).double(),
                SERVING[name]["room"](S),
            )
            given, chunks = inputs(name, 2 * T), (T, T)
            if not takes(name, "context"):
                run(name, layer, inputs(name, S - T), cache=cache)
                given, chunks = inputs(name), (T,)
            yield torch.no_grad()(
                partial(run, name, layer, given, chunks, cache)
            )


@pytest.mark.whole
def test_every_shape_comment_of_the_package_is_right():
    sources = {
        str(p): p.read_text(encoding="utf-8")
        for p in (ROOT / "attnref").rglob("*.py")
        if kernels.INTERPRETED or p.parent.name != "kernels"
    }
    sources |= WRITTEN
    tracer = Tracer(sources, LETTERS)
    calls = [every_public_call, asked, *each_layer_after_others()]
    with tracer:
        for call in calls:
            call()
        # And what the test file of a subject itself runs for its comments.
        own = declared("*", "shapes").values()
        for call, letters in (*PLAIN.items(), *((call, {}) for call in own)):
            tracer.letters = LETTERS | letters
            del tracer.letters["S"]  # is T at first, and then 2 T
            call()
    assert tracer.faults == []
    assert tracer.unreached() == []
    assert len(tracer.seen) >= 15


# What comes from the package is reached above; with the sizes of an example
# two letters may be equal, so only the package's lines may be.
PACKAGE = {
    line.strip()
    for path in (ROOT / "attnref").rglob("*.py")
    for line in path.read_text(encoding="utf-8").splitlines()
}


def own_comments(source):
    """The lines of a program with shape comments that are not the package's."""
    lines = source.splitlines()
    run = (c.line for c in comments(source).values())
    return {line for line in run if lines[line - 1].strip() not in PACKAGE}


# Pages that show code of tests; rendering them all to collect takes seconds.
WITH_TESTS = [
    path
    for path in markdown_files("en")
    if '--8<-- "tests/' in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize(
    "path",
    sampled(WITH_TESTS, lambda path: stem_of(path) not in SLOW),
    ids=stem_of,
)
def test_every_shape_comment_of_a_page_is_right(path):
    source = program_of(path)
    ours, tracer = own_comments(source), Tracer({"page": source})
    if not ours:
        return
    body, scope = ast.parse(source).body, {"__name__": "page"}
    before = [node for node in body if node.end_lineno < min(ours)]
    parts = (before, body[len(before) :])
    head, rest = (
        compile(ast.Module(part, type_ignores=[]), "page", "exec")
        for part in parts
    )
    exec(head, scope)  # it reaches none of them, and compiles models slowly
    with tracer:
        exec(rest, scope)
    reached = {line for _, line in tracer.seen}
    assert ours <= reached, "never reached"
    places = tuple(f"page:{line}: " for line in ours)
    assert [f for f in tracer.faults if f.startswith(places)] == []


RIGHT = """
def f(x, y):
    B, T = x.shape
    z = x.mT  # (T, B)
    w = (
        z
        + 0
    )  # (T, B); a copy
    if y:
        return w.mT  # (B, T)
    a, b = x, x + 1  # (..., T)  # fmt: skip
    z += 1  # (T, B)
    return w @ x  # (T, T)
"""
WRONG = {
    "two axes swapped": ("x.mT  # (T, B)", "x.mT  # (B, T)"),
    "an axis too many": ("z += 1  # (T, B)", "z += 1  # (1, T, B)"),
    "a wrong sum": ("z += 1  # (T, B)", "z += 1  # (T, B + 1)"),
    "no shape": ("a, b = x, x + 1", "a, b = 1, x + 1"),
    "a wrong return": ("w @ x  # (T, T)", "w @ x  # (T, B)"),
    "a statement of several lines": ("# (T, B); a copy", "# (B, T); a copy"),
    "a wrong end": ("w @ x  # (T, T)", "w @ x  # (..., B)"),
    "an end that is too long": ("w @ x  # (T, T)", "w @ x  # (..., 5, T, T)"),
    "before a formatter's comment": ("T)  # fmt: skip", "B)  # fmt: skip"),
    "an unknown letter": ("w @ x  # (T, T)", "w @ x  # (T, 2 * Z)"),
}


def traced(source, *calls):
    tracer = Tracer({"f": source})
    scope = {}
    exec(compile(source, "f", "exec"), scope)
    with tracer:
        for call in calls:
            scope["f"](*call)
    return tracer


def test_right_comments_pass():
    x = torch.ones(3, 5)
    tracer = traced(RIGHT, (x, True), (x, False))
    assert tracer.faults == []
    assert tracer.unreached() == []


@pytest.mark.parametrize("fault", WRONG)
def test_each_wrong_comment_is_seen(fault):
    old, new = WRONG[fault]
    assert old in RIGHT
    x = torch.ones(3, 5)
    tracer = traced(RIGHT.replace(old, new), (x, True), (x, False))
    assert tracer.faults != []


def test_a_letter_that_names_the_wrong_axis_is_seen():
    # No local variable says what B and S are; the letters of the run do.
    source = "def f(x):\n    return x.mT  # (S, B)\n"
    for letters, right in (({"B": 3, "S": 5}, True), ({"B": 5, "S": 3}, False)):
        tracer = Tracer({"f": source}, letters)
        scope = {}
        exec(compile(source, "f", "exec"), scope)
        with tracer:
            scope["f"](torch.ones(3, 5))
        assert (tracer.faults == []) is right


@pytest.mark.parametrize(
    "comment", ["# (B, T) lower", "#(B, T)", "# [B, T]", "# (B, T"]
)
def test_a_comment_that_is_almost_one_is_seen(comment):
    with pytest.raises(ValueError, match="is no shape comment"):
        comments(f"y = x  {comment}\n")


def test_a_run_with_two_letters_of_one_size_does_not_count():
    square, oblong = torch.ones(5, 5), torch.ones(3, 5)
    assert traced(RIGHT, (square, True), (square, False)).seen == {}
    both = traced(RIGHT, (square, True), (oblong, True), (oblong, False))
    assert both.unreached() == []


def test_sizes_in_a_kernel_are_read_as_numbers():
    """Triton wraps each into an object with a `value`."""
    tile = SimpleNamespace(shape=[SimpleNamespace(value=n) for n in (3, 5)])
    tracer = traced("def f(x):\n    y = x  # (B, T)\n    return y\n", (tile,))
    assert tracer.faults == []
    assert tracer.seen == {("f", 2): ((3, 5), {"B": 3, "T": 5})}


def test_a_comment_that_no_run_reaches_is_seen():
    tracer = traced(RIGHT, (torch.ones(3, 5), True))
    assert [line for _, line, _ in tracer.unreached()] == [11, 12, 13]


def test_a_comment_that_belongs_to_nothing_is_seen():
    with pytest.raises(ValueError, match="belongs to nothing"):
        comments("f(x)  # (B, T)\n")


WITHIN = """
def f(x):
    a, b = (
        y + 1  # (B, T)
        for y in (x, x)
    )
    return a, b
"""
BEHIND = """
def f(x):
    a, b = (
        y + 1
        for y in (x, x)
    )  # (B, T)
    return sum(y for y in (a, b))  # (B, T)
"""


def test_a_comment_within_a_generator_is_refused_with_its_place():
    message = r"^f:4: # \(B, T\) is within a generator, .* \(line 6\)$"
    with pytest.raises(ValueError, match=message):
        traced(WITHIN, (torch.ones(3, 5),))


def test_a_comment_behind_a_generator_is_of_its_statement():
    x = torch.ones(3, 5)
    tracer = traced(BEHIND, (x,))
    assert (tracer.faults, tracer.unreached()) == ([], [])
    swapped = BEHIND.replace(")  # (B, T)", ")  # (T, B, 1)")
    assert [f[:4] for f in traced(swapped, (x,)).faults] == 2 * ["f:6:"] + [
        "f:7:"
    ]
