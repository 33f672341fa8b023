// What reads a config.json for the page "Your model", beside the page: a worker,
// so that no key waits for it. From file://, where no worker starts, the page
// loads it behind record.js and runs it in short tasks.
"use strict";

// What was pasted in place of JSON, by its looks.
const LOOKS = {
  empty: /^$/,
  html: /^</,
  place: /^(https?:|[\w.-]+\/[\w.-]+$)/,
  quotes: /[[{,:]\s*'/,
  comma: /,\s*[\]}]/,
  json: /^/,
};

// Answers requests by `reply`, each in steps: a step is left out once a later
// request of its kind has come.
const reader = ({ language, words, page, mib, ranks, refusals }, reply) => {
  const { $, $b } = python;
  const [pageWords, devices] = [$.from(page), $.from(mib)];
  const answerWords = $.from(words);

  // In the words of attnref, but where the text is no JSON, no object, or an
  // error has no words.
  const refused = (error, text) => {
    if (error.name === "NetworkError") return refusals.offline;
    const message = error instanceof $b.ValueError ? error.text : "";
    if (message.startsWith(python.message("the file is not JSON: {}", ""))) {
      const name = Object.keys(LOOKS).find((look) => LOOKS[look].test(text.trim()));
      return message.match(/\d+/g).reduce((line, n) => line.replace("{}", n), refusals[name]);
    }
    return message || refusals[text.trim().startsWith("{") ? "unknown" : "object"];
  };
  const tried = (text, make) => {
    try {
      return [$.plain(make()), null];
    } catch (error) {
      return [null, refused(error, text)];
    }
  };
  let counted = {}; // the last text, the sizes of its model and its weights
  const sizes = (text) => {
    if (counted.text !== text) counted = { text, both: python.weighed(text) };
    return counted.both;
  };
  const size = ({ text, reused }) => {
    const [card, uncounted] = tried(text, () => {
      const [model, stored] = sizes(text);
      return python.card(model, reused.map(BigInt), devices, ranks.map(BigInt), stored);
    });
    return { text, card, uncounted };
  };

  const kinds = {
    *read({ text }) {
      const [answer, wrong] = tried(text, () => python.answer(text, answerWords, language));
      yield null;
      yield { answer, wrong, ...size({ text, reused: answer?.reused ?? [] }) };
      for (const [i, [part]] of answer?.differs.entries() ?? [])
        yield { i, lines: python.lines_of(part, python.read(text)[1]) };
    },
    *size(request) {
      yield size(request);
    },
    *weigh({ text, use: [device, speed, count, weights, dtype, tokens] }) {
      const use = [BigInt(device), speed, BigInt(count), weights, dtype, BigInt(tokens)];
      const [memory] = tried(text, () => python.memory(...sizes(text), $.call(python.Use, use), pageWords));
      yield { memory };
    },
  };
  const newest = {};
  const pause = () => new Promise((go) => setTimeout(go));
  return async ({ kind, n, ...request }) => {
    newest[kind] = n;
    const steps = kinds[kind](request);
    for (;;) {
      await pause();
      if (newest[kind] !== n) return;
      const { value, done } = steps.next();
      if (done) return;
      if (value) reply({ kind, n, ...value });
    }
  };
};

if (typeof document === "undefined") {
  importScripts("configs.js", "record.js");
  // Of layers that few models have: a file that puts itself in this place.
  globalThis.mixerTemplates = (filters) => {
    importScripts("mixers.js");
    return mixerTemplates(filters);
  };
  let read;
  onmessage = ({ data }) => {
    if (read) read(data);
    else {
      read = reader(data, (found) => postMessage(found));
      postMessage({ kind: "ready" });
    }
  };
}
