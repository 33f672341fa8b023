import pytest
import torch


def test_alibi_is_a_bias_of_keys_alone():
    # --8<-- [start:alibi]
    from attnref import Alibi, causal_mask, sdpa

    q, k, v = torch.randn(3, 3, 8, 7, 5)
    mask = causal_mask(7)
    out = sdpa(q, k, v, mask, bias=Alibi(8))

    # Softmax ignores what is the same in a row: the position of the query.
    slopes = 2.0 ** -torch.arange(1, 9)[:, None, None]
    of_keys = slopes * torch.arange(7)  # (H, 1, S)
    torch.testing.assert_close(sdpa(q, k, v, mask, bias=of_keys), out)

    one = sdpa(q[:, :, 6:], k, v, bias=Alibi(8))  # a decode step
    torch.testing.assert_close(one, out[:, :, 6:])
    # --8<-- [end:alibi]


def test_a_bias_is_built_in_tiles_and_learned():
    # --8<-- [start:relative]
    from attnref import Causal, RelativeBias, RuleMask, flash, sdpa

    table = torch.randn(32, 6, requires_grad=True)
    bias = RelativeBias(table)
    mask = RuleMask(Causal(), T=200, S=200, past=0)
    q, k, v = torch.randn(3, 2, 6, 200, 8)
    out = flash(q, k, v, mask, bias=bias)  # one tile of (T, S) at a time
    want = sdpa(q, k, v, mask, bias=bias)
    torch.testing.assert_close(out, want)
    (got,) = torch.autograd.grad(out.square().sum(), table)
    (expected,) = torch.autograd.grad(want.square().sum(), table)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-3)
    # --8<-- [end:relative]


def test_a_bias_of_ones_own_in_a_layer():
    # --8<-- [start:own]
    from attnref import Bias, GroupedQueryAttention, Scores

    class Recent(Bias):
        """The last three keys are preferred in every head."""

        n_heads = 6

        def __call__(self, h, i, j):
            return torch.where((i - j).abs() < 3, 1.0, 0.0) + 0 * h

    sizes = {"d_model": 48, "n_heads": 6, "n_kv_heads": 2}
    layer = GroupedQueryAttention(**sizes, scores=Scores(bias=Recent()))
    plain = GroupedQueryAttention(**sizes)
    plain.load_state_dict(layer.state_dict())
    x = torch.randn(3, 7, 48)
    assert not torch.allclose(layer(x), plain(x))
    # --8<-- [end:own]


@pytest.mark.parametrize(
    ("rows", "options", "classes"),
    [
        (1, {}, [0, 0, 0, 0, 0, 0]),
        (2, {}, [1, 1, 1, 1, 0, 0]),
        (3, {"max_distance": 9, "bidirectional": True}, [0, 0, 0, 0, 2, 2]),
        (5, {"max_distance": 3}, [4, 4, 2, 1, 0, 0]),
    ],
)
def test_a_few_classes_are_as_good_as_many(rows, options, classes):
    from attnref import RelativeBias

    bias = RelativeBias(torch.arange(float(rows))[:, None], **options)
    distances = torch.tensor([200, 3, 2, 1, 0, -1])
    if options.get("bidirectional"):
        distances[-2] = -9
    got = bias(torch.tensor(0), distances, torch.tensor(0))
    assert got.tolist() == classes


@pytest.mark.parametrize(
    ("rows", "options"),
    [
        (0, {}),
        (1, {"bidirectional": True}),
        (32, {"max_distance": 16}),
        (1, {"max_distance": 1}),
    ],
)
def test_classes_that_have_no_distances_are_refused(rows, options):
    from attnref import RelativeBias

    with pytest.raises(ValueError, match="buckets for keys that are not later"):
        RelativeBias(torch.zeros(rows, 3), **options)
