/* The worker of the search, in place of the theme's: the same messages, the
   same shape of results. The theme's ranks sections, so that a page loses to
   those that mention it in passing, and loses words of a Chinese query.

   This one ranks pages. For each word of the query, a page scores how rare the
   word is among pages times the worth of the best place where the page has it.
   A name of the page (sitekit/search.py) counts again, by how much of it the
   query holds. What a page lacks of the query counts against all it has.

   A page whose model the query names comes before all others, whatever else is
   asked, and "llama3 70b" is Llama-3-70B. Without the size, "mixtral" names each
   model of the family, if all else that is asked is what the page of any model
   tells or what these models have.

   A page is shown from its beginning, or, if the words asked for are neither in
   its titles nor in its first lines, from the section that says most of them. */

const WORTH = { title: 4, heading: 3, text: 1.5 };
const NAMED = 8;
const LIKE = 0.4; // a word that is so close is marked
const FIRST = 1e4;
const [MODEL, FAMILY] = [2, 1]; // what of a model's name the query holds
const [PAGES, SECTIONS] = [10, 5]; // at most, of a page
const [SETUP, READY, QUERY, RESULT] = [0, 1, 2, 3];
const HAN = /\p{sc=Han}+/gu;
const FILE = /\.py$/;
const STOP = new Set(
  (
    "a an and are as at be by can do does for from how i in is it its of on " +
    "or should so that the this to use vs versus what when where which why " +
    "will with work you explained implement implementation scratch tutorial " +
    "between difference get into me my used using your implement explain " +
    "explanation simple simply mean means meaning need give gives there if but " +
    "was were has have had been would could must just only than then also they " +
    "their our we us happens expect use uses " +
    "的 了 和 与 及 或 是 在 把 被 吗 呢 怎么 怎样 如何 为什么 什么 多少 哪些 区别 " +
    "原理 详解 讲解 推导 实现 代码 手撕 手写 入门 图解 作用 能 要 写 大 不 自己 " +
    "意思 分别 通俗 为何 哪个 哪种 该 选 算 多 合适 到底 什么时候 会 几 用 要用 " +
    "还 还是 就 都 很 才 只 这 那 我 而 不是 而不是 一个 可以 需要 应该 时候 能不能 是不是"
  ).split(" "),
);

const OF_ANY_MODEL = new Set(
  (
    "kv cache size sizes memory vram gpu gpus gb config json token tokens byte " +
    "bytes per context length long many much parameters params layer layers " +
    "heads nope model need needs require requirements " +
    "缓存 显存 大小 多大 配置 上下文 长度 参数 层 层数 头 头数 模型 每个 每 占 需要"
  ).split(" "),
);

let separator; // of words: that of the theme, and what is left of markup
let pages; // path -> its names, and its entries: the page, then its sections
let places; // word -> entry -> what the word is worth there, and how often

// From file://, this is a script of a frame.
const here = globalThis.document?.currentScript.src ?? location.href;
let entries; // the script beside the settings sets them
let newest; // message with a query
let learnt; // a promise, from the first query on

addEventListener("message", async (event) => {
  const { type, data } = event.data;
  if (type === SETUP) {
    separator = new RegExp(`${data.config.separator}|[<>{}*+^~/]+`);
    postMessage({ type: READY });
  } else if (type === QUERY) {
    // NFKC: letters as wide as a Chinese character become letters.
    const query = data.normalize("NFKC").trim();
    newest = event;
    if (query) await (learnt ??= load());
    await new Promise((done) => setTimeout(done));
    if (newest !== event) return; // more has been typed
    const result = query ? answer(query) : { items: [], suggest: [] };
    postMessage({ type: RESULT, data: result });
  }
});

async function load() {
  await importScripts(new URL("../search/entries.js", here)); // a frame waits
  learn(entries);
}

/* Those of a query have parts only where the index lacks the whole. */
function wordsOf(text, asked) {
  return text
    .replace(/<[^>]*>|(?<!\w)'|'(?!\w)/g, " ")
    .replace(HAN, " $& ")
    .split(separator)
    .filter(Boolean)
    .flatMap((word) => {
      const whole = word.toLowerCase();
      if (asked && places.has(whole)) return whole;
      return [whole, ...partsOf(word)];
    });
}

/* PagedAttention is found by its parts too; ALiBi has none that are words. */
function partsOf(word) {
  if (!/[a-z][A-Z]/.test(word)) return [];
  const parts = word.split(/(?<=[a-z\d])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])/);
  if (parts.some((part) => part.length < 2)) return [];
  return parts.map((part) => part.toLowerCase());
}

/* The name of a file is one word, and like no other. */
function wordsOfName(name) {
  return FILE.test(name) ? [name] : wordsOf(name);
}

function learn(docs) {
  pages = new Map();
  places = new Map();
  for (const doc of docs) {
    const [path] = doc.location.split("#");
    if (!pages.has(path)) pages.set(path, { entries: [], names: [] });
    const page = pages.get(path);
    const entry = { doc, page };
    const worth = page.entries.push(entry) === 1 ? WORTH.title : WORTH.heading;
    // A question that folds out weighs for its page as other text does.
    put(entry, wordsOf(doc.title), doc.folds ? 0 : worth, true);
    doc.names.forEach((name, i) =>
      put(entry, wordsOfName(name), worth, !(i >= doc.titles)),
    );
    doc.aliases?.forEach((name) => put(entry, wordsOf(name), worth, false));
    put(entry, wordsOf(doc.text), 0, true);
  }
  for (const page of pages.values()) {
    const { doc } = page.entries[0];
    page.names = doc.names.map(weighed);
    page.aliases = new Set(doc.names.slice(doc.titles).flatMap(wordsOfName));
    page.models = [
      ...(doc.models ?? []).map((name) => [joined(name), MODEL]),
      ...(doc.families ?? []).map((name) => [joined(name), FAMILY]),
    ];
    for (const entry of page.entries.slice(1)) {
      entry.title = weighed(entry.doc.title);
      entry.names = (entry.doc.aliases ?? []).map(weighed);
    }
  }
}

/* The words of a name, and how rare each of them is among pages. */
function weighed(name) {
  return wordsOfName(name)
    .filter((word) => !STOP.has(word))
    .map((word) => {
      const having = [...places.get(word).keys()].map((e) => e.page);
      return { word, rarity: rarity(new Set(having).size) };
    });
}

/* What a word tells that so many of the pages have. */
function rarity(count) {
  return Math.log(1 + (pages.size - count + 0.5) / (count + 0.5));
}

/* `shown`: to a reader, unlike the aliases of a page. */
function put(entry, words, worth, shown) {
  for (const word of words) {
    if (!places.has(word)) places.set(word, new Map());
    const place = places.get(word).get(entry) ?? { worth: 0, times: 0 };
    place.worth = Math.max(place.worth, worth);
    place.shown ||= shown;
    place.times += 1;
    places.get(word).set(entry, place);
  }
}

/* Words, numbers and Chinese characters: llama3, 3.1-8b and 千问3.5 are two each,
   and the letter of a v3 is one. */
function piecesOf(text) {
  const piece = /\p{sc=Han}|[a-z]+|\d[a-z\d]*(?:\.\d[a-z\d]*)*/gu;
  return text.toLowerCase().match(piece) ?? [];
}

function joined(text) {
  return piecesOf(text).join("");
}

/* Page -> MODEL or FAMILY. Of a name within another, such as Kimi K2 in Kimi K2
   Thinking, nothing is asked. */
function modelsIn(query, words) {
  const pieces = piecesOf(query);
  const held = [];
  for (const page of pages.values())
    for (const [name, kind] of page.models)
      for (let start = 0; start < pieces.length; start += 1) {
        let end = start;
        let text = "";
        while (text.length < name.length && end < pieces.length) {
          text += pieces[end];
          end += 1;
        }
        if (text === name) held.push({ page, name, kind, start, end });
      }
  const within = (a, b) =>
    b.start <= a.start && a.end <= b.end && a.end - a.start < b.end - b.start;
  const result = new Map();
  for (const each of held) {
    const { page, name, kind } = each;
    if (held.some((other) => within(each, other))) continue;
    const rest = words.filter((word) => !name.includes(joined(word)));
    const answered = (word) => OF_ANY_MODEL.has(word) || page.aliases.has(word);
    if (kind === FAMILY && !(rest.length && rest.every(answered))) continue;
    result.set(page, Math.max(kind, result.get(page) ?? 0));
  }
  return result;
}

/* Words of a query: a run of Chinese is cut into the longest words known, the
   name of a class stays whole beside its parts, and that of a file has none. */
function wordsOfQuery(query) {
  const names = query.toLowerCase().split(/[\s/]+/);
  const rest = query.replace(/[^\s/]+\.py\b/gi, (name) =>
    places.has(name.toLowerCase()) ? " " : name,
  );
  const parts = wordsOf(rest, true).flatMap((word) => {
    if (places.has(word)) return word;
    if (word < "\u2e80") return word.split("_").flatMap(inTwo);
    const cut = [];
    for (let rest = word; rest; rest = rest.slice(cut.at(-1).length)) {
      let length = rest.length;
      const word = () => rest.slice(0, length);
      while (length > 1 && !places.has(word()) && !STOP.has(word())) length -= 1;
      cut.push(misspelt(rest, length) ?? word());
    }
    return cut;
  });
  const words = [...parts, ...names.filter((n) => places.has(n))];
  const told = words.filter((word) => !STOP.has(word));
  return [...new Set(told.length ? told : words)];
}

/* 多投注意力: the word of four characters and more that is all but one of these,
   where no more than `length` of them are a word. */
function misspelt(rest, length) {
  return [...places.keys()].find((other) => {
    if (other.length < Math.max(4, length + 2) || other[0] !== rest[0]) return;
    if (other.length > rest.length || other < "\u2e80") return;
    return [...other].filter((letter, i) => letter !== rest[i]).length === 1;
  });
}

/* llama3, or selfattention. */
function inTwo(word) {
  if (places.has(word)) return [word];
  for (let i = 3; i <= word.length - 3; i += 1)
    if (places.has(word.slice(0, i)) && places.has(word.slice(i)))
      return [word.slice(0, i), word.slice(i)];
  return word.split(/(?<=[a-z])(?=\d)/);
}

/* 1 for the word itself, less for one that it begins or is like, or 0. */
function closeness(word, other) {
  if (FILE.test(other)) return word === other ? 1 : 0;
  const chinese = word > "\u2e80";
  if (word[0] === other[0]) {
    let same = 1;
    while (same < word.length && word[same] === other[same]) same += 1;
    const share = same / Math.max(word.length, other.length);
    if (share === 1) return 1;
    if (same === word.length && (chinese || same > 1)) return 0.4 + share / 2;
    const rest = word.slice(same) + "," + other.slice(same);
    const forms = places.has(word) ? /^e?s,$/ : /^[a-z]*,[a-z]*$/;
    if (same > 3 && share >= 0.6 && forms.test(rest)) return share * 0.8;
  }
  if (chinese)
    return other.includes(word) ? word.length / other.length / 2 : 0;
  return other.includes("_") && `_${other}_`.includes(`_${word}_`) ? 0.5 : 0;
}

/* A word of the query, as far as the index has it or words like it. */
function known(word) {
  const near = mistyped(word);
  const like = new Map(); // words of the index -> how close
  const worth = new Map(); // entry -> what the word is worth there
  const shown = new Set(); // entries that show the word
  const times = new Map(); // page -> how often it is said
  for (const [other, found] of places) {
    const close = near.get(other) ?? closeness(word, other);
    if (!close) continue;
    like.set(other, close);
    for (const [entry, place] of found) {
      const value = close * (place.worth + often(place.times, 3));
      worth.set(entry, Math.max(worth.get(entry) ?? 0, value));
      if (place.shown && close >= LIKE) shown.add(entry);
      const before = times.get(entry.page) ?? 0;
      times.set(entry.page, before + close * place.times);
    }
  }
  // What is hardly like any word tells as little.
  const tells = rarity(times.size) * Math.max(0, ...like.values());
  return { word, like, worth, shown, times, tells };
}

/* For a word that begins none of the index: those that differ by a letter, or
   two of eight and more, wherever they stand. */
function mistyped(word) {
  const near = new Map();
  if (!/^[a-z]{4,}$/.test(word)) return near;
  const all = [...places.keys()];
  if (all.some((other) => other.startsWith(word))) return near;
  const most = word.length < 8 ? 1 : 2;
  let least = most;
  for (const other of all) {
    if (!/^[a-z]+$/.test(other)) continue;
    if (Math.abs(other.length - word.length) > least) continue;
    const apart = edits(word, other);
    if (apart > least) continue;
    if (apart < least) near.clear();
    least = apart;
    near.set(other, 1 - 0.15 * apart);
  }
  return near;
}

/* Letters to insert, leave out, replace or swap with the next. */
function edits(a, b) {
  let [before, row] = [[], [...Array(b.length + 1).keys()]];
  for (let i = 1; i <= a.length; i += 1) {
    const next = [i];
    for (let j = 1; j <= b.length; j += 1) {
      const same = a[i - 1] === b[j - 1] ? 0 : 1;
      next[j] = Math.min(row[j] + 1, next[j - 1] + 1, row[j - 1] + same);
      if (i > 1 && j > 1 && a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1])
        next[j] = Math.min(next[j], before[j - 2] + 1);
    }
    [before, row] = [row, next];
  }
  return row[b.length];
}

/* What it adds that a word is said so many times; half of it, at `half`. */
function often(times, half) {
  return (WORTH.text * times) / (times + half);
}

function answer(query) {
  const asked = wordsOfQuery(query);
  const words = asked.map(known).filter(({ tells }) => tells);
  const all = sum(words, ({ tells }) => tells);
  const models = modelsIn(query, asked);
  const found = [];
  for (const page of pages.values()) {
    const here = words.filter(({ times }) => times.has(page));
    if (!here.length) continue;
    const best = (names) => Math.max(0, ...names.map((n) => held(n, words)));
    const named = best(page.names);
    const other = best(page.entries.slice(1).flatMap(({ names }) => names));
    const said = sum(here, ({ tells, worth, times }) => {
      const best = Math.max(...page.entries.map((e) => worth.get(e) ?? 0));
      return tells * (best + often(times.get(page), 9));
    });
    const boost = page.entries[0].doc.boost ?? 1;
    const covered = sum(here, ({ tells }) => tells) / all;
    const score = (said * boost + Math.max(named, other * boost)) * covered ** 2;
    found.push({ page, named, score, model: models.get(page) ?? 0 });
  }
  found.sort((a, b) => b.model - a.model || byScore(a, b));
  const best = found.slice(0, PAGES);
  const completed = best
    .slice(0, 1)
    .flatMap(({ page }) => page.names.flat())
    .find(({ word }) => word.startsWith(asked.at(-1)));
  return {
    items: best.map(({ page, named, model }, i) =>
      results(page, named, words, FIRST * (best.length - i), model),
    ),
    suggest: completed ? [completed.word] : [],
  };
}

/* What the query holds of a name. */
function held(name, words) {
  let part = 0;
  let whole = 0;
  for (const { word, rarity } of name) {
    const found = words.find(({ like }) => like.has(word));
    const tells = Math.min(rarity, found?.tells ?? rarity);
    whole += tells;
    part += tells * (found?.like.get(word) ?? 0);
  }
  return whole && (NAMED * part ** 2) / whole;
}

/* A page and its best sections, the best of all first. The theme follows Enter
   to the best score of all results: so `more` for each that stands before. Of a
   model's page, the index has the beginning only: it lacks no word. */
function results(at, named, words, more, model) {
  const { entries } = at;
  const [page, ...sections] = entries.map((entry, i) => {
    const own = words.filter(({ worth }) => worth.has(entry));
    const said = sum(own, ({ tells, worth }) => tells * worth.get(entry));
    const names = i ? [entry.title, ...entry.names] : [];
    const called = Math.max(0, ...names.map((name) => held(name, words)));
    return { doc: entry.doc, own, score: said + (i ? called : named) };
  });
  if (!words.some(({ shown }) => shown.has(entries[0]))) page.score = 0;
  // Each word that is marked, with the word of the query that it is like.
  const marks = new Map(words.flatMap(({ word, like }) =>
    [...like.keys()].filter((other) => like.get(other) >= LIKE).map((other) => [other, word]),
  ));
  const told = sections.filter(({ score }) => score).sort(byScore);
  return [page, ...told.slice(0, SECTIONS)]
    .sort(byScore)
    .map(({ doc: { location, title, text }, score }) => ({
      location,
      title: marked(title, marks),
      text: teaser(text, marks),
      score: score + more,
      // These are marked on the page: no letter, and no part of a number.
      terms: Object.fromEntries(
        words.filter((w) => !/^(\d+|[a-z])$/.test(w.word)).map((w) => [w.word, w.times.has(at) || model > 0]),
      ),
    }));
}

/* The two blocks that say most words of the query, in their order: paragraphs,
   and those lines of code or of a table that say most of them. */
function teaser(html, marks) {
  const blocks = html.match(/<(p|pre|ul|ol)>.*?<\/\1>|[^<]+|<[^>]*>/gs) ?? [];
  const said = [];
  for (const block of blocks) {
    const code = block.startsWith("<pre>");
    let pieces = [block];
    if (code) pieces = block.replace(/<[^>]*>/g, "").split("\n");
    else if (block[0] !== "<") pieces = block.match(/.{1,60}(?=\s|$)|\S+/gs);
    const counts = pieces.map((piece) => {
      const text = piece.toLowerCase(); // a first look, since words take time
      if (![...marks.keys()].some((word) => text.includes(word))) return 0;
      return new Set(wordsOf(piece).map((word) => marks.get(word)).filter(Boolean)).size;
    });
    const most = Math.max(...counts);
    if (!most) continue;
    const at = counts.indexOf(most);
    said.push({ most, code, lines: pieces.slice(at, at + 4).join("\n") });
  }
  const best = said.toSorted((a, b) => b.most - a.most).slice(0, 2);
  const shown = said
    .filter((block) => best.includes(block))
    .map(({ code, lines }) => (code ? `<pre><code>${marked(lines, marks)}</code></pre>` : marked(lines, marks)));
  return shown.join("") || (blocks[0] ?? "");
}

function marked(html, marks) {
  const between = new RegExp(`(${separator.source})`);
  const mark = (w) => (marks.has(w.toLowerCase()) ? `<mark>${w}</mark>` : w);
  return html
    .split(/(<[^>]*>|&\w+;)/)
    .map((part, i) => (i % 2 ? part : part.split(between).map(mark).join("")))
    .join("");
}

function sum(list, value) {
  return list.reduce((total, each) => total + value(each), 0);
}

function byScore(a, b) {
  return b.score - a.score;
}
