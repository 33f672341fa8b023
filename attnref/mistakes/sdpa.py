"""Mistakes in scaled dot-product attention and in its use of masks."""

from attnref.mistakes.catalogue import Lines, Mistake, Text

MISTAKES = (
    Mistake(
        id="mask-times-tiny",
        title=Text(
            en="The mask is multiplied by -1e-9, not by -1e9",
            zh="掩码乘的是 -1e-9，不是 -1e9",
        ),
        lines=(
            Lines(
                module="core.sdpa",
                right="""
        scores = scores.masked_fill(~mask, -torch.inf)  # (B, H, T, S)
""",
                wrong="""
        scores = scores + ~mask * -1e-9  # (B, H, T, S)
""",
            ),
        ),
        symptom="inert",
        seen=Text(
            en="The output is the same with and without the mask, to about "
            "nine digits.",
            zh="加不加掩码，输出在约九位有效数字内完全相同。",
        ),
        notice=Text(
            en="Change the last token: no output before it may move.",
            zh="改掉最后一个词元，它前面的输出一个都不该变。",
        ),
        hidden=Text(
            en="The mask broadcasts as it should, so every size is right.",
            zh="掩码照常广播，所有尺寸都对。",
        ),
        found=("https://github.com/wdndev/llm_interview_note/issues/11",),
        tests=(
            "tests/core/test_sdpa.py::test_equals_torch_over_shapes_and_masks",
        ),
    ),
)
