"""Both bars of the roofline, of a decode step and of a prompt."""

from random import Random

import pytest

from attnref.numbers.cost import attention_cost
from attnref.numbers.kv_memory import DTYPES, kv_bytes, weight_bytes
from attnref.released.specs import find_model
from sitekit.drawn import operations
from tests.kit.live import computed, equal

TYPES = ("bf16", "fp8", "int4")
# Widths of the feed-forward part, from which the sizes of a whole model follow.
HIDDEN = {
    "llama-3.1-8b": 14_336,
    "llama-3.1-70b": 28_672,
    "llama-3.1-405b": 53_248,
    "llama-2-7b": 11_008,
}


def least(id, gpu, state):
    """What both passes take, by the functions of the package alone."""
    model, (width, rows) = find_model(id), operations.DENSE[id]
    (group,) = model.groups
    batch, tokens, ranks = (
        2 ** state["batch"],
        2 ** state["tokens"],
        state["ranks"],
    )
    read = model.params - rows * width
    layer = {
        "d_model": width,
        "n_heads": group.q_heads,
        "n_kv_heads": group.kv_heads,
        "head_dim": group.head_dim,
    }
    weights = read * DTYPES[state["weights"]].bits / 8 / ranks
    how = {"dtype": state["cache"], "ranks": ranks}
    step = attention_cost(**layer, batch=batch, past=tokens - 1)
    # Each query of a prompt with half of the keys, and one key more.
    whole = attention_cost(**layer, new=tokens)
    causal = (tokens + 1) / 2 / tokens
    in_bytes = [
        (weights, kv_bytes(model, tokens, batch=batch, **how)),
        (weights, kv_bytes(model, tokens, **how)),
    ]
    in_flops = [
        (2 * batch * read, group.layers * (step.scores + step.values)),
        (
            2 * tokens * (read - rows * width) + 2 * rows * width,
            group.layers * (whole.scores + whole.values) * causal,
        ),
    ]
    rates = (
        [[1e3 * n / gpu.bandwidth for n in pair] for pair in in_bytes],
        [[1e3 * n / gpu.peak / ranks for n in pair] for pair in in_flops],
    )
    decode, prompt = ([*a, *b] for a, b in zip(*rates, strict=True))
    stored = weight_bytes(model, state["weights"], ranks=ranks) + in_bytes[0][1]
    return decode, prompt, stored


def test_its_times_are_those_of_the_package(show):
    random, page = Random(5), show("roofline")
    gpus = [*operations.GPUS.values()]
    states = [
        {
            "model": random.randrange(len(operations.DENSE)),
            "gpu": random.randrange(len(gpus)),
            "batch": random.randrange(11),
            "tokens": random.randrange(9, 18),
            "ranks": random.choice((1, 2, 4, 8)),
            "weights": random.choice(TYPES),
            "cache": random.choice(TYPES),
        }
        for _ in range(40)
    ]
    for state, result in zip(
        states, computed(page, "roofline", states), strict=True
    ):
        gpu = gpus[state["gpu"]]
        decode, prompt, stored = least(
            [*operations.DENSE][state["model"]], gpu, state
        )
        equal(result["decode"], decode)
        equal(result["prompt"], prompt)
        rate, fits = result["line"][state["batch"]]
        slower = max(sum(decode[:2]), sum(decode[2:]))
        assert rate == pytest.approx(1e3 * 2 ** state["batch"] / slower)
        assert result["taken"] == stored
        assert fits == (stored <= gpu.memory)
        twice = {**state, "batch": state["batch"] + 1}
        later, _, more = least([*operations.DENSE][state["model"]], gpu, twice)
        assert result["slower"] == pytest.approx(
            max(sum(later[:2]), sum(later[2:])) / slower
        )
        assert result["room"] == (more <= gpu.memory)
        half = decode[0] + decode[1] / 2
        assert result["gain"] == pytest.approx(
            slower / max(half, sum(decode[2:]))
        )


def test_what_more_sequences_cost_is_a_number(show):
    """As is what a smaller cache brings: no word stands for either."""
    page = show("roofline")
    for state in (
        {},
        {"batch": 4},
        {"model": 2, "gpu": 3, "ranks": 4, "weights": "int4", "cache": "int4"},
        {"batch": 10, "tokens": 9},
        {"batch": 7},
    ):
        (result,) = computed(page, "roofline", [state])
        text = page.evaluate(
            """(state) => {
              const { figure } = document.querySelector(".live");
              figure.change({ ...live.figures.roofline.usual, ...state });
              return figure.box.querySelector(".said").textContent;
            }""",
            state,
        )
        if not result["line"][state.get("batch", 3)][1]:
            assert text.startswith("No room")
            continue
        read, work = sum(result["decode"][:2]), sum(result["decode"][2:])
        by_cache = work <= read and result["decode"][1] > result["decode"][0]
        twice = (
            "There is no room for twice as many."
            if not result["room"]
            else f"Twice the sequences bring {2 / result['slower']:.2f} times"
            if by_cache
            else f"Twice the sequences take {result['slower']:.2f} times"
        )
        assert twice in text
        half = f"half the size brings {result['gain']:.2f} times the tokens"
        assert (half in text) == by_cache


@pytest.mark.parametrize("id", operations.DENSE)
def test_the_sizes_of_its_models_give_their_parameters(id):
    sizes, (width, rows) = operations.sizes_of(id), operations.DENSE[id]
    (group,) = find_model(id).groups
    heads = group.q_heads + group.kv_heads
    layer = (
        2 * width * heads * group.head_dim + 3 * width * HIDDEN[id] + 2 * width
    )
    read = group.layers * layer + rows * width + width
    assert sizes["read"] == read
    assert sizes["params"] == read + rows * width


def test_its_lists_are_those_of_its_data(show):
    data = operations.roof()
    for language in ("en", "zh"):
        page = show("roofline", language)
        models, gpus = (
            page.locator(f"[name={n}] option").all_text_contents()
            for n in ("model", "gpu")
        )
        assert models == [m["name"] for m in data["models"]]
        for listed, gpu in zip(gpus, data["gpus"], strict=True):
            assert {*listed.replace(",", "").split()} & {*gpu["name"].split()}
