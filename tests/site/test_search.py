"""The search, asked in a browser what readers ask it.

What is right was decided before anything was tuned:

1. The name of a thing leads to its page: its abbreviation, its full name, its
   name in the other language, with or without hyphens and capitals.
2. A function or class leads to the page that shows its code, since that page
   explains it too; its entry in the API reference is among the first three.
3. A symptom or a question leads to the page whose section treats it. Where
   two pages treat it, both are right.
4. A released model leads to the table of models on Memory, or to the page
   that describes its attention.
5. A comparison leads to the page that compares, or to one of the compared.
"""

import json
import re
from itertools import accumulate

import pytest
import yaml
from playwright.sync_api import expect

from sitekit import ROOT
from tests.conftest import opened

# Page: what should lead to it. Two pages: either is right.
ASKED = {
    "en": {
        "sdpa": """
            sdpa; scaled dot product attention; scaled dot-product attention;
            dot product attention; why divide by sqrt(d_k); 缩放点积注意力;
            variance of the dot product; attention_weights""",
        "softmax": """
            softmax; online softmax; softmax overflow;
            numerically stable softmax; online_softmax; exp overflow float16""",
        "masks": """
            mask; masks; attention mask; causal mask; padding mask; 因果掩码;
            causal_mask; padding_mask; left padding; fully masked row; 掩码;
            causal mask wrong alignment; masked_fill -1e9; look-ahead mask""",
        "softmax masks": "nan softmax",
        "rope": """
            rope; rotary embedding; rotary position embedding; apply_rope;
            rotate half; rope interleaved; rope theta; positional encoding;
            旋转位置编码; position embedding""",
        "kv-cache": """
            kv cache; KVCache; kvcache; key value cache; KV 缓存; beam search;
            chunked prefill; preallocated cache; GrowingKVCache""",
        "kv-cache absorption": "speculative decoding",
        "kv-cache compute": "prefill vs decode",
        "mha": """
            mha; multi-head attention; multi head attention; 多头注意力;
            multihead attention; MultiHeadAttention; nn.MultiheadAttention""",
        "mqa": """
            mqa; multi-query attention; multi query attention; 多查询注意力;
            MultiQueryAttention""",
        "gqa": """
            gqa; GQA; grouped-query attention; grouped query attention;
            group query attention; 分组查询注意力; mha to gqa; mha_to_gqa;
            GroupedQueryAttention; uptraining""",
        "gqa conventions": "n_kv_heads",
        "cross": """
            cross attention; cross-attention; CrossAttention; 交叉注意力;
            encoder decoder attention""",
        "one-code": "mha vs gqa vs mqa",
        "one-code gqa mqa": "gqa vs mqa; mqa vs gqa",
        "mla": """
            mla; multi-head latent attention; latent attention;
            MultiHeadLatentAttention; decoupled rope; deepseek attention;
            kv_a_proj_with_mqa; 多头潜在注意力; yarn""",
        "mla conventions": "kv_lora_rank",
        "absorption": """
            absorption; mla absorption; weight absorption; absorbed mla;
            matrix absorption; 矩阵吸收""",
        "memory": """
            memory; sliding window; tensor parallel; kv cache memory; qwen3;
            gemma 3; llama 70b; gpt-oss; fp8 kv cache; longest_context""",
        "memory calculator": """
            kv cache size; kv cache bytes per token; how many sequences fit""",
        "compute": """
            compute; flops; roofline; arithmetic intensity; h100; 计算量;
            attention flops""",
        "compute one-code": "memory bound",
        "calculator": "calculator; kv cache calculator",
        "guide": "study guide; exercises; timeline; interview questions",
        "conventions": "conventions; notation; num_key_value_heads; layout",
        "api": "api; api reference",
        "index": "home",
    },
    "zh": {
        "sdpa": """
            sdpa; 缩放点积注意力; 点积注意力; 缩放点积; 注意力公式;
            为什么除以根号 d_k; scaled dot-product attention; 自注意力""",
        "softmax": """
            softmax; 在线 softmax; online softmax; softmax 溢出;
            数值稳定的 softmax; online_softmax""",
        "masks": """
            掩码; 因果掩码; 填充掩码; 注意力掩码; mask; causal mask;
            causal_mask; 左填充; padding; -1e9; 联合掩码; 整行被遮住""",
        "softmax masks": "softmax nan",
        "rope": """
            rope; 旋转位置编码; 位置编码; RoPE 两种排列; apply_rope;
            rotary position embedding; 左填充 rope 位置""",
        "kv-cache": """
            KV 缓存; KV缓存; kv cache; KVCache; kvcache; 键值缓存; 束搜索;
            增长式缓存; 分块预填充; 预分配; beam search""",
        "kv-cache absorption": "投机解码",
        "kv-cache compute": "预填充和解码; 预填充",
        "mha": """
            mha; 多头注意力; 多头; multi-head attention; MultiHeadAttention;
            多头注意力机制""",
        "mqa": """
            mqa; 多查询注意力; multi-query attention; 多查询;
            MultiQueryAttention""",
        "gqa": """
            gqa; GQA; 分组查询注意力; 分组查询; grouped-query attention;
            grouped query attention; mha 转 gqa; 均值池化; mha_to_gqa""",
        "gqa conventions": "n_kv_heads",
        "cross": "交叉注意力; cross attention; CrossAttention; 编码器 解码器",
        "one-code": "mha gqa mqa 对比",
        "one-code gqa mqa": "gqa 和 mqa 的区别; gqa vs mqa",
        "mla": """
            mla; 多头潜在注意力; 潜在注意力; 解耦 RoPE; 潜在向量; yarn;
            multi-head latent attention; deepseek 注意力; 低秩压缩""",
        "mla conventions": "kv_lora_rank",
        "absorption": """
            矩阵吸收; 吸收; mla 矩阵吸收; 权重吸收; absorption; 吸收形式""",
        "memory": """
            显存; 显存占用; 滑动窗口; 张量并行; qwen3; kv 缓存显存;
            gemma 3; fp8; kv 缓存量化; llama 70b""",
        "memory calculator": """
            kv 缓存大小; kv 缓存多少字节; 每个 token 多少字节;
            显存放得下多少序列""",
        "compute": """
            计算量; flops; 屋顶线; roofline; 算术强度; 运算次数""",
        "compute one-code kv-cache": "显存带宽; 访存受限",
        "calculator": "计算器; 显存计算器; kv 缓存计算器",
        "guide": "学习指南; 练习; 时间线; 面试题; 注意力选型",
        "conventions": "约定; 符号表; 记号; 张量布局; num_key_value_heads",
        "api": "api; api 参考",
        "index": "首页",
    },
}
# Written with the others. Nothing was tuned for them until the others were
# right, when 92 % of the English and 90 % of the Chinese were.
HELD_BACK = {
    "en": {
        "sdpa": "additive attention; q k v; attention formula; 点积",
        "softmax": "flash attention softmax; softmax temperature",
        "masks": """
            decoder_mask; cross_mask; padding_mask_from_hf; bool mask;
            mask float16 -inf; future tokens; right padding""",
        "rope": "rope_table; token_positions; rotary; rope permutation",
        "kv-cache": """
            cache; greedy decoding; crop cache; prefill; rollback;
            generate with a cache""",
        "mha": "attention heads; dropout; multi_head_loop; 多头",
        "mqa": "one kv head; Shazeer 2019; 多查询",
        "gqa": "grouped heads; mean pooling; group size; repeat_interleave",
        "cross": "cross attention cache; whisper",
        "one-code": "mha gqa mqa same code",
        "mla": """
            latent vector; multi head latent; deepseek-v2; latent cache;
            ｍｌａ""",
        "mla memory": "deepseek v3 kv cache",
        "absorption": "expanded form; crossover; absorb W_UK",
        "memory": """
            kimi k2; llama 3.1 8b; int8; released models; tensor parallelism;
            mistral; linear attention; 显存""",
        "compute": "prefill flops; operations; attention_cost; 屋顶线",
        "calculator": "calculate kv cache; 计算器",
        "conventions": "symbols; hidden_size; (B, H, T, D)",
    },
    "zh": {
        "sdpa": "注意力权重; 方差; attention_weights; 查询 键 值",
        "softmax": "数值溢出; 减去最大值; 分块 softmax",
        "masks": """
            padding_mask; decoder_mask; attention mask; 未来的 token;
            因果; 填充; 布尔掩码; 右填充""",
        "rope": "rotary; 旋转; token_positions; rope theta; 长度外推",
        "kv-cache": """
            缓存; 增量解码; 贪心解码; 回退; 预分配缓存; kv cache 原理""",
        "mha": "多头自注意力; dropout; multi head; 注意力头",
        "mqa": "multi query; 单个键值头; mqa 原理",
        "gqa": "grouped query; 查询头分组; repeat_kv; gqa 代码",
        "cross": "交叉注意力 缓存; whisper; encoder decoder",
        "mla": "潜在; mla 公式; deepseek-v2; ｍｌａ; 多头潜在; kv 低秩",
        "mla memory": "deepseek v3 显存",
        "absorption": "展开形式; 三种形式; 吸收 W^{UK}",
        "memory": """
            kimi k2; 显存公式; 模型总表; 线性注意力; int8; 滑窗; tp;
            llama 3.1 8b""",
        "compute": "计算受限; 浮点运算; 解码一步多少运算; 计算强度",
        "calculator": "计算 kv 缓存; calculator",
        "conventions": "形状约定; 字母; 名称对照; hidden_size",
    },
}

# The worker of the search, within reach: what it answers, and when.
WITHIN_REACH = """
  window.Worker = class extends Worker {
    constructor(url) {
      super(url);
      window.searching = this;
      window.ready = new Promise((done) =>
        this.addEventListener("message", ({ data }) => {
          if (data.type === 1) done();
          if (data.type === 3 && data.data.items.length)
            requestAnimationFrame((now) => (window.drawn ??= now));
        }),
      );
    }
  };
"""
# Listeners are called in order: by ours, the theme has drawn the results.
ASK = """(queries) => {
  const input = document.querySelector(".md-search__input");
  const ask = (query) => new Promise((done) => {
    searching.addEventListener("message", () => done(
      [...document.querySelectorAll(".md-search-result__item")].map((item) =>
        [...item.querySelectorAll("a")].map((a) => a.href)),
    ), { once: true });
    input.value = query;
    input.dispatchEvent(new KeyboardEvent("keyup"));
  });
  return ready.then(async () => {
    const answers = {};
    for (const query of queries) answers[query] = await ask(query);
    return answers;
  });
}"""

SINCE_THE_INDEX = """() => drawn - performance.getEntriesByType("resource")
  .find(({ name }) => name.includes("search_index")).responseEnd"""


def questions(language):
    """Each query with the pages that are right, from both lists."""
    return {
        " ".join(query.split()): pages.split()
        for asked in (ASKED[language], HELD_BACK[language])
        for pages, queries in asked.items()
        for query in queries.split(";")
    }


@pytest.fixture(scope="module", params=["en", "zh"])
def answers(request, chromium, address):
    """Query -> the results, each a list of links on one page."""
    root = address + {"en": "", "zh": "zh/"}[request.param]
    with opened(chromium, "about:blank") as page:
        page.add_init_script(WITHIN_REACH)
        page.goto(root)
        page.locator(".md-search__input").focus()
        found = page.evaluate(ASK, list(questions(request.param)))
        assert page.faults == []
    return request.param, {
        query: [
            [re.sub(r"\?[^#]*", "", link.removeprefix(root)) for link in links]
            for links in results
        ]
        for query, results in found.items()
    }


def place(links):
    path = links[0].partition("#")[0].strip("/")
    return path.rpartition("/")[2] or "index"


def test_the_page_that_is_named_comes_first(answers):
    language, found = answers
    asked = questions(language)
    assert len(asked) > 150
    misses = {
        query: [place(links) for links in found[query][:3]]
        for query, right in asked.items()
        if not found[query] or place(found[query][0]) not in right
    }
    first = 1 - len(misses) / len(asked)
    assert first >= 0.95, f"{first:.0%} of {len(asked)}, not: {misses}"


def test_letters_of_a_chinese_keyboard_are_letters(answers):
    """Some keyboards are set to letters as wide as a Chinese character."""
    assert place(answers[1]["ｍｌａ"][0]) == "mla"


def test_the_entry_of_a_function_stands_below_its_page(answers, site):
    language, found = answers
    objects = {
        entry["location"].rpartition(".")[2]: entry["location"]
        for entry in index(site, language)
        if entry["location"].startswith("api/#attnref.")
    }
    asked = objects.keys() & found.keys()
    assert len(asked) > 10
    for name in asked:
        assert place(found[name][0]) != "api", name
        assert any(objects[name] in links for links in found[name][:3]), name


def index(site, language):
    root = site.folder / {"en": "", "zh": "zh"}[language]
    text = (root / "search" / "search_index.json").read_text(encoding="utf-8")
    return json.loads(text)["docs"]


def test_terms_are_words_of_the_chinese_index(site):
    terms = set((ROOT / "docs" / "zh-terms.txt").read_text("utf-8").split())
    assert len(terms) > 60
    whole, apart = set(), set()
    for entry in index(site, "zh"):
        for text in (entry["title"], entry["text"], *entry["names"]):
            for run in re.findall(r"[\u4e00-\u9fff\u200b]+", text):
                words = list(filter(None, run.split("\u200b")))
                whole |= terms & set(words)
                for i in range(len(words)):
                    joined = accumulate(words[i:])
                    apart |= terms & set(list(joined)[1:8])
    assert apart == set()
    assert len(whole) > 50


def test_titles_of_the_chinese_pages_are_terms(site):
    """So a title that somebody types is one word, and finds its page first."""
    names = yaml.safe_load((ROOT / "mkdocs.zh.yml").read_text("utf-8"))["nav"]
    words = re.compile(r"[\s\u200b]+")
    known = {
        word
        for entry in index(site, "zh")
        if "#" not in entry["location"]
        for name in entry["names"]
        for word in words.split(name)
    }
    titles = {
        run
        for title in titles_of(names)
        if "，" not in title  # a sentence
        for run in re.findall(r"[\u4e00-\u9fff]+", title)
    }
    assert len(titles) > 12
    assert titles - known == set()


def titles_of(nav):
    for item in nav:
        for title, below in item.items():
            if isinstance(below, str):
                yield title
            else:
                yield from titles_of(below)


def test_cells_of_a_table_are_words_of_their_own(site):
    """The search's parser knows no cells: it would write sourceGPT-2."""
    for language in ("en", "zh"):
        text = " ".join(entry["text"] for entry in index(site, language))
        assert re.search(r"(^|\s)GPT-2 small\s+36,864\s+36,864", text)
        assert "FalconGemma" not in text, "the choices of a menu"


def test_the_index_is_fetched_when_a_reader_turns_to_the_search(visit, address):
    page = visit(address + "core/masks/")
    assert not [u for u in page.urls if "/search/" in u]
    with page.expect_response("**/search/search_index.json"):
        page.locator(".md-search__input").focus()
    assert not [u for u in page.urls if "lunr" in u or "/workers/" in u]


@pytest.mark.alone
@pytest.mark.parametrize(("root", "query"), [("", "gqa"), ("zh/", "掩码")])
def test_results_stand_soon_after_the_index(chromium, address, root, query):
    """Asked before the index came; the quickest of five visits counts, since
    others may keep the machine busy."""
    took = []
    for _ in range(5):
        with opened(chromium, "about:blank") as page:
            page.add_init_script(WITHIN_REACH)
            page.goto(address + root)
            field = page.locator(".md-search__input")
            field.evaluate("(input, query) => (input.value = query)", query)
            field.focus()
            page.wait_for_selector(".md-search-result__item")
            took.append(page.evaluate(SINCE_THE_INDEX))
    assert min(took) <= 300, took


def test_a_result_shows_the_words_that_were_asked(visit, address):
    page = visit(address)
    field = page.locator(".md-search__input")
    field.focus()
    page.keyboard.insert_text("minimax m3")
    field.press("Shift")  # the theme listens to keys coming up
    first = page.locator(".md-search-result__item").first
    expect(first.locator("h2").first).to_have_text("Released models")
    shown = first.locator("article").nth(1)
    assert {"Mini", "Max", "M3"} <= set(shown.locator("mark").all_inner_texts())
    assert len(shown.inner_text()) < 800, "of a table, not all of it"
    page.keyboard.press("Enter")
    page.wait_for_url("**/numbers/memory/?h=*#models")
