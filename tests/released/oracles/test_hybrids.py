"""Whole hybrid models: a decoder of attention and recurrent layers writes what
`generate` of transformers does."""

import re

import pytest
import torch
from torch import nn

from attnref import Decoder, StateCache, greedy
from attnref.released.configured import attention_from_config
from attnref.released.generate import file_of
from attnref.released.record import mixers_of, records_of
from tests.kit.families import RECURRENT, ROWS, config_of, model_of

# One of each kind of recurrent layer is compared in every run.
HYBRIDS = "qwen3_next", "kimi_linear", "nemotron_h", "minimax", "lfm2", "jamba"
MORE = "qwen3_5_text", "olmo_hybrid", "granitemoehybrid", "bamba", "lfm2_moe"
NORMS = "norm", "norm_f", "final_layernorm", "embedding_norm"
PROMPT, NEW = 11, 16


class Written(nn.Module):
    """A recurrent layer of a written file, called as those of the package."""

    needs, causal = "state", True

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x, *, mask=None, cache):
        if not cache.state:
            cache.own = self.layer.cache(PROMPT + NEW)
        valid = None if mask is None else mask[:, 0, 0].expand(len(x), -1)
        out = self.layer(x, cache=cache.own, valid=valid)
        cache.update(x.shape[1], out[:0])
        return out


class Layers(nn.Module):
    """Layers of transformers, the first of which has a mixer of ours in it; the
    others mix no tokens."""

    def __init__(self, layers, module, ours):
        super().__init__()
        self.layers, self.self_attn, self.how = [*layers], ours, {}
        pair = re.search("(?<!Delta)Attention$", type(module).__name__)
        module.forward = self.attend if pair else self.alone

    def alone(self, hidden_states, *_, **__):
        return self.self_attn(hidden_states, **self.how)

    def attend(self, hidden_states, *_, **__):
        return self.self_attn(hidden_states, **self.how), None

    def forward(self, x, **how):
        self.how = how
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
    [*HYBRIDS, *(pytest.param(f, marks=pytest.mark.audit) for f in MORE)],
)
@torch.no_grad()
def test_a_hybrid_decoder_writes_what_generate_does(family):
    """Two rows of the batch are padded on the left."""
    config = config_of(family)
    given, model = config.to_dict(), model_of(config)
    prompt = torch.randint(3, 41, (ROWS, PROMPT))
    valid = torch.ones_like(prompt)
    valid[1, :4] = valid[2, :1] = 0
    wanted = model.generate(
        prompt,
        attention_mask=valid,
        max_new_tokens=NEW,
        do_sample=False,
        eos_token_id=None,
        return_dict_in_generate=True,
    ).sequences
    space, body = {}, model.model
    exec(file_of(given), space)
    records, recurrent = records_of(given), mixers_of(given)
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
            caches.append(ours.cache(PROMPT + NEW))
        ours.load_state_dict(dict(module.named_parameters()))
        blocks.append(
            Layers([layer], module, Written(ours) if n in recurrent else ours)
        )
    assert records and recurrent
    decoder = Decoder(blocks, n_tokens=41, d_model=60)
    decoder.embed_tokens = model.get_input_embeddings()
    last = next(name for name in NORMS if hasattr(body, name))
    decoder.norm, decoder.lm_head = getattr(body, last), model.lm_head
    got = greedy(decoder, prompt, NEW, valid=valid, caches=caches)
    assert len(set(wanted[0].tolist())) > 8
    assert torch.equal(got, wanted)
