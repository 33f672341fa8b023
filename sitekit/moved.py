"""Old addresses lead to the new ones, in both languages and offline.

An entry is a page, `"core/old": "core/new"`, or a section of a page that stays,
`"core/masks#layer": "core/rules#layer"`. For a page a stub is written, which
leads on by itself. Of a section, a script of the page that it has left does so;
without JavaScript, the reader sees the beginning of that page. The plugin
mkdocs-redirects leads from whole pages alone, which is one of these entries.
"""

import json
from html import escape
from pathlib import Path
from typing import Any

from sitekit.adapter import BuildError, get_relative_url

MOVED: dict[str, str] = {
    "api/mistakes": "api/check",
    "api/mistakes#mistakes": "api/check#check",
    "api/models": "api/released",
    "api/models#models": "api/released#released",
    "api/models#blocks": "api/layers#blocks",
    "api/models#conversions": "api/layers#conversions",
    "api/numbers#released": "api/released#specs",
    "caches/kv-cache#generate": "models/decoder#code",
    "conventions#checkpoints": "use/transformers#checkpoints",
    "core/masks#contract": "core/sdpa#formula",
    "core/masks#four": "core/masks#idea",
    "core/masks#layer": "core/rules#layer",
    "core/masks#missing": "core/rules#own",
    "core/masks#mod": "core/rules#mod",
    "core/masks#own": "core/masks#live-mask",
    "core/masks#prefix": "core/rules#prefix",
    "core/masks#shapes": "core/masks#idea",
    "learn/choose#released": "models/released#years",
    "learn/compare#decode-step": "numbers/operations#decode",
    "core/rope#scaling": "core/scaling",
    "core/rope#yarn": "core/scaling#yarn",
    "core/merge#elsewhere": "core/merge#processes",
    "core/merge#history": "core/merge#sources",
    "core/merge#mla": "core/merge#split",
    "core/merge#shapes": "core/merge#prefix",
    "core/order": "core/biases#order",
    "core/order#code": "core/biases#code",
    "core/order#exchanges": "core/biases#exchanges",
    "core/order#pitfalls": "core/biases#pitfalls",
    "core/flash#flex": "core/rules#flex",
    "core/flash#history": "core/flash#sources",
    "core/flash#merge": "core/merge",
    "core/flash#saved": "core/flash#backward",
    "core/flash#shapes": "core/flash#tiles",
    "layers/cross#shapes": "layers/cross#cross",
    "layers/mla#history": "layers/mla#sources",
    "layers/mqa": "layers/gqa#mqa",
    "layers/mqa#cost": "layers/gqa#cost",
    "layers/mqa#formula": "layers/gqa#mqa",
    "layers/mqa#history": "layers/gqa#sources",
    "layers/mqa#pitfalls": "layers/gqa#pitfalls",
    "layers/mqa#sources": "layers/gqa#sources",
    "layers/gqa#history": "layers/gqa#sources",
    "numbers/memory#records": "numbers/memory#bits",
    "numbers/operations#quality": "learn/questions#q-38",
    "numbers/measured#backward": "numbers/measured#prefill",
    "numbers/measured#cache": "caches/kv-cache#growing",
    "numbers/measured#goals": "numbers/measured#how",
    "numbers/measured#sources": "numbers/measured#how",
    "guide": "learn/compare",
    "guide#goals": "learn/exercises#checklist",
    "guide#choose": "learn/choose",
    "guide#cases": "learn/choose#cases",
    "guide#devices": "learn/choose#devices",
    "guide#released": "models/released#years",
    "guide#conversion": "learn/choose#conversion",
    "guide#answers": "learn/questions#answers",
    "guide#questions": "learn/questions",
    "guide#questions-softmax": "learn/questions#questions-softmax",
    "guide#questions-heads": "learn/questions#questions-heads",
    "guide#questions-masks": "learn/questions#questions-masks",
    "guide#questions-positions": "learn/questions#questions-positions",
    "guide#questions-cache": "learn/questions#questions-cache",
    "guide#questions-costs": "learn/questions#questions-costs",
    "guide#questions-variants": "learn/questions#questions-variants",
    "guide#questions-serving": "learn/questions#questions-serving",
    "guide#exercises": "learn/exercises",
    "guide#exercise-softmax": "learn/exercises#exercise-softmax",
    "guide#exercise-gqa": "learn/exercises#exercise-gqa",
    "guide#exercise-cache": "learn/exercises#exercise-cache",
    "guide#checklist": "learn/exercises#checklist",
    "guide#tokenizer": "use/transformers#tokenizer",
    "guide#options": "layers/mha#weights",
    "use/transformers#options": "layers/mha#weights",
    "learn/more-questions": "learn/questions",
    **{
        f"learn/more-questions#more-{old}": f"learn/questions#questions-{new}"
        for old, new in {
            "costs": "costs",
            "heads": "heads",
            "positions": "positions",
            "recurrences": "variants",
            "scores": "softmax",
            "serving": "serving",
        }.items()
    },
    "layers/one-code": "layers/gqa#compare",
    "layers/one-code#bandwidth": "numbers/operations#decode",
    "layers/one-code#choose": "learn/choose#choose",
    "layers/one-code#proof": "layers/gqa#compare.2",
    "numbers/compute": "numbers/operations#variants",
    "numbers/compute#code": "numbers/operations#code",
    "numbers/compute#compare": "learn/questions#q-38",
    "numbers/compute#decode": "numbers/operations#decode",
    "numbers/compute#exercise": "numbers/operations#exercise",
    "numbers/compute#pitfalls": "numbers/operations#pitfalls",
    "numbers/compute#prefill": "numbers/operations#prefill",
    "numbers/layer-patterns": "models/released#layer-patterns",
    "numbers/layer-patterns#years": "models/released#years",
    "mistakes/by-symptom": "mistakes/find-your-bug",
    "mistakes/by-symptom#mistakes": "mistakes/find-your-bug#all",
    "mistakes/compressed-mistakes": "mistakes/recurrent-mistakes",
    "use/checkpoints": "use/transformers#checkpoints",
    "models/from-config": "models/your-model",
    "use/names": "conventions/names",
    "checks": "files/checks",
}
STUB = """<!doctype html>
<html lang="{language}"><head><meta charset="utf-8"><title>{new}</title>
<meta name="robots" content="noindex">
<script>location.replace({script} || {link})</script>
<meta http-equiv="refresh" content="0; url={href}">
{canonical}</head><body><p><a href="{href}">{new}</a></p></body></html>
"""


def _url(stem: str, config: Any) -> str:
    return f"{stem}/" if config.use_directory_urls else f"{stem}.html"


def _file(stem: str, config: Any) -> Path:
    url = _url(stem, config)
    return Path(config.site_dir, url, "index.html" if url[-1] == "/" else "")


def _link(new_address: str, old_address: str, config: Any) -> str:
    page, mark, id = new_address.partition("#")
    base = _url(old_address.partition("#")[0], config)
    return f"{get_relative_url(_url(page, config), base)}{mark}{id}"


def _holds(address: str, config: Any) -> bool:
    page, _, id = address.partition("#")
    file = _file(page, config)
    if not file.exists():
        return False
    return not id or f'id="{id}"' in file.read_text(encoding="utf-8")


def _address(stem: str, config: Any) -> str:
    """JavaScript: where the section that was asked for is now, if it left."""
    targets = {
        old.partition("#")[2]: _link(new, old, config)
        for old, new in MOVED.items()
        if old.startswith(f"{stem}#")
    }
    return f"{json.dumps(targets)}[location.hash.slice(1)]" if targets else ""


def script(stem: str, config: Any) -> str:
    """What a page holds for the sections that have left it."""
    targets = _address(stem, config)
    if not targets:
        return ""
    declaration = f"const to = {targets};"
    return f"<script>{{ {declaration} if (to) location.replace(to); }}</script>"


def write_stubs(config: Any, *, built: bool = True) -> None:
    """Into the site; each entry is checked if its pages are built."""
    for old, new in MOVED.items():
        if built and (not _holds(new, config) or _holds(old, config)):
            fault = f"{old} has not moved"
            if not _holds(new, config):
                fault = f"{new} is not there"
            raise BuildError(f"sitekit/moved.py, {old!r}: {fault}")
        if "#" in old:
            continue
        link, file = _link(new, old, config), _file(old, config)
        canonical = f"{config.site_url}{_url(new.partition('#')[0], config)}"
        jump = f"location.hash && {json.dumps(link)} + location.hash"
        tag = f'<link rel="canonical" href="{canonical}">\n'
        stub = STUB.format(
            language=config.theme["language"],
            new=escape(new),
            # The section that was asked for is on the new page, or on another.
            script=" || ".join(filter(None, (_address(old, config), "" if "#" in new else jump)))
            or "''",
            link=json.dumps(link),
            href=escape(link),
            canonical=tag if config.site_url else "",
        )
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(stub, encoding="utf-8")
