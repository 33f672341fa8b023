"""Attention of this package in a project: the page `use/project`.

What training shows of planted mistakes, and the time of a decode step, are
kept in `sitekit/drawn/project.json`, of which the site makes its table; after
a change, `python -m tests.site.use.test_project` writes it anew.
"""

import copy
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from statistics import median
from types import SimpleNamespace

import pytest

from attnref.commands.copy import one_file
from sitekit import ROOT
from sitekit.drawn import project
from sitekit.markdown.pages import body_of, program
from tests.kit import sampled
from tests.kit.compare import relative_error

# isort: split
# --8<-- [start:model]
import torch
import torch.nn.functional as F
from torch import nn

from attnref import GroupedQueryAttention, KVCache, greedy


class Layer(nn.Module):
    def __init__(self, d_model):
        super().__init__()
        self.norm = nn.LayerNorm(d_model)
        self.attention = GroupedQueryAttention(
            d_model=d_model, n_heads=4, n_kv_heads=2, rope_theta=10_000.0
        )
        self.mlp = nn.Sequential(
            nn.LayerNorm(d_model),
            nn.Linear(d_model, 2 * d_model),
            nn.GELU(),
            nn.Linear(2 * d_model, d_model),
        )

    def forward(self, x, mask=None, cache=None):
        x = x + self.attention(self.norm(x), mask=mask, cache=cache)
        return x + self.mlp(x)


class TinyLM(nn.Module):
    """Tokens `(B, T)` to logits; `caches` holds one cache per layer."""

    def __init__(self, n_tokens=18, d_model=64, n_layers=2):
        super().__init__()
        self.embed = nn.Embedding(n_tokens, d_model)
        self.layers = nn.ModuleList(Layer(d_model) for _ in range(n_layers))
        self.head = nn.Linear(d_model, n_tokens)

    def forward(self, tokens, *, mask=None, caches=None):
        x = self.embed(tokens)
        for i, layer in enumerate(self.layers):
            x = layer(x, mask, None if caches is None else caches[i])
        return self.head(x)


# --8<-- [end:model]


# --8<-- [start:task]
BAR, SYMBOLS, PAD, LENGTH = 0, 16, 17, 8


def copy_task(rows):
    """In each row: a bar, 8 random symbols, a bar, the same 8, a bar."""
    word = torch.randint(1, 1 + SYMBOLS, (rows, LENGTH))
    bar = torch.full((rows, 1), BAR)
    return torch.cat((bar, word, bar, word, bar), dim=1)


def losses(model, tokens):
    """The mean loss of the random symbols, and of all that follows."""
    logits = model(tokens[:, :-1])
    each = F.cross_entropy(logits.mT, tokens[:, 1:], reduction="none")
    return each[:, :LENGTH].mean(), each[:, LENGTH:].mean()


def train(model, steps=200):
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for _ in range(steps):
        random, copied = losses(model, copy_task(rows=16))
        optimizer.zero_grad()
        (random + copied).backward()
        optimizer.step()
    return model.eval()


@torch.no_grad()
def right_answers(model, caches=None):
    """The share of 256 rows whose second half is generated without a fault."""
    tokens = copy_task(rows=256)
    prompt = tokens[:, : LENGTH + 2]
    return (
        (greedy(model, prompt, LENGTH + 1, caches=caches) == tokens)
        .all(dim=1)
        .float()
        .mean()
    )


# --8<-- [end:task]


# --8<-- [start:future]
@torch.no_grad()
def sees_the_future(model):
    """Whether another last token moves the logits of those before it."""
    tokens = copy_task(rows=16)
    other = tokens.clone()
    other[:, -1] = PAD
    moved = model(tokens)[:, :-1] - model(other)[:, :-1]
    return bool(moved.abs().max() > 1e-4)


# --8<-- [end:future]

# What is changed, and into what: in the copied file of the layer, or in the
# sections above. None of these changes the shape of anything.
SCALED = "q = q.to(wide) * (D**-0.5 if scale is None else scale)"
TURNED = "rope=rope, past=past, positions=at, rotated=rotated"
HEADS = "layer.attend(q, k, v, seen, dropout=dropout, **options)"
MISTAKES = {
    "none": ("", ""),
    "targets": (
        'F.cross_entropy(logits.mT, tokens[:, 1:], reduction="none")',
        'F.cross_entropy(logits.mT, tokens[:, :-1], reduction="none")',
    ),
    "mask": (HEADS, HEADS.replace("seen", "None")),
    "late": ("return j <= i\n", "return j <= i + 1\n"),
    "merge": (
        "heads.transpose(1, 2).reshape(B, T, H * D)",
        "heads.reshape(B, T, H * D)",
    ),
    "positions": (TURNED, TURNED.replace("rope=rope", "rope=None")),
    "axis": ("return softmax(scores)", "return softmax(scores, dim=-2)"),
    "view": (
        "split_heads(self.q_proj(x), H)",
        "self.q_proj(x).view(len(x), H, -1, self.head_dim)",
    ),
    "keys": (
        "split_heads(self.k_proj(x), K)",
        "self.k_proj(x).view(len(x), K, -1, self.head_dim)",
    ),
    "restart": (TURNED, TURNED.replace("past=past", "past=0")),
    "strict": ("return j <= i\n", "return j < i\n"),
    "scale": (SCALED, "q = q.to(wide)"),
    "root": (SCALED, "q = q.to(wide) * D**-1"),
    "order": (
        HEADS,
        HEADS.replace(
            "k, v",
            "*(t.repeat(1, q.shape[1] // t.shape[1], 1, 1) for t in (k, v))",
        ),
    ),
    "values": (HEADS, HEADS.replace("k, v", "k, k")),
}


def planted(name):
    """All names of the copied layer and of the page, with one mistake."""
    here = Path(__file__).read_text(encoding="utf-8")
    parts = [one_file(["GroupedQueryAttention", "KVCache", "greedy"])]
    for section in ("model", "task", "future"):
        start, end = f"# --8<-- [start:{section}]", f"# --8<-- [end:{section}]"
        parts.append(here.partition(start)[2].partition(end)[0])
    text = re.sub(r"from attnref import .*", "", "\n".join(parts))
    right, wrong = MISTAKES[name]
    assert name == "none" or text.count(right) == 1, name
    namespace = {}
    exec(text.replace(right, wrong) if right else text, namespace)
    return SimpleNamespace(**namespace)


def trained(ours, seed):
    """What one model of these names has learned: the numbers of the table."""
    torch.manual_seed(seed)
    model = ours.TinyLM()
    future = ours.sees_the_future(model)
    ours.train(model)
    with torch.no_grad():
        random, copied = ours.losses(model, ours.copy_task(256))
    caches = [ours.KVCache(max_len=2 * LENGTH + 2) for _ in model.layers]
    full, cached = ours.right_answers(model), ours.right_answers(model, caches)
    return future, *map(float, (random, copied, full, cached))


def outcome(name):
    """The middle one of three trainings: a single one may fail by chance."""
    ours = planted(name)
    each = zip(*(trained(ours, seed) for seed in range(3)), strict=True)
    future, *medians = (median(values) for values in each)
    keys = ("random", "copied", "full", "cached")
    numbers = {k: round(v, 2) for k, v in zip(keys, medians, strict=True)}
    code = MISTAKES[name][1].strip()
    return {"mistake": name, "code": code, "future": future} | numbers


# One that the loss tells, and one that decoding tells: each trains a model.
@pytest.mark.parametrize("name", sampled(MISTAKES, ("targets", "restart")))
def test_a_planted_mistake_shows_where_the_page_says(name):
    """Losses depend a little on the processor; what they show does not."""
    (was,) = (row for row in recorded()["mistakes"] if row["mistake"] == name)
    now = outcome(name)
    assert project.shown_by(now) == project.shown_by(was)
    for key in ("mistake", "code", "future"):
        assert now[key] == was[key]
    for key in ("random", "copied"):
        assert now[key] == pytest.approx(was[key], abs=0.3)


@pytest.mark.parametrize("name", [*MISTAKES][2:])
def test_each_mistake_in_the_layer_moves_its_output(name):
    """Compared with the layer as it is, with the same sharp weights."""
    right = GroupedQueryAttention(
        d_model=48, n_heads=6, n_kv_heads=3, rope_theta=100.0
    )
    nn.init.normal_(right.q_proj.weight)
    wrong = planted(name)
    layer = wrong.GroupedQueryAttention(
        d_model=48, n_heads=6, n_kv_heads=3, rope_theta=100.0
    )
    layer.load_state_dict(right.state_dict())
    x = torch.randn(3, 7, 48)
    with torch.no_grad():
        want, once = right(x), layer(x)
        cache = wrong.KVCache(max_len=7)
        parts = [layer(part, cache=cache) for part in x.split((5, 2), dim=1)]
    chunked = relative_error(torch.cat(parts, dim=1), want)
    assert (relative_error(once, want) <= 1e-5) == (name == "restart")
    assert chunked > 0.03


def test_the_table_has_a_row_for_each_mistake():
    rows = [*project.mistakes()]
    assert [row[0][0].key for row in rows] == [*MISTAKES]
    assert [row[-1].key for row in rows] == [
        *["nothing", *["floor"] * 4, "loss", *["answers"] * 3],
        *["decode", *["nothing"] * 5],
    ]
    seen = [row[0][0].key for row in rows if row[-2].key == "sees"]
    assert seen == ["mask", "late", "merge", "axis", "view", "keys"]


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return train(TinyLM())


@pytest.fixture
def one_layer(model):
    """Of the trained model, where what is compiled need not be large."""
    part = copy.deepcopy(model)
    part.layers = part.layers[:1]
    return part


def test_a_model_of_ones_own_learns_to_copy():
    # --8<-- [start:learns]
    import math

    torch.manual_seed(0)
    model = train(TinyLM())
    random, copied = losses(model, copy_task(rows=256))
    assert copied < 0.1
    assert random > math.log(SYMBOLS) - 0.1  # nobody can predict these
    assert right_answers(model) > 0.95
    caches = [KVCache(max_len=18) for _ in model.layers]
    assert right_answers(model, caches) > 0.95
    assert not sees_the_future(model)
    # --8<-- [end:learns]


def test_a_decoder_is_the_shortcut():
    # --8<-- [start:decoder]
    from attnref import Block, Decoder

    def attention():
        return GroupedQueryAttention(
            d_model=64, n_heads=4, n_kv_heads=2, rope_theta=10_000.0
        )

    blocks = [Block(attention(), d_model=64, d_ff=128) for _ in range(2)]
    decoder = Decoder(blocks, n_tokens=18, d_model=64)
    tokens = torch.randint(18, (3, 7))
    assert decoder(tokens).shape == TinyLM()(tokens).shape == (3, 7, 18)
    # --8<-- [end:decoder]


@pytest.mark.audit
def test_a_decoder_learns_to_copy():
    from attnref import Block, Decoder

    attention = (Layer(64).attention for _ in range(2))
    blocks = [Block(each, d_model=64, d_ff=128) for each in attention]
    decoder = Decoder(blocks, n_tokens=18, d_model=64)
    random, copied = losses(train(decoder), copy_task(rows=256))
    assert copied < 0.1 and random > 2.6
    caches = [KVCache(max_len=18) for _ in decoder.layers]
    assert right_answers(decoder, caches) > 0.95


def test_ten_requests_take_two_graphs(model):
    # --8<-- [start:requests]
    graphs = []

    def counted(graph, inputs):
        graphs.append(graph)  # a backend that runs each graph as it is
        return graph.forward

    torch.compiler.reset()  # forget what was compiled before
    compiled = torch.compile(model, fullgraph=True, backend=counted)
    for _ in range(10):
        prompt = copy_task(rows=4)[:, : LENGTH + 2]
        caches = [KVCache(max_len=32) for _ in model.layers]
        answer = greedy(compiled, prompt, LENGTH + 1, caches=caches)
        assert torch.equal(answer, greedy(model, prompt, LENGTH + 1))
    assert len(graphs) == 2  # one reads a prompt, the other a token
    # --8<-- [end:requests]


def ten_requests(model, caches, between, rows=(4,) * 10, lengths=(10,) * 10):
    """How many graphs there are after each of them."""
    graphs, after = [], []

    def counted(graph, inputs):
        graphs.append(graph)
        return graph.forward

    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend=counted)
    for B, T in zip(rows, lengths, strict=True):
        for cache in caches:
            between(cache)
        prompt = copy_task(B)[:, :T]
        answer = greedy(compiled, prompt, 9, caches=caches)
        assert torch.equal(answer, greedy(model, prompt, 9))
        after.append(len(graphs))
    return after


@pytest.mark.audit
def test_what_adds_a_graph(one_layer):
    """Caches are kept: reset() releases their memory, crop(0) does not."""
    cache, held = KVCache(max_len=32), []

    def emptied(cache):
        held.extend(part.data_ptr() for part in cache.stored[:1])
        cache.crop(0)

    first = ten_requests(one_layer, [cache], emptied)
    assert first == [2] + [3] * 9
    assert len(held) == 9 and len({*held}) == 1
    cache.reset()
    assert cache.nbytes == 0
    lengths = (10, 10, 10, 12, 9, 10, 11, 13, 8, 10)
    later = ten_requests(one_layer, [cache], KVCache.reset, lengths=lengths)
    assert later == [2] * 3 + [3] * 7
    rows = (4, 3, 2, 4, 5, 6, 1, 2, 1, 4)
    later = ten_requests(one_layer, [cache], KVCache.reset, rows=rows)
    assert later == [2] + [4] * 5 + [6] * 4


@pytest.mark.audit
def test_caches_that_fit_exactly_exceed_what_torch_compiles(one_layer):
    """Each is filled to its last slot, and the number of rows varies."""
    cache = KVCache(max_len=32)
    rows = (4, 3, 1, 2, 6, 1, 5, 1, 3, 2)
    lengths = (10, 7, 9, 8, 9, 6, 10, 8, 9, 7)
    fits = map(KVCache, [length + 8 for length in lengths])

    def exact(cache):
        vars(cache).update(vars(next(fits)))

    with pytest.raises(torch._dynamo.exc.FailOnRecompileLimitHit):
        ten_requests(one_layer, [cache], exact, rows, lengths)


@pytest.mark.audit
def test_a_guard_on_identity_compiles_for_each_request(model):
    class Guarded(TinyLM):
        def forward(self, tokens, **options):
            if len({id(cache) for cache in options["caches"]}) < 2:
                raise ValueError("one cache for two layers")
            return super().forward(tokens, **options)

    torch.compiler.reset()
    compiled = torch.compile(Guarded().eval(), fullgraph=True, backend="eager")
    prompt, every = copy_task(rows=3), []
    with (
        torch.no_grad(),
        torch._dynamo.config.patch(recompile_limit=3),  # usually 8
        pytest.raises(torch._dynamo.exc.FailOnRecompileLimitHit),
    ):
        for _ in range(4):
            every.append([KVCache(max_len=32) for _ in model.layers])
            compiled(prompt, caches=every[-1])
    assert len(every) == 4


def test_a_compiled_model_quotes_what_a_cache_says(model):
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    caches = [KVCache(max_len=12) for _ in model.layers]
    with (
        torch.no_grad(),
        pytest.raises(torch._dynamo.exc.Unsupported, match="19 > max_len=12"),
    ):
        compiled(copy_task(rows=3), caches=caches)


def step_times(model):
    """Milliseconds of a decode step: as it is, and compiled by inductor."""
    prompt = copy_task(rows=4)[:, : LENGTH + 2]
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True)
    took = {model: [], compiled: []}
    with torch.no_grad():
        for _ in range(60):
            for each, times in took.items():
                caches = [KVCache(max_len=32) for _ in model.layers]
                each(prompt, caches=caches)
                for token in prompt.split(1, dim=1):
                    start = time.perf_counter()
                    each(token, caches=caches)
                    times.append(1e3 * (time.perf_counter() - start))
    halves = [times[len(times) // 2 :] for times in took.values()]
    return [round(median(times), 2) for times in halves]


@pytest.mark.audit
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.skipif(
    not shutil.which("g++")
    or not Path(sysconfig.get_path("include"), "Python.h").exists()
    or " " in torch.__file__,
    reason="inductor needs g++, Python.h, and a path of torch without spaces",
)
def test_inductor_gives_the_same_logits(one_layer):
    torch.compiler.reset()
    compiled = torch.compile(one_layer, fullgraph=True)
    prompt = copy_task(rows=3)
    parts = prompt.split((9, *[1] * 10), dim=1)
    for _ in range(3):
        caches = [KVCache(max_len=32)]
        with torch.no_grad():
            got = [compiled(part, caches=caches) for part in parts]
            want = one_layer(prompt)
        assert relative_error(torch.cat(got, dim=1), want) <= 1e-5


def test_a_padded_batch_ends_row_by_row(model):
    torch.manual_seed(1)
    # --8<-- [start:batch]
    tokens = copy_task(rows=3)
    prompts = [tokens[0, :15], tokens[1, :12], tokens[2, :10]]
    # What a tokenizer returns with padding_side="left".
    input_ids = torch.stack(
        [F.pad(prompt, (15 - len(prompt), 0), value=PAD) for prompt in prompts]
    )
    attention_mask = (input_ids != PAD).long()

    end = {"eos": BAR, "pad": PAD}
    caches = [KVCache(max_len=15 + 9 - 1) for _ in model.layers]
    answers = greedy(
        model, input_ids, 9, valid=attention_mask, caches=caches, **end
    )
    assert [row[row != PAD].tolist() for row in answers] == tokens.tolist()
    blind = greedy(model, input_ids, 9, **end)  # no error, wrong answers
    assert not torch.equal(blind, answers)
    # --8<-- [end:batch]

    # --8<-- [start:sampled]
    from attnref import sampled

    generator = torch.Generator().manual_seed(0)
    pick = sampled(temperature=0.7, top_p=0.9, generator=generator)
    drawn = greedy(model, input_ids, 9, valid=attention_mask, pick=pick, **end)
    assert torch.equal(drawn, answers)  # this model is sure of each token
    # --8<-- [end:sampled]

    # --8<-- [start:leaving]
    from attnref import padding_mask_from_hf

    @torch.no_grad()
    def generate(model, input_ids, attention_mask, steps, max_len=32):
        """New tokens per row; a row that has ended leaves the batch."""
        caches = [KVCache(max_len) for _ in model.layers]
        answers = [[] for _ in input_ids]
        rows, new, valid = [*answers], input_ids, attention_mask
        for _ in range(steps):
            mask = padding_mask_from_hf(valid)  # of all tokens, not the new
            logits = model(new, mask=mask, caches=caches)
            token = logits[:, -1].argmax(dim=-1)
            for row, number in zip(rows, token.tolist(), strict=True):
                row.append(number)
            going = (token != BAR).nonzero()[:, 0]
            if len(going) == 0:
                break
            if len(going) < len(rows):
                rows = [rows[i] for i in going.tolist()]
                token, valid = token[going], valid[going]
                for cache in caches:
                    cache.reorder(going)
            new = token[:, None]
            valid = torch.cat((valid, torch.ones_like(new)), dim=1)
        return answers

    assert generate(model, input_ids, attention_mask, steps=9) == [
        [token for token in row if token != PAD]
        for row in answers[:, 15:].tolist()
    ]
    # --8<-- [end:leaving]
    read = []

    class Watched:
        layers = model.layers

        def __call__(self, tokens, *, mask, caches):
            read.append(mask[:, 0, 0].sum(dim=-1).tolist())
            return model(tokens, mask=mask, caches=caches)

    generate(Watched(), input_ids, attention_mask, steps=9)
    real = [(15, 12, 10)[row:] for row in (0, 0, 0, 0, 1, 1, 1, 2, 2)]
    assert read == [[n + i for n in each] for i, each in enumerate(real)]


MESSAGES = {
    "name": "TypeError: .* unexpected keyword argument 'attention_mask'",
    "numbers": "TypeError: .* padding_mask_from_hf\\(mask\\) if it is a token",
    "axes": r"ValueError: .* padding_mask\(valid\) gives \(3, 1, 1, 15\)",
    "side": "ValueError: a pad follows a token: pad on the left to generate",
    "short": "ValueError: mask .* must cover every key, cached ones included",
    "grad": r"ValueError: .* decode under torch.no_grad\(\)",
    "room": "ValueError: 16 stored and 1 new make 17 > max_len=16",
    "used": r"ValueError: caches hold 15 tokens .* reset\(\) each",
    "rows": "ValueError: the cache holds B=3, .* but got B=2",
    "one": "ValueError: 2 caches for 2 layers, one of them twice",
    "eos": "TypeError: eos is str; pass an int",
}


def test_each_wrong_call_has_its_message():
    messages = {row[0].key: " ".join(row[1][1:]) for row in project.messages()}
    assert messages.keys() == MESSAGES.keys()
    for key, message in messages.items():
        assert re.match(MESSAGES[key], message), message


IN_EACH_FOLDER = """
import runpy, sys

sys.modules["attnref"] = None
for folder in sys.argv[1:]:
    sys.path.insert(0, folder)
    runpy.run_path(f"{folder}/page.py")
    sys.path.remove(folder)
    for name in [n for n in sys.modules if n.split(".")[0] == "attention"]:
        del sys.modules[name]
"""


@pytest.mark.audit
def test_the_page_runs_on_what_its_commands_write(tmp_path):
    """All of it on the file, and on the folder what comes before training,
    where attnref is not there to be imported."""
    page = body_of(ROOT / "docs" / "en" / "use/project.md")
    text = program(page).replace("from attnref import", "from attention import")
    assert not re.search(r"import attnref|from attnref", text)
    page = page.replace("\\\n", "")
    written = re.findall(r"^python -m attnref .+$", page, re.M)
    untrained = text.partition("torch.manual_seed")[0]
    here = os.environ | {"PYTHONPATH": str(ROOT)}
    for line, part in zip(written, (text, untrained), strict=True):
        folder = tmp_path / str(len(part))
        folder.mkdir()
        (folder / "page.py").write_text(part, encoding="utf-8")
        _, *words = shlex.split(line)
        subprocess.run(
            [sys.executable, *words], cwd=folder, env=here, check=True
        )
    run = [sys.executable, "-c", IN_EACH_FOLDER, *tmp_path.iterdir()]
    subprocess.run(run, env=here, check=True)


def recorded():
    return json.loads(project.RECORD.read_text(encoding="utf-8"))


if __name__ == "__main__":
    torch.set_num_threads(1)
    rows = ",\n".join(json.dumps(outcome(name)) for name in MISTAKES)
    torch.manual_seed(0)
    times = json.dumps(step_times(train(TinyLM())))
    text = f'{{"mistakes": [\n{rows}\n],\n"step_ms": {times}}}\n'
    project.RECORD.write_text(text, encoding="utf-8")
