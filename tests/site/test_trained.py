"""Two layers that learn to repeat: the page `learn/trained`.

Losses, answers and attention weights are kept in `sitekit/drawn/trained.json`,
and the parameters of the right model, in bfloat16, which `caches/same-output`
runs again. After a change, `python -m tests.site.test_trained` trains each
model and writes the file, in half a minute.
"""

import json
from base64 import b64decode, b64encode

import pytest

from attnref.judge.catalogue import Plain, catalogue, every_variant
from sitekit.drawn import trained
from tests.kit.site import opened

# isort: split
# --8<-- [start:model]
import torch
import torch.nn.functional as F
from torch import nn

from attnref.plain.gqa import GQA


class Layers(nn.Module):
    """Attention alone: no feed-forward network between the layers."""

    def __init__(self, n_layers=2, d_model=64, attention=GQA):
        super().__init__()
        self.embed = nn.Embedding(SYMBOLS, d_model)
        # In 24 tokens, theta=10 turns even the slowest pair, by 2.8 radians.
        self.layers = nn.ModuleList(
            attention(d_model, n_heads=2, n_kv_heads=2, theta=10.0)
            for _ in range(n_layers)
        )
        self.norms = nn.ModuleList(
            nn.RMSNorm(d_model) for _ in range(n_layers + 1)
        )
        self.head = nn.Linear(d_model, SYMBOLS, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        for norm, layer in zip(self.norms[:-1], self.layers, strict=True):
            x = x + layer(norm(x))
        return self.head(self.norms[-1](x))


# --8<-- [end:model]


# --8<-- [start:task]
SYMBOLS, LENGTH = 16, 24


def repeated(rows):
    """In each row 5 to 10 different symbols, in any order, again and again."""
    word = torch.rand(rows, SYMBOLS).argsort(dim=1)
    period = torch.randint(5, 11, (rows, 1))
    return word.gather(1, torch.arange(LENGTH) % period), period


def losses(model, tokens, period):
    """The mean loss where a symbol is new, and where it was seen before."""
    logits = model(tokens[:, :-1])
    each = F.cross_entropy(logits.mT, tokens[:, 1:], reduction="none")
    again = torch.arange(1, LENGTH) > period
    return each[~again].mean(), each[again].mean()


def train(model, steps=300):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)
    course = []
    for _ in range(steps):
        new, again = losses(model, *repeated(rows=32))
        optimizer.zero_grad()
        (new + again).backward()
        optimizer.step()
        course.append((new.item(), again.item()))
    return course


# --8<-- [end:task]


# --8<-- [start:weights]
@torch.no_grad()
def weights(model, tokens):
    """The attention weights (H, T, T) of each layer, whatever its code does."""
    sdpa, result = F.scaled_dot_product_attention, []

    def record(q, k, v, *args, **kwargs):
        units = torch.eye(v.shape[-2]).expand(*v.shape[:2], -1, -1)
        result.append(sdpa(q, k, units, *args, **kwargs)[0])
        return sdpa(q, k, v, *args, **kwargs)

    F.scaled_dot_product_attention = record
    try:
        model(tokens)
    finally:
        F.scaled_dot_product_attention = sdpa
    return result


# --8<-- [end:weights]


@torch.no_grad()
def completed(model):
    """The share of 256 rows that are continued without a fault."""
    torch.manual_seed(1)
    whole, _ = repeated(rows=256)
    tokens = whole[:, : LENGTH // 2]
    for _ in range(LENGTH - LENGTH // 2):
        new = model(tokens)[:, -1].argmax(dim=-1, keepdim=True)
        tokens = torch.cat((tokens, new), dim=1)
    return (tokens == whole).all(dim=1).double().mean().item()


def attention_of(name):
    """The plain form with this mistake of the catalogue in it."""
    if name not in catalogue():
        return GQA
    variant = next(
        v
        for v in every_variant(catalogue()[name])
        if {lines.module for lines in v} == {"plain.gqa"}
    )
    return Plain(variant).gqa.GQA


def trained_as(name):
    torch.manual_seed(0)
    n_layers = 1 if name == "one" else 2
    model = Layers(n_layers=n_layers, attention=attention_of(name))
    return model, train(model)


def outcome(name):
    model, course = trained_as(name)
    torch.manual_seed(2)
    with torch.no_grad():
        new, again = losses(model, *repeated(rows=256))
    example = torch.tensor([[ord(s) - ord("A") for s in trained.EXAMPLE]])
    heads = torch.cat(weights(model, example))
    return {
        "name": name,
        "new": round(new.item(), 2),
        "again": round(again.item(), 2),
        "completed": round(completed(model), 2),
        "course": [[round(x, 2) for x in pair] for pair in course[::5]],
        "heads": (100 * heads).round().int().tolist(),
    }


# Training takes three seconds: `make test` does it once, on the page.
@pytest.mark.audit
@pytest.mark.parametrize("name", trained.RUNS)
def test_training_again_gives_what_the_page_says(name):
    """Losses depend a little on the processor; what they show does not."""
    recorded, now = trained.run(name), outcome(name)
    for key in ("new", "again", "completed"):
        assert now[key] == pytest.approx(recorded[key], abs=0.3)
    assert trained.kinds(now) == trained.kinds(recorded)


def test_what_the_page_says_is_what_was_recorded():
    floor = trained.FLOOR
    right, one, blind, scrambled, over_heads = map(trained.run, trained.RUNS)
    assert right["again"] < 0.15 and right["completed"] > 0.9
    assert one["again"] > 1 and one["completed"] < 0.05
    assert blind["new"] < 0.1 and blind["completed"] < 0.1
    assert scrambled["new"] < floor - 0.4 and scrambled["completed"] < 0.1
    assert over_heads["again"] > 3 * right["again"]
    rows = {row[0].key: row[1:] for row in trained.trainings()}
    assert [word.key for word in rows["not-causal"][-1]] == ["next"]
    assert [word.key for word in rows["right"][-1]] == [
        *("other", "before", "after")
    ]
    last = [row for row in trained.course().rows if row[1] == "200"]
    assert float(last[0][3]) < 0.3 < float(last[1][3])


@pytest.mark.parametrize("number", range(4))
def test_a_head_is_drawn_as_it_was_recorded(number):
    head = trained.head("right", number)
    drawn = head.drawing(("query", "key"), title="a head").svg
    assert drawn.count("h10v10") == sum(w >= 5 for r in head.weights for w in r)
    for t, row in enumerate(head.weights):
        assert abs(sum(row) - 100) < 5 and not any(row[t + 1 :])


def test_layers_of_attention_learn_to_repeat():
    # --8<-- [start:learns]
    torch.manual_seed(0)
    model = Layers()
    train(model)
    tokens, period = repeated(rows=256)
    new, again = losses(model, tokens, period)
    assert again < 0.25 < 2.5 < new

    one_row = torch.arange(8).repeat(2)[None]
    first, second = weights(model, one_row)
    before = first[:, 8:].diagonal(7, 1, 2).mean(dim=1)
    after_the_same = second[:, 8:].diagonal(1, 1, 2).mean(dim=1)
    assert before.max() > 0.3 and after_the_same.max() > 0.6
    # --8<-- [end:learns]
    assert torch.allclose(first.sum(dim=-1), torch.ones(2, 16))
    # --8<-- [start:break]
    import attnref.plain.gqa as plain

    rope, plain.rope = plain.rope, lambda x, positions, theta: x
    first, second = weights(model, one_row)
    plain.rope = rope
    before = first[:, 8:].diagonal(7, 1, 2).mean(dim=1)
    after_the_same = second[:, 8:].diagonal(1, 1, 2).mean(dim=1)
    assert before.max() < 0.2 and after_the_same.max() < 0.3
    # --8<-- [end:break]


def test_the_model_in_the_page_computes_what_it_does_in_python(
    chromium, address
):
    """Fifty texts of all lengths, right and with each mistake."""
    every = json.loads(trained.RECORD.read_text())["parameters"]
    kept = torch.frombuffer(bytearray(b64decode(every)), dtype=torch.bfloat16)
    torch.manual_seed(3)
    texts = [torch.randint(SYMBOLS, (1 + n % 24,)) for n in range(50)]
    run = "([texts, m]) => texts.map((t) => trained.forward(t, m)).map("
    run += "({ logits, heads }) => [logits.map((row) => [...row]), heads])"
    url = address + "learn/trained/?text=flamingofla"
    with opened(chromium, url, until="load") as page:
        page.wait_for_selector(".panel rect.weight")
        assert page.locator(".play output").inner_text() == (
            "Next after FLAMINGOFLA: M 98%"
        )
        for mistake in ("", "not-causal", *trained.RUNS[3:]):
            model = Layers(attention=attention_of(mistake))
            nn.utils.vector_to_parameters(kept.float(), model.parameters())
            rows = page.evaluate(run, [[t.tolist() for t in texts], mistake])
            for text, (logits, heads) in zip(texts, rows, strict=True):
                with torch.no_grad():
                    wanted = model(text[None])[0]
                close = {"rtol": 1e-4, "atol": 1e-4}
                torch.testing.assert_close(
                    torch.tensor(logits), wanted, **close
                )
                found = torch.cat(weights(model, text[None]))
                torch.testing.assert_close(
                    torch.tensor(heads).float(), found, **close
                )
        assert page.faults == []


if __name__ == "__main__":
    torch.set_num_threads(1)
    rows = ",\n".join(json.dumps(outcome(name)) for name in trained.RUNS)
    every = nn.utils.parameters_to_vector(trained_as("right")[0].parameters())
    kept = every.detach().bfloat16().view(torch.uint8).numpy().tobytes()
    text = f'{{"torch": "{torch.__version__}", "runs": [\n{rows}\n],\n'
    text += f'"parameters": "{b64encode(kept).decode()}"}}\n'
    trained.RECORD.write_text(text, encoding="utf-8")
