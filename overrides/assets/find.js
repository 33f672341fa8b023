// Find your bug: the words of the field, or a symptom and the answers to its
// questions, show the entries of the catalogue. The address keeps both.
"use strict";

const findMistakes = (() => {
  // What is said in other words, and what tells entries apart too little.
  const SAME = { half: "float16", fp16: "float16", bf16: "bfloat16", fp32: "float32", float: "float32",
    padding: "pad", pads: "pad", inf: "infinity", oom: "memory", 显存: "内存" };
  const COMMON = new Set(("a an and are as at be but by for from has have i in is it its my no not of on only or so " +
    "that the this to when which with was were wrong error runtimeerror valueerror attention 的 了 是 在 就 和 不").split(" "));
  // Words of letters, and pairs of Chinese characters, which have no spaces.
  const wordsOf = (text) => (text.toLowerCase().match(/[a-z_][a-z_0-9]*|\d[\w.]*|\p{sc=Han}+/gu) ?? [])
    .flatMap((word) => word < "\u2e80" ? [word, ...(word.includes("_") ? word.split("_").filter(Boolean) : [])]
      : [...word].slice(1).map((second, i) => word[i] + second))
    .filter((word) => !COMMON.has(word)).map((word) => SAME[word] ?? word);
  const WORTH = { called: 4, title: 3, id: 3, more: 2, lines: 2, notice: 2, symptom: 1 };
  const textOf = (html) => html.replace(/<svg.*?<\/svg>|<[^>]+>/g, " ").replace(/&(amp|lt|gt);/g, (_, x) => ({ amp: "&", lt: "<", gt: ">" })[x]);
  // What part of the words of a query, which has several, a text holds.
  const held = (text, query) => {
    const [words, own] = [[...new Set(wordsOf(query))], wordsOf(text)];
    const begins = (a, b) => b.length > 3 && a.startsWith(b);
    const like = (word) => own.some((other) => word === other || begins(word, other) || begins(other, word));
    return words.length > 1 ? words.filter(like).length / words.length : 0;
  };
  let index;
  const learn = ({ entries, symptoms }) => entries.map((entry) => {
    const worth = new Map();
    const said = { ...entry, symptom: symptoms[entry.symptom].called, id: entry.id.replaceAll("-", " ") };
    for (const [field, value] of Object.entries(WORTH))
      for (const word of wordsOf(textOf(said[field]))) worth.set(word, Math.max(value, worth.get(word) ?? 0));
    return { entry, worth, words: [...worth] };
  });
  // What a word is worth in an entry: one that it begins, or that begins it, less.
  const worthOf = (word, { worth, words }) => worth.get(word) ?? (word.length < 4 ? 0
    : 0.6 * Math.max(0, ...words.map(([other, value]) =>
      other.startsWith(word) || (other.length > 3 && word.startsWith(other)) ? value : 0)));
  const find = (query) => {
    index ??= learn(known);
    const score = index.map(() => 0);
    for (const word of new Set(wordsOf(query))) {
      const worth = index.map((each) => worthOf(word, each));
      const having = worth.filter(Boolean).length; // a word of few entries says more
      worth.forEach((n, i) => (score[i] += n && n * Math.log(1 + index.length / having)));
    }
    const most = Math.max(...score);
    return index.map(({ entry }, i) => [score[i], entry])
      .filter(([n]) => n && n >= 0.4 * most).sort((a, b) => b[0] - a[0]).map(([, entry]) => entry);
  };
  return Object.assign(find, { held });
})();

for (const door of document.querySelectorAll(".door")) {
  const [label, symptoms, asked, said, results, rest] = door.children;
  const field = label.querySelector("input");
  const SOME = 6; // entries that are shown at once
  let shown = SOME;

  // A page from file:// may fetch no other file: the entries are a script.
  const here = document.currentScript.src;
  let loaded;
  const load = () => (loaded ??= new Promise((done, failed) => {
    const script = document.createElement("script");
    Object.assign(script, { src: new URL("known-mistakes.js", here), onload: done, onerror: failed });
    document.head.append(script);
  }));

  // The questions on the way to the answer with this address, and what it finds.
  const wayTo = (key) => {
    const symptom = Object.keys(known.symptoms).find((name) => key === name || key.startsWith(`${name}-`));
    if (!symptom) return;
    const search = (question, way) => {
      if (way.at(-1) === key) return [question, way];
      for (const answer of question.answers ?? []) {
        const found = search(answer, [...way, `${symptom}-${answer.key}`]);
        if (found) return found;
      }
    };
    const found = search(known.symptoms[symptom], [symptom]);
    return found && { symptom, last: found[0], way: found[1] };
  };
  const below = ({ likely, answers }) => likely ?? answers.flatMap(below);
  // Of a question that is answered the answer alone stays: it takes itself back.
  const answers = ({ symptom, way }) => {
    let question = known.symptoms[symptom];
    let html = "";
    for (let i = 1; question?.ask; i += 1) {
      const own = question.answers.find(({ key }) => `${symptom}-${key}` === way[i]);
      const links = own ? `<a href="#${way[i - 1]}" aria-current="true">${own.say}</a>`
        : question.answers.map(({ key, say }) => `<a href="#${symptom}-${key}">${say}</a>`).join("");
      html += `<p>${question.ask}</p><p class="answers">${links}</p>`;
      question = own;
    }
    return html;
  };
  const card = ({ id, title, notice, lines }) => `<div class="found"><h3><a href="${
    symptoms.dataset.to.replace("ID", id)}">${title}</a></h3>${lines}<p>${notice}</p></div>`;

  const draw = async () => {
    const query = field.value.trim();
    const key = decodeURIComponent(location.hash.slice(1));
    const [name] = key.split("-");
    if (query || symptoms.querySelector(`[href="#${CSS.escape(name)}"]`)) await load();
    else if (!globalThis.known) return;
    const chosen = query ? undefined : wayTo(key);
    for (const link of symptoms.children) link.ariaCurrent = link.hash === `#${chosen?.symptom}` ? "true" : null;
    // A symptom that is said in the field is offered as one to choose.
    const part = (link) => Math.max(...[link.textContent, ...link.dataset.names.split("|")].map((text) => findMistakes.held(text, query)));
    const near = query && [...symptoms.children].reduce((a, b) => (part(b) > part(a) ? b : a));
    const offered = near && part(near) >= 0.75 ? near : undefined;
    asked.hidden = !chosen && !offered;
    asked.innerHTML = chosen ? answers(chosen)
      : offered ? `<p>${door.dataset.symptom}</p><p class="answers"><a href="${offered.hash}">${offered.firstChild.textContent} →</a></p>` : "";
    const { entries } = known;
    const ids = chosen && new Set(below(chosen.last));
    const found = query ? findMistakes(query) : !chosen ? []
      : chosen.way.length > 1 ? [...ids].map((id) => entries.find((entry) => entry.id === id))
      : entries.filter(({ symptom }) => symptom === chosen.symptom);
    const fill = (text, ...values) => text.replace(/\{(\d?)\}/g, (_, i) => (i ? values[i] : values.shift()));
    said.value = query || chosen
      ? found.length ? fill(door.dataset.count, found.length, entries.length) : door.dataset.none : "";
    results.innerHTML = found.slice(0, shown).map(card).join("");
    rest.hidden = found.length <= shown;
    rest.textContent = fill(door.dataset.all, found.length);
  };
  const keep = (change) => {
    const address = new URL(location);
    change(address);
    history.replaceState(null, "", address);
    shown = SOME;
    return draw();
  };

  field.value = new URL(location).searchParams.get("find") ?? "";
  field.addEventListener("focus", load);
  field.addEventListener("input", () => keep((address) => {
    address.hash = "";
    if (field.value.trim()) address.searchParams.set("find", field.value.trim());
    else address.searchParams.delete("find");
  }));
  // A choice stays where it is: the list with its address is further down.
  door.addEventListener("click", (event) => {
    const link = event.target.closest("nav a, .answers a");
    if (!link) return;
    event.preventDefault();
    field.value = "";
    history.pushState(null, "", location.pathname + link.hash);
    shown = SOME;
    draw().then(() => {
      if (!link.isConnected) (asked.querySelector(".answers:last-child a") ?? field).focus();
      // What was found is seen: the symptoms above give way to the questions.
      if (said.getBoundingClientRect().top > innerHeight / 2) asked.scrollIntoView();
    });
  });
  rest.addEventListener("click", () => {
    const first = results.childElementCount;
    shown = Infinity;
    draw().then(() => results.children[first].querySelector("a").focus());
  });
  const arrive = () => draw().then(() => asked.hidden || scrollTo(0, 0));
  addEventListener("hashchange", arrive);
  addEventListener("popstate", draw);
  arrive();
}
