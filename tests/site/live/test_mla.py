"""What MHA, GQA and MLA store for the same heads."""

import pytest

from attnref.numbers.cost import attention_cost, mla_cost
from attnref.numbers.kv_memory import size
from sitekit.drawn import absorption
from tests.kit.live import computed, equal


def test_its_numbers_are_those_of_the_package(show):
    page = show("mla")
    own = {"model": "own", "layers": 7}
    states = [
        own | dict(zip(("H", "R", "Dr", "D", "K", "tokens"), n, strict=True))
        for n in (
            (8, 32, 8, 64, 0, 10),
            (64, 768, 128, 128, 2, 14),
            (128, 512, 64, 192, 3, 20),
        )
    ]
    for state, result in zip(
        states, computed(page, "mla", states), strict=True
    ):
        tokens, H, D = 2 ** state["tokens"], state["H"], state["D"]
        heads = {"n_heads": H, "head_dim": D, "d_model": 512}
        mla = {
            "n_heads": H,
            "kv_lora_rank": state["R"],
            "qk_nope_head_dim": D,
            "qk_rope_head_dim": state["Dr"],
            "v_head_dim": D,
            "d_model": 512,
        }

        def both(of, K=0, heads=heads, mla=mla, layers=state["layers"]):
            costs = [
                attention_cost(**heads, n_kv_heads=K, past=n - 1)
                if K
                else mla_cost(**mla, past=n - 1)
                for n in (1, of)
            ]
            return [2 * costs[0].cached, 2 * layers * costs[1].cached]

        want = {
            "mha": both(tokens, H),
            "gqa": both(tokens, 2 ** state["K"]),
            "mqa": both(tokens, 1),
            "mla": both(tokens),
        }
        assert result["bytes"] == want
        latent, absorbed = (
            mla_cost(**mla, form=form, past=tokens - 1)
            for form in ("latent", "absorbed")
        )
        up = 2 * H * state["R"] * 2 * D
        equal([result["once"], result["again"]], [up, tokens * up], 0)
        assert latent.projections - absorbed.projections == (tokens - 1) * up


@pytest.mark.parametrize("model", ["deepseek-v3", "minicpm3-4b"])
def test_a_model_has_the_sizes_of_its_configuration(show, model):
    (result,) = computed(show("mla"), "mla", [{"model": model, "H": 8}])
    sizes = absorption.live_mla()["models"][model]
    assert sizes["Dn"] == sizes["Dv"] == result["sizes"]["D"]
    assert all(result["sizes"][name] == n for name, n in sizes.items())


def test_bytes_are_written_as_the_package_writes_them(show):
    numbers = [1, 512, 1023, 1024, 336855040, 2**30, 5.0625 * 2**20, 10**12]
    page = show("mla")
    got = page.evaluate("numbers => numbers.map(live.bytes)", numbers)
    assert got == [size(n) for n in numbers]
