"""The three forms of MLA, at any chunk and cache."""

import pytest
import torch

import attnref
from attnref.numbers.cost import mla_cost
from sitekit.drawing.terms import terms
from sitekit.drawn import absorption
from tests.kit.live import computed, equal

D_MODEL = 1024


@pytest.mark.parametrize("model", absorption.MODELS)
def test_its_numbers_are_those_of_the_package(show, model):
    """Without the projections that all forms share: those of a layer, but for
    `kv_b_proj`. The form that is recommended is the one that a layer takes."""
    shape = {
        long: absorption.live()["models"][model][name]
        for name, long in absorption.LONG.items()
    } | {"d_model": D_MODEL}
    with torch.device("meta"):
        layer = attnref.MultiHeadLatentAttention(**shape, q_lora_rank=None)
    shared = sum(
        p.numel()
        for name, p in layer.named_parameters()
        if p.dim() == 2 and "kv_b" not in name
    )
    states, parts, crossings, forms = [], [], [], []
    for cache in (4, 5, 9, 12, 17):
        past = 2**cache if cache > 4 else 0
        widths = {
            k: shape[k]
            for k in ("kv_lora_rank", "qk_nope_head_dim", "v_head_dim")
        }
        for T in (1, 2, 16, 164, 165, 401, 4096):
            states.append({"model": model, "T": T, "cache": cache})
            costs = [
                mla_cost(**shape, form=form, new=T, past=past)
                for form in ("expanded", "latent", "absorbed")
            ]
            parts.append(
                [
                    [
                        c.projections - 2 * T * shared,
                        c.scores + c.values,
                        2 * c.cached,
                    ]
                    for c in costs
                ]
            )
            crossings.append(
                [
                    attnref.crossover(**widths, past=past),
                    attnref.crossover(**widths),
                ]
            )
            forms.append(attnref.form_of(layer, T, past))
    results = computed(show("absorb"), "absorb", states)
    equal([r["parts"] for r in results], parts, 0)
    equal([[r["here"], r["limit"]] for r in results], crossings)
    names = ("expanded", "latent", "absorbed")
    assert [names[r["best"]] for r in results] == forms
    flops = torch.tensor(parts)[..., :2].sum(-1)
    equal([r["flops"] for r in results], flops)
    # As the figure says of every state with a cache.
    assert (flops[:, 0] <= flops[:, 1:].amin(-1)).all()


def said(page, name, **state):
    return page.evaluate(
        """([name, state]) => {
          const box = document.querySelector(`[data-live="${name}"]`);
          box.figure.change({ ...live.figures[name].usual, ...state });
          return box.querySelector(".said").textContent;
        }""",
        [name, state],
    )


@pytest.mark.parametrize("model", absorption.MODELS)
def test_what_it_says_follows_the_form_and_the_crossover(show, model):
    page = show("absorb")
    for cache, T in ((4, 16), (5, 16), (12, 16), (12, 164), (17, 4096)):
        for form in ("expanded", "latent", "absorbed"):
            state = {"model": model, "cache": cache, "T": T, "form": form}
            text = said(page, "absorb", **state)
            (result,) = computed(page, "absorb", [state])
            _, latent, absorbed = result["flops"]
            assert text.startswith(form.capitalize())
            if cache == 4:
                assert "never saves FLOPs" in text
                assert absorbed >= latent
                continue
            ratio = latent / absorbed
            assert ("within 5%" in text) == (1 / 1.05 < ratio < 1.05)
            for times, first in (
                (ratio, "latent"),
                (1 / ratio, "absorbed"),
            ):
                sentence = f"The {first} form needs {times:.1f} times the FLOPs"
                assert (sentence in text) == (times >= 1.05)
            here, limit = round(result["here"]), round(result["limit"])
            assert f"brings {here} new tokens" in text
            assert f"({limit} in a long cache)" in text


def test_terms_are_the_products_that_add_up_to_a_function():
    got = terms(lambda a, b, c: 3 * a * b - a + 7 * c, a=1, b=2, c=5)
    assert sorted(got) == [[-1, "a"], [3, "a", "b"], [7, "c"]]
