"""The page use/ship: for each situation the call, and what it must not build.

The rows of its table are `LINES` of sitekit/drawn/ship.py: the test of a
section makes the calls of its rows in the names of its block. CPU only.
"""

# --8<-- [start:imports]
import torch
import torch.nn.functional as F

from attnref import (
    Causal,
    Documents,
    KVCache,
    RuleMask,
    Window,
    attention_weights,
    causal_mask,
    flash,
    flash_lse,
    flex,
    fused,
    fused_backend,
    padding_mask,
    sdpa,
)

# --8<-- [end:imports]
# isort: split
import ast
import re
import textwrap
from pathlib import Path

import pytest
from torch.nn.attention import SDPBackend, sdpa_kernel

from sitekit.drawn import ship
from tests.kit.compare import relative_error

# --8<-- [start:setup]
torch.manual_seed(0)
B, H, K, T, D = 3, 6, 2, 307, 8  # 6 query heads share 2 key/value heads
q = 2 * torch.randn(B, H, T, D, dtype=torch.float64)
k, v = torch.randn(2, B, K, T, D, dtype=torch.float64)
causal = RuleMask(Causal(), T, T, past=0)  # what a causal layer passes on
lengths = torch.tensor([307, 250, 200])
right = torch.arange(T) < lengths[:, None]  # (B, T); True = a real token
left = right.flip(1)
new, one = q[:, :, -100:], q[:, :, -1:]  # the last 100 tokens, the last one
# --8<-- [end:setup]


def check(section, names):
    """The calls of the rows: in the block, right, and as small as it says."""
    names = globals() | names
    text = Path(__file__).read_text("utf-8")
    mark = rf"# --8<-- \[start:{section}\]\n(.*?)# --8<-- \[end:"
    (block,) = re.findall(mark, text, flags=re.S)
    tree = ast.parse(textwrap.dedent(block.rstrip(" ")))
    shown = {ast.unparse(x) for x in ast.walk(tree) if isinstance(x, ast.expr)}
    for key, line in ship.LINES[section].items():
        exact = eval(line.exact, names)
        for call in line.ours, line.theirs:
            parsed = ast.parse(call, mode="eval")
            assert ast.unparse(parsed) in shown, (key, call)
            used = [
                names[x.id] for x in ast.walk(parsed) if isinstance(x, ast.Name)
            ]
            given = [x for x in used if type(x) is torch.Tensor]
            given += [x for y in used if type(y) in (tuple, list) for x in y]
            if "flex_attention" in call or "compile" in call:
                # Not in a dispatch mode.
                out = eval(call, names)
            else:
                with ship.KernelRecorder(given) as seen:
                    out = eval(call, names)
                size = given[0].itemsize
                most = {
                    "inputs": max(x.nbytes for x in given),
                    "tiles": B * H * 128 * 128 * size,
                    "mask": B * H // K * T * T * size,
                    "scores": B * H * T * T * size,
                }
                assert seen.largest <= most[line.largest], (key, call)
                if line.largest != "inputs":  # and it is not said too kindly
                    assert seen.largest > most["inputs"], (key, call)
                if call == line.theirs:
                    scores = line.largest == "scores"
                    assert seen.kernel == ("math" if scores else "flash"), key
            if key == "pads_right":
                out, exact = (x * right[:, None, :, None] for x in (out, exact))
            if key == "half":
                wide = sdpa(
                    *(x.double() for x in names["half"]), causal_mask(T)
                )
                bound = 1.5 * relative_error(exact, wide)
                assert relative_error(out, wide) < bound
            else:
                assert relative_error(out, exact) <= 1e-12, (key, call)


def test_causal():
    # --8<-- [start:causal]
    out = F.scaled_dot_product_attention(
        q, k, v, is_causal=True, enable_gqa=True
    )
    assert torch.allclose(out, sdpa(q, k, v, causal_mask(T)))
    assert torch.allclose(out, fused(q, k, v, causal))

    stored = KVCache(max_len=512).append(k, v)  # T tokens into an empty cache
    out = F.scaled_dot_product_attention(
        q, *stored, is_causal=True, enable_gqa=True
    )
    assert torch.allclose(out, fused(q, *stored, causal))
    # --8<-- [end:causal]
    check("causal", locals())


def test_pads():
    # --8<-- [start:pads]
    # On the right: no real token sees a pad, so no mask is needed.
    out = F.scaled_dot_product_attention(
        q, k, v, is_causal=True, enable_gqa=True
    )
    exact = sdpa(q, k, v, causal_mask(T) & padding_mask(right))
    for row, length in enumerate(lengths):
        assert torch.allclose(out[row, :, :length], exact[row, :, :length])
    assert torch.allclose(out, fused(q, k, v, causal))

    # On the left: both conditions in one mask.
    out = F.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=causal_mask(T) & left[:, None, None],
        enable_gqa=True,
    )
    seen = causal_mask(T) & padding_mask(left)
    assert torch.allclose(out, sdpa(q, k, v, seen))
    assert torch.allclose(
        out, fused(q, k, v, causal_mask(T) & padding_mask(left))
    )

    # Queries of another sequence: a mask of the real keys, no is_causal.
    out = F.scaled_dot_product_attention(
        new, k, v, attn_mask=right[:, None, None], enable_gqa=True
    )
    assert torch.allclose(out, fused(new, k, v, padding_mask(right)))
    # --8<-- [end:pads]
    check("pads", locals())


def test_chunk():
    # --8<-- [start:chunk]
    from torch.nn.attention.bias import causal_lower_right

    N = new.shape[2]  # new tokens, after T - N cached ones
    aligned = causal_lower_right(N, T)
    out = F.scaled_dot_product_attention(
        new, k, v, attn_mask=aligned, enable_gqa=True
    )
    assert torch.allclose(out, sdpa(new, k, v, causal_mask(N, T)))
    assert torch.allclose(
        out, fused(new, k, v, RuleMask(Causal(), N, T, past=T - N))
    )
    # --8<-- [end:chunk]
    check("chunk", locals())


def test_decode():
    # --8<-- [start:decode]
    out = F.scaled_dot_product_attention(one.view(B, K, H // K, D), k, v).view(
        B, H, 1, D
    )
    assert torch.allclose(out, sdpa(one, k, v))
    assert torch.allclose(out, fused(one, k, v))

    # With pads on the left.
    out = F.scaled_dot_product_attention(
        one.view(B, K, H // K, D), k, v, attn_mask=left[:, None, None]
    ).view(B, H, 1, D)
    assert torch.allclose(out, fused(one, k, v, padding_mask(left)))

    # With a window of W tokens: its keys alone, and no mask.
    W = 64
    out = F.scaled_dot_product_attention(
        one.view(B, K, H // K, D), k[:, :, -W:], v[:, :, -W:]
    ).view(B, H, 1, D)
    assert torch.allclose(out, fused(one, k[:, :, -W:], v[:, :, -W:]))
    # --8<-- [end:decode]
    check("decode", locals())


@pytest.mark.filterwarnings("ignore")  # as changed within
def test_rules():
    W = 64
    # --8<-- [start:rules]
    import warnings

    from torch.nn.attention.flex_attention import (
        AuxRequest,
        create_block_mask,
        flex_attention,  # in your project: torch.compile(flex_attention)
    )

    warnings.filterwarnings("ignore", "flex_attention called without torch")
    ids = torch.arange(T) // 120  # three documents in each row

    def in_document(ids):
        return lambda b, h, i, j: (j <= i) & (ids[i] == ids[j])

    def in_window(size):
        return lambda b, h, i, j: (j <= i) & (j > i - size)

    documents, near = (
        create_block_mask(rule, None, None, T, T, device="cpu")
        for rule in (in_document(ids), in_window(W))
    )
    packed = RuleMask(Causal() & Documents(ids), T, T, past=0)
    out = flex_attention(q, k, v, block_mask=documents, enable_gqa=True)
    assert torch.allclose(out, sdpa(q, k, v, packed))
    assert torch.allclose(out, flash(q, k, v, packed))
    assert torch.allclose(out, flex(q, k, v, packed, compiled=False))

    window = RuleMask(Window(W), T, T, past=0)
    out = flex_attention(q, k, v, block_mask=near, enable_gqa=True)
    assert torch.allclose(out, sdpa(q, k, v, window))
    assert torch.allclose(out, flash(q, k, v, window))

    # The log-sum-exp, by which parts are merged.
    lse = flex_attention(
        q,
        k,
        v,
        block_mask=documents,
        enable_gqa=True,
        return_aux=AuxRequest(lse=True),
    )[1].lse
    assert torch.allclose(lse, flash_lse(q, k, v, packed)[1])
    # --8<-- [end:rules]
    rows = q.reshape(B, K, -1, D) @ k.mT * D**-0.5
    scores = rows.view(B, H, T, T)
    check("rules", locals())


def test_mla():
    # --8<-- [start:mla]
    DN, DR, R = 16, 8, 32  # 128, 64 and 512 in DeepSeek-V3
    wide_q, wide_k = torch.randn(2, B, H, T, DN + DR, dtype=torch.float64)
    v_mla = torch.randn(B, H, T, DN, dtype=torch.float64)
    out = F.scaled_dot_product_attention(
        wide_q, wide_k, F.pad(v_mla, (0, DR)), is_causal=True
    )[..., :DN]
    assert torch.allclose(out, sdpa(wide_q, wide_k, v_mla, causal_mask(T)))
    assert torch.allclose(out, fused(wide_q, wide_k, v_mla, causal))

    # One token, absorbed: all heads read one entry, which is also the value.
    absorbed = torch.randn(B, H, 1, R + DR, dtype=torch.float64)
    entry = torch.randn(B, 1, T, R + DR, dtype=torch.float64)
    scale = (DN + DR) ** -0.5  # and not that of the width of an entry
    out = F.scaled_dot_product_attention(
        absorbed.transpose(1, 2), entry, entry, scale=scale
    )[..., :R].transpose(1, 2)
    exact = sdpa(absorbed, entry, entry[..., :R], scale=scale)
    assert torch.allclose(out, exact)
    assert torch.allclose(
        out, fused(absorbed, entry, entry[..., :R], scale=scale)
    )
    # --8<-- [end:mla]
    check("mla", locals())


def test_more():
    # --8<-- [start:more]
    from torch.nn.attention import SDPBackend, sdpa_kernel

    # The weights: attention to the rows of the identity.
    eye = torch.eye(T, dtype=torch.float64).expand(B, K, T, T)
    weights = F.scaled_dot_product_attention(
        q, k, eye, is_causal=True, enable_gqa=True
    )
    assert torch.allclose(weights, attention_weights(q, k, causal))

    # A second derivative.
    out = sdpa_kernel(SDPBackend.MATH)(F.scaled_dot_product_attention)(
        q, k, v, is_causal=True, enable_gqa=True
    )
    assert torch.allclose(out, sdpa(q, k, v, causal))

    # Half precision: the dtype of the inputs is that of the output.
    half = [x.bfloat16() for x in (q, k, v)]
    out = F.scaled_dot_product_attention(*half, is_causal=True, enable_gqa=True)
    assert torch.allclose(out, fused(*half, causal))

    # Compiled; in your project, leave `backend` out.
    exact = sdpa(q, k, v, causal)
    out = torch.compile(fused, backend="eager")(q, k, v, causal)
    assert torch.allclose(out, exact)
    out = torch.compile(F.scaled_dot_product_attention, backend="eager")(
        q, k, v, is_causal=True, enable_gqa=True
    )
    assert torch.allclose(out, exact)
    # --8<-- [end:more]
    check("more", locals())


def test_fused():
    # --8<-- [start:equal]
    random = torch.rand(B, H, T, T) > 0.3  # another mask for each head
    random[0, :, 2] = False  # a query that sees no key
    wide = torch.randn(B, K, T, 13, dtype=torch.float64)
    for mask in None, causal, padding_mask(left), random:
        for values in v, wide:
            ours = fused(q, k, values, mask, scale=0.4)
            assert torch.allclose(ours, sdpa(q, k, values, mask, scale=0.4))
    assert (ours[0, :, 2] == 0).all()

    # Which of PyTorch's kernels it takes.
    assert fused_backend(q, k, v, causal) == "flash"
    assert fused_backend(q, k, v, causal, dropout=0.1) == "math"
    # --8<-- [end:equal]
    few = [x[:, :, :7] for x in (q, k, wide)]
    for mask in None, padding_mask(right[:, -7:]), random[..., :7, :7]:
        dropped = []
        for core in sdpa, fused:
            torch.manual_seed(1)
            dropped.append(core(*few, mask, dropout=0.4))
        assert relative_error(*dropped) <= 1e-12
        for dtype in torch.bfloat16, torch.float16:
            half = [x.to(dtype) for x in few]
            exact = sdpa(*(x.double() for x in half), mask)
            ours, theirs = (
                relative_error(core(*half, mask), exact)
                for core in (sdpa, fused)
            )
            assert theirs < 1.5 * ours


def test_fused_memory():
    """Torch makes floats of a mask, once for all heads. A layer's own causal
    rule, with no pads, needs none."""
    for groups in (8, 2):
        q, k, v = (torch.randn(1, n, 512, 16) for n in (8, groups, groups))
        lazy, mask = RuleMask(Causal(), 512, 512, 0), causal_mask(512)
        largest = []
        for core, given in (sdpa, mask), (fused, mask), (fused, lazy):
            with ship.KernelRecorder((q, k, v, mask)) as seen:
                core(q, k, v, given)
            largest.append(seen.largest)
        scores = 512 * 512 * 4  # of one head
        assert largest == [8 * scores, scores, q.nbytes]


@torch.no_grad()
def test_swap():
    # --8<-- [start:swap]
    from attnref import GroupedQueryAttention
    from attnref.core.masks import dense

    def own(q, k, v, mask=None, *, scale=None, dropout=0.0):
        """Any function with the signature of `sdpa` is a core."""
        return F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=dense(mask),
            dropout_p=dropout,
            scale=scale,
            enable_gqa=q.shape[1] > k.shape[1],
        )

    layer = GroupedQueryAttention(
        d_model=48, n_heads=6, n_kv_heads=2, rope_theta=10000.0, attend=fused
    )
    x = torch.randn(3, 9, 48)
    with torch.no_grad():
        cache = KVCache(max_len=9)  # a prompt, one token, a chunk
        parts = [layer(t, cache=cache) for t in x.split([5, 1, 3], dim=1)]
        for core in sdpa, own:  # or later; the weights stay the same
            layer.attend = core
            out = layer(x)
            assert torch.allclose(torch.cat(parts, dim=1), out, atol=1e-6)
    # --8<-- [end:swap]
    assert relative_error(torch.cat(parts, dim=1), out) < 1e-5


@pytest.mark.filterwarnings("ignore")  # each reason is a warning
def test_kernels():
    kernels = {key: seen.kernel for key, seen in ship.recorders().items()}
    fused_ones = {"plain", "bool", "grouped", "padded"}
    assert {key for key in kernels if kernels[key] == "flash"} == fused_ones
    inputs = 4 * ship.HEADS * ship.TOKENS * ship.WIDTH
    mask = 4 * ship.TOKENS**2
    for key, seen in ship.recorders().items():
        least = ship.HEADS * mask if kernels[key] == "math" else inputs
        assert seen.largest == (mask if key == "bool" else least), key
    fused_only = sdpa_kernel(SDPBackend.FLASH_ATTENTION)
    with fused_only, pytest.raises(RuntimeError, match="No available kernel"):
        F.scaled_dot_product_attention(q, k, v[..., :6], enable_gqa=True)
    rows = [*ship.kernels()]
    assert [row[0].key for row in rows] == [*ship.CALLS]
    assert rows[0][2:] == [ship.Word("flash"), "2 MiB"]
    assert {f"test_{section}" for section in ship.LINES} < {*globals()}


def test_traps():
    # --8<-- [start:traps]
    attend = F.scaled_dot_product_attention
    x, k, v = torch.randn(3, 3, 2, 5, 8)

    # Ones and zeros as floats are added to the scores and hide nothing.
    valid = torch.tensor([[1, 1, 1, 0, 0]])[:, None, None]
    bools = attend(x, k, v, attn_mask=valid.bool())
    assert torch.allclose(bools, sdpa(x, k, v, valid.bool()), atol=1e-5)
    floats = attend(x, k, v, attn_mask=valid.float())
    assert (floats - bools).abs().max() > 0.1

    # Additive masks: with the smallest float, a query that should see no
    # key takes the mean of all values; with -inf it is zero, as for bool.
    hidden = torch.full((1, 5), torch.finfo(x.dtype).min)
    mean = v.mean(dim=2, keepdim=True).expand(x.shape)
    assert torch.allclose(attend(x, k, v, attn_mask=hidden), mean, atol=1e-5)
    hidden = torch.full((1, 5), -torch.inf)
    assert (attend(x, k, v, attn_mask=hidden) == 0).all()
    assert (attend(x, k, v, attn_mask=hidden == 0) == 0).all()

    # (B, T, S) is read as (H, T, S), and no error is raised if B = H.
    two, k2, v2 = x[:2], k[:2], v[:2]  # B = H = 2
    rows = torch.rand(2, 5, 5) > 0.5
    read = attend(two, k2, v2, attn_mask=rows)
    assert torch.allclose(read, sdpa(two, k2, v2, rows[None]), atol=1e-5)
    meant = sdpa(two, k2, v2, rows[:, None])
    assert not torch.allclose(read, meant, atol=0.1)

    # Stacked heads: is_causal takes the queries of the second head for
    # later tokens, and hides nothing from them.
    group = k[:, :1], v[:, :1]  # the two query heads share them
    stacked = attend(x.view(3, 1, 10, 8), *group, is_causal=True)
    first, second = stacked.view(3, 2, 5, 8).unbind(dim=1)
    exact = sdpa(x, *group, causal_mask(5))
    assert torch.allclose(first, exact[:, 0], atol=1e-5)
    assert torch.allclose(second, sdpa(x, *group)[:, 1], atol=1e-5)

    # (B, T, H, D) is taken for T heads with H tokens each.
    swapped = [t.transpose(1, 2) for t in (x, k, v)]
    crossed = attend(*swapped).transpose(1, 2)
    assert not torch.allclose(crossed, attend(x, k, v), atol=0.1)

    # The scale follows the width: widened by zeros, the scores shrink.
    wider = attend(F.pad(x, (0, 24)), F.pad(k, (0, 24)), v)
    assert torch.allclose(wider, sdpa(x, k, v, scale=32**-0.5), atol=1e-5)

    # It does not know whether the model is in training.
    one, two = (attend(x, k, v, dropout_p=0.5) for _ in range(2))
    assert not torch.equal(one, two)
    # --8<-- [end:traps]
    with pytest.raises(RuntimeError, match="to have the same dtype"):
        attend(x.double(), k, v)
