"""Query heads that share key/value heads."""

from dataclasses import replace

import pytest
import torch

from attnref.layers.gqa import grouped_query_loop
from attnref.numbers.kv_memory import kv_bytes, size
from attnref.released.specs import find_model
from sitekit.drawn import gqa
from tests.kit.live import computed, equal


def test_a_head_reads_the_head_that_the_loop_gives_it(show):
    """The loop of the package with as many heads as the model has, and its
    keys and values put in the figure's order, head by head."""
    page = show("gqa")
    states, wanted, tiled = [], [], []
    for n, model in enumerate(gqa.sharing()):
        for K in (c["heads"] for c in model["caches"]):
            order = torch.arange(K)
            group = model["heads"] // K
            states += [{"model": n, "K": K, "repeat": r} for r in (False, True)]
            wanted.append(order.repeat_interleave(group).tolist())
            tiled.append(order.repeat(group).tolist())
    results = computed(page, "gqa", states)
    assert [r["reads"] for r in results[::2]] == wanted
    assert [r["reads"] for r in results[1::2]] == tiled
    for result, right in zip(results[1::2], wanted, strict=True):
        pairs = zip(result["reads"], right, strict=True)
        assert result["wrong"] == [a != b for a, b in pairs]
    x = torch.randn(2, 5, 64, dtype=torch.float64)
    for result in results[::2][:6]:
        H = result["heads"]
        K = H // result["group"]
        wq, wk, wv = (
            torch.randn(n, 64, 4, dtype=torch.float64) for n in (H, K, K)
        )
        wo = torch.randn(H * 4, 64, dtype=torch.float64)
        alone = grouped_query_loop(
            x, wq, wk[result["reads"]], wv[result["reads"]], wo
        )
        equal(alone.tolist(), grouped_query_loop(x, wq, wk, wv, wo))


@pytest.mark.parametrize("n", range(len(gqa.MODELS)))
def test_its_bytes_are_those_of_the_package(show, n):
    page = show("gqa")
    model = find_model(gqa.MODELS[n])
    (group,) = model.groups
    lengths = (10, 14, 17, 20)
    of_figure = gqa.sharing()[n]
    K_of = [c["heads"] for c in of_figure["caches"]]
    assert {1, group.kv_heads, group.q_heads} <= {*K_of}
    assert of_figure["kv_heads"] == group.kv_heads
    states = [{"model": n, "K": K, "length": t} for K in K_of for t in lengths]
    for state, result in zip(
        states, computed(page, "gqa", states), strict=True
    ):
        shared = replace(group, kv_heads=state["K"])
        with_heads = replace(model, groups=(shared,))
        assert result["token"] == kv_bytes(with_heads, 1)
        assert result["size"] == size(
            kv_bytes(with_heads, 2 ** state["length"])
        )


def test_the_models_of_its_list_are_those_of_its_data(show):
    for language in ("en", "zh"):
        page = show("gqa", language)
        listed = page.locator("[name=model] option").all_text_contents()
        assert listed == [m["name"] for m in gqa.sharing()]


def test_until_it_is_moved_the_number_of_heads_is_that_of_the_model(show):
    states = [{"model": n} for n in range(len(gqa.MODELS))]
    results = computed(show("gqa"), "gqa", states)
    assert [r["K"] for r in results] == [m["kv_heads"] for m in gqa.sharing()]
    assert {r["K"] for r in results} == {1, 4, 8}
