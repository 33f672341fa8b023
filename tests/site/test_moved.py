"""Old addresses lead to the new ones, without a server too."""

from types import SimpleNamespace

import pytest

from sitekit import moved
from sitekit.adapter import BuildError

PAGE = "<!doctype html><title>{0}</title><h2 id={1}>{0}</h2>{2}"
MADE_UP = {
    "core/old": "caches/new",
    "core/old#split": "core/stays#stays",
    "core/stays#left": "caches/new#here",
    "older": "caches/new#here",
}


@pytest.mark.parametrize("folders", [True, False])
def test_a_page_and_a_section_that_moved_are_found(
    chromium, tmp_path, monkeypatch, folders
):
    config = SimpleNamespace(
        site_dir=tmp_path,
        site_url="https://x/",
        use_directory_urls=folders,
        theme={"language": "zh"},
    )
    monkeypatch.setattr(moved, "MOVED", MADE_UP)
    places = {}
    for stem in ("core/old", "core/stays", "caches/new", "older"):
        places[stem] = tmp_path / (f"{stem}/index" if folders else stem)
        places[stem] = places[stem].with_suffix(".html")
    for stem, id in (("core/stays", '"stays"'), ("caches/new", '"here"')):
        places[stem].parent.mkdir(parents=True)
        text = PAGE.format(stem, id, moved.script(stem, config))
        places[stem].write_text(text)
    moved.write_stubs(config)
    new = places["caches/new"].as_uri()
    new = new if not folders else new.removesuffix("index.html")
    page = chromium.new_page()
    for old, leads in (
        ("core/old", new),
        ("core/old#here", f"{new}#here"),
        ("core/stays#left", f"{new}#here"),
        ("older", f"{new}#here"),
        ("core/old#split", new.replace("caches/new", "core/stays") + "#stays"),
    ):
        stem, mark, id = old.partition("#")
        page.goto(places[stem].as_uri() + mark + id)
        page.wait_for_url(f"{leads}**")
        assert page.url.replace("/index.html", "/") == leads
    page.close()
    stub = places["older"].read_text()
    assert 'lang="zh"' in stub and 'rel="canonical" href="https://x/ca' in stub
    for old, new, why in (
        ("gone", "caches/nowhere", "caches/nowhere is not there"),
        ("gone", "caches/new#nowhere", "caches/new#nowhere is not there"),
        ("core/stays#stays", "caches/new", "core/stays#stays has not moved"),
    ):
        monkeypatch.setattr(moved, "MOVED", {old: new})
        with pytest.raises(BuildError, match=why):
            moved.write_stubs(config)


@pytest.mark.parametrize(
    "id", ["masks", "attnref.caches.kv_cache.Cache.append"]
)
def test_what_stood_on_the_page_of_the_api_is_on_those_of_its_folders(
    visit, address, id
):
    page = visit(f"{address}zh/api/#{id}")
    folder = "core" if id == "masks" else "caches"
    page.wait_for_url(f"{address}zh/api/{folder}/#{id}")
    assert page.locator(f"[id='{id}']").count() == 1


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("layers/mqa/#cost", "layers/gqa/#cost"),
        ("layers/mqa/#formula", "layers/gqa/#mqa"),
        ("layers/mqa/#history", "layers/gqa/#sources"),
        ("layers/mqa/#pitfalls", "layers/gqa/#pitfalls"),
        ("layers/mqa/#sources", "layers/gqa/#sources"),
        ("layers/mqa/#code", "layers/gqa/#mqa"),
        ("layers/one-code/#proof", "layers/gqa/#compare.2"),
        ("numbers/compute/#decode", "numbers/operations/#decode"),
        ("numbers/compute/#exercise", "numbers/operations/#exercise"),
        ("numbers/compute/#prefill", "numbers/operations/#prefill"),
        (
            "learn/more-questions/#more-heads",
            "learn/questions/#questions-heads",
        ),
        ("learn/more-questions/#more-gla", "learn/questions/#more-gla"),
    ],
)
def test_a_section_of_a_page_that_went_leads_to_its_follower(
    visit, address, old, new
):
    page = visit(f"{address}zh/{old}")
    page.wait_for_url(f"{address}zh/{new}")
    assert page.locator(f"[id='{new.partition('#')[2]}']").count() == 1
