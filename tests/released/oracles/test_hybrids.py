"""Whole hybrid models: a decoder of attention and recurrent layers writes what
`generate` of transformers does."""

import re

import pytest
import torch
from torch import nn

from attnref import Decoder, StateCache, greedy
from attnref.core.recurrence import scan
from attnref.released.configured import attention_from_config
from attnref.released.generate import file_of
from tests.kit.compare import relative_error
from tests.kit.families import (
    RECURRENT,
    ROWS,
    config_of,
    mixers_of,
    model_of,
    records_of,
)

# One of each kind of recurrent layer is compared in every run.
HYBRIDS = "qwen3_next", "kimi_linear", "nemotron_h", "minimax", "lfm2", "jamba"
AUDITED = "qwen3_5_text", "olmo_hybrid", "granitemoehybrid", "bamba", "lfm2_moe"
NORMS = "norm", "norm_f", "final_layernorm", "embedding_norm"
PROMPT, NEW_TOKENS = 11, 16


class FileLayer(nn.Module):
    """A recurrent layer of a written file, called as those of the package."""

    needs, causal = "state", True

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x, *, mask=None, cache):
        if not cache.state:
            cache.own = self.layer.cache(PROMPT + NEW_TOKENS)
        valid = None if mask is None else mask[:, 0, 0].expand(len(x), -1)
        out = self.layer(x, cache=cache.own, valid=valid)
        cache.update(x.shape[1], out[:0])
        return out


class Layers(nn.Module):
    """Layers of transformers, the first of which has a mixer of ours in it; the
    others mix no tokens."""

    def __init__(self, layers, module, ours):
        super().__init__()
        self.layers, self.self_attn, self.options = [*layers], ours, {}
        pair = re.search("(?<!Delta)Attention$", type(module).__name__)
        module.forward = self.attend if pair else self.mix

    def mix(self, hidden_states, *_, **__):
        return self.self_attn(hidden_states, **self.options)

    def attend(self, hidden_states, *_, **__):
        return self.self_attn(hidden_states, **self.options), None

    def forward(self, x, **options):
        self.options = options
        for layer in self.layers:
            out = layer(x, position_embeddings=None)
            x = out[0] if isinstance(out, tuple) else out
        return x


def mixer_in(layer):
    """The module of a layer of transformers that mixes tokens, if any."""
    for name, module in layer.named_modules():
        kind = type(module).__name__
        if name and (re.search(RECURRENT, kind) or kind.endswith("Attention")):
            return module
    return None


@pytest.mark.parametrize(
    "family",
    [*HYBRIDS, *(pytest.param(f, marks=pytest.mark.audit) for f in AUDITED)],
)
@torch.no_grad()
def test_a_hybrid_decoder_writes_what_generate_does(family):
    """Two rows of the batch are padded on the left."""
    config = config_of(family)
    fields, model = config.to_dict(), model_of(config)
    prompt = torch.randint(3, 41, (ROWS, PROMPT))
    valid = torch.ones_like(prompt)
    valid[1, :4] = valid[2, :1] = 0
    expected = model.generate(
        prompt,
        attention_mask=valid,
        max_new_tokens=NEW_TOKENS,
        do_sample=False,
        eos_token_id=None,
        return_dict_in_generate=True,
    ).sequences
    space, body = {}, model.model
    exec(file_of(fields), space)
    records, recurrent = records_of(fields), mixers_of(fields)
    blocks, caches = [], []
    for n, layer in enumerate(body.layers):
        module = mixer_in(layer)
        if module is None:
            blocks[-1].layers.append(layer)
            continue
        if n in recurrent:
            ours = space["mixer"](n).eval()
            caches.append(StateCache())
        else:
            ours = attention_from_config(config, n).eval()
            caches.append(ours.cache(PROMPT + NEW_TOKENS))
        ours.load_state_dict(dict(module.named_parameters()))
        blocks.append(
            Layers([layer], module, FileLayer(ours) if n in recurrent else ours)
        )
    assert records and recurrent
    decoder = Decoder(blocks, n_tokens=41, d_model=60)
    decoder.embed_tokens = model.get_input_embeddings()
    last = next(name for name in NORMS if hasattr(body, name))
    decoder.norm, decoder.lm_head = getattr(body, last), model.lm_head
    actual = greedy(decoder, prompt, NEW_TOKENS, valid=valid, caches=caches)
    assert len(set(expected[0].tolist())) > 8
    assert torch.equal(actual, expected)


@pytest.mark.parametrize("family", ["qwen3_next", "kimi_linear", "nemotron_h"])
def test_strong_decays_cost_a_written_file_no_digits(family):
    """Of its recurrence: the delta rule, with channels, and without it."""
    torch.manual_seed(0)
    space = {}
    exec(file_of(config_of(family).to_dict()), space)
    shape, channels = (3, 5, 131, 7), family == "kimi_linear"
    q, k, v = (
        nn.functional.normalize(torch.randn(shape), dim=-1) for _ in "qkv"
    )
    decay = -torch.rand(shape if channels else (*shape[:3], 1))
    strong = torch.rand_like(decay) < 0.3
    decay = (decay / 10).where(~strong, 10_000 * decay)
    inputs, state = [q, k, v, decay], torch.randn(3, 5, 7, 7)
    options, beta = {}, torch.rand(3, 5, 131, 1)
    if family != "nemotron_h":
        inputs.append(beta)
        options["beta"] = beta[..., 0].double()
    expected = scan(
        *(x.double() for x in (q, k, v)),
        decay.double() if channels else decay[..., 0].double(),
        state.double(),
        **options,
    )
    actual = space["recurrence"](*inputs, state)
    for ours, exact in zip(actual, expected, strict=True):
        assert relative_error(ours, exact) <= 1e-6
