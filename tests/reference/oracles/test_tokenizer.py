"""What use/transformers says of a tokenizer."""


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
