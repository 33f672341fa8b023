"""What use/transformers says of a tokenizer, of dropout and of biases."""

import re

import torch
from transformers import AutoConfig, AutoModel

from sitekit import ROOT
from sitekit.markdown.pages import body_of
from tests.kit.pages import cells, section


def test_the_mask_of_a_real_tokenizer():
    # --8<-- [start:tokenizer]
    from tokenizers import Tokenizer, pre_tokenizers
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    from attnref import padding_mask_from_hf

    ids = {"<pad>": 0, "I": 1, "like": 2, "you": 3, "too": 4}
    words = Tokenizer(WordLevel(ids))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>"
    )
    options = {"padding": "max_length", "max_length": 4, "return_tensors": "pt"}

    batch = tokenizer(["I like you", "you too"], **options)
    assert batch["input_ids"].tolist() == [[1, 2, 3, 0], [3, 4, 0, 0]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 0], [1, 1, 0, 0]]
    mask = padding_mask_from_hf(batch["attention_mask"])  # True = a real token
    assert mask.shape == (2, 1, 1, 4)

    tokenizer.padding_side = "left"  # for generation
    batch = tokenizer(["I like you", "you too"], **options)
    assert batch["input_ids"].tolist() == [[0, 1, 2, 3], [0, 0, 3, 4]]
    assert batch["attention_mask"].tolist() == [[0, 1, 1, 1], [0, 0, 1, 1]]
    # --8<-- [end:tokenizer]


# What they are called: the dropout of weights, and the projections.
DROPOUT = ("attn_pdrop", "attention_probs_dropout_prob", "attention_dropout")
DROPOUT += ("dropout_rate",)
PARTS = {
    "q": r"(q_proj|query|SelfAttention\.q|c_attn|q_a_proj)\.",
    "k": r"(k_proj|key|SelfAttention\.k|c_attn|kv_a_proj_with_mqa)\.",
    "v": r"(v_proj|value|SelfAttention\.v|c_attn|kv_a_proj_with_mqa)\.",
    "o": r"(o_proj|out_proj|SelfAttention\.o|attn\.c_proj|"
    r"attention\.output\.dense)\.",
}


def test_dropout_and_biases_are_those_of_transformers():
    page = body_of(ROOT / "docs/en/use/transformers.md")
    rows = cells(section("options", page))
    assert len(rows) >= 8
    for name, dropout, biased in rows:
        (kind,) = re.findall(r"/models/(\w+)/", name)
        config = AutoConfig.for_model(kind)
        (rate,) = (getattr(config, d) for d in DROPOUT if hasattr(config, d))
        assert float(dropout) == rate, kind
        with torch.device("meta"):
            model = AutoModel.from_config(config)
        names = [n for n, _ in model.named_parameters()]
        for part, spelled in PARTS.items():
            ours = [n for n in names if re.search(spelled, n)]
            assert any(n.endswith("weight") for n in ours), (kind, part)
            has = any(n.endswith("bias") for n in ours)
            assert has == (part in re.findall(r"`(\w)`", biased)), (kind, part)
