"""What the page on `attnref check` shows, in its order."""

import pytest

from sitekit import ROOT
from sitekit.markdown.pages import body_of, render


def test_a_mistake_is_reported_by_name():
    # --8<-- [start:wrong]
    import torch

    import attnref

    def gqa(x, w_q, w_k, w_v, w_o, n_heads, n_kv_heads, mask=None):
        B, T, E = x.shape
        q, k, v = (
            (x @ w.mT).view(B, T, -1, E // n_heads).transpose(1, 2)
            for w in (w_q, w_k, w_v)
        )
        k, v = (part.repeat(1, n_heads // n_kv_heads, 1, 1) for part in (k, v))
        scores = q @ k.mT / (E // n_heads) ** 0.5
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf)
        heads = scores.softmax(-1).nan_to_num() @ v
        return heads.transpose(1, 2).reshape(B, T, E) @ w_o.mT

    # --8<-- [end:wrong]
    # --8<-- [start:told]
    report = attnref.check("gqa", gqa)
    assert not report.passed
    assert report.mistakes == (("groups-tiled",),)
    # --8<-- [end:told]
    assert "repeat instead of repeat_interleave" in str(report)
    for language, fails in (("en", "FAILS"), ("zh", "不成立")):
        path = ROOT / "docs" / language / "mistakes/check.md"
        (begins,) = [
            block.text
            for block in render(body_of(path)).blocks
            if block.language == "text"
        ]
        lines = report.text(language=language).splitlines()
        lines = [x for x in lines if not x.startswith(("  /", "  http"))]
        parts = "\n".join(lines).split(f"  {fails}")
        assert begins.rstrip("\n") == f"  {fails}".join(parts[:2]).rstrip("\n")

    # --8<-- [start:course]
    def test_softmax_of_a_student(softmax):
        report = attnref.check("softmax", softmax)
        assert report.passed, str(report)

    # --8<-- [end:course]
    test_softmax_of_a_student(attnref.softmax)
    with pytest.raises(AssertionError, match="Right, but for an edge case"):
        test_softmax_of_a_student(lambda x, dim=-1: x.softmax(dim))
