"""What the site alone says of each mistake: drawn/mistakes.txt."""

import re
from functools import cache
from textwrap import dedent
from typing import NamedTuple

from attnref.words import Text
from sitekit import ROOT

SYMPTOMS = {
    "future": Text("the future leaks", "看到了未来的 token"),
    "heads": Text("heads are mixed", "各个头串在了一起"),
    "inert": Text("the mask does nothing", "掩码不起作用"),
    "nan": Text("NaN or infinity", "出现 NaN 或无穷大"),
    "sizes": Text("right until two sizes are equal", "两个尺寸碰巧相等时才出错"),
    "decoding": Text("with a cache the output differs", "用了缓存，输出就不一样"),
    "gradients": Text("right outputs, wrong gradients", "输出对，梯度错"),
    "memory": Text("right, but too much memory", "结果对，但内存占用太多"),
    "worse": Text("no error, only worse results", "不报错，只是结果变差"),
    "error": Text("an error, but only for some sizes or dtypes", "只有某些尺寸或 dtype 会报错"),
}
AXES = "# query | key | 查询 | 键"
ENTRIES = re.compile(r"((?:^\S+: .+\n)+)((?:^    .+\n)+)", re.MULTILINE)


class Evidence(NamedTuple):
    """`symptom` is a key of `SYMPTOMS`, `met` has the addresses at which the
    mistake was met, and `see` is code whose last line is an expression."""

    symptom: str
    met: list[str]
    axes: tuple[Text, Text]
    see: str


@cache
def evidence() -> dict[str, Evidence]:
    """The evidence of each mistake, by its id."""
    text = (ROOT / "sitekit/drawn/mistakes.txt").read_text(encoding="utf-8")
    result = {}
    for ids, code in ENTRIES.findall(text):
        see = dedent(code)
        names = (see if see[0] == "#" else AXES).split("\n")[0][2:].split(" | ")
        axes = Text(*names[::2]), Text(*names[1::2])
        for line in ids.splitlines():
            id, symptom, *met = line.replace(":", "", 1).split()
            urls = [m if ":" in m else f"https://github.com/{m}" for m in met]
            result[id] = Evidence(symptom, urls, axes, see)
    return result
