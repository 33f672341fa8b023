// Query heads that share key/value heads: which reads which, and what the cache
// takes, for each number of key/value heads that a model could have.
"use strict";
{
  const WIDTH = 400, ROW = 27;

  // Until K is moved it is the model's own: 0.
  const compute = ({ model, K: moved, head, repeat, length }, data) => {
    const { heads, kv_heads, caches, name } = data[model], K = moved || kv_heads;
    const group = heads / K;
    const right = live.range(heads).map((h) => Math.floor(h / group));
    const reads = repeat ? right.map((_, h) => h % K) : right;
    const wrong = right.map((k, h) => k !== reads[h]);
    const { token, sizes } = caches.find((cache) => cache.heads === K);
    return { name, heads, kv_heads, K, caches, group, reads, right, wrong, token, size: sizes[length - 10], reader: reads[head] };
  };

  // Query heads above, what is stored below, and a line from each to what it reads.
  const wiring = (figure, { head }, { K, heads, group, reads, wrong, reader }) => {
    const drawing = figure.svg("heads", WIDTH, 190, figure.word("heads", { heads, K }));
    const step = (WIDTH - 8) / heads, side = Math.min(22, 0.76 * step);
    const middle = (h) => 4 + step * (h + 0.5);
    const below = (k) => 4 + step * group * (k + 0.5);
    const wide = Math.min(44, 0.76 * step * group);
    drawing.text("queries", "query start", 4, 12, figure.word("queries", { heads }));
    drawing.text("stored", "key start", 4, 177, figure.word("stored", { K }));
    const lines = live.range(heads).filter((h) => h !== head);
    for (const h of [...lines, head]) {
      const kind = wrong[h] ? "recomputed" : Math.floor(h / group) % 2 ? "query odd" : "query";
      drawing.line(`wire${h}`, `wire-of ${kind} ${h === head ? "chosen" : ""}`, [middle(h), 62], [below(reads[h]), 112]);
    }
    for (const h of live.range(heads)) {
      const kind = wrong[h] ? "recomputed" : Math.floor(h / group) % 2 ? "query odd" : "query";
      drawing.box(`q${h}`, `${kind} ${h === head ? "chosen" : ""}`, middle(h) - side / 2, 40, side, 22, Math.min(3, side / 4));
    }
    for (const k of live.range(K)) {
      const on = k === reader ? "chosen" : "";
      drawing.box(`k${k}`, `key ${on}`, below(k) - wide / 2, 112, wide, 18, Math.min(3, wide / 4));
      drawing.box(`v${k}`, `value ${on}`, below(k) - wide / 2, 132, wide, 18, Math.min(3, wide / 4));
    }
    const within = (x) => live.clamp(x, 14, WIDTH - 14);
    drawing.text("head", "small query", within(middle(head)), 32, head);
    drawing.text("reader", `small ${wrong[head] ? "recomputed" : "key"}`, within(below(reader)), 160, reader);
    const moved = (h) => figure.change({ head: live.clamp(h, 0, heads - 1) });
    drawing.handle("head.tip", [middle(head), 51], {
      name: figure.word("head"), value: figure.word("read", { head, reader }), now: head, ends: [0, heads - 1], set: moved, r: 16,
      to: (x) => moved(Math.round((x - 4) / step - 0.5)),
      by: (dx, dy) => moved(head + dx + dy),
    });
  };

  // A bar for each number of heads: half keys and half values.
  // There is room for those of any model, so that nothing below moves.
  const caches = (figure, { length }, { K, caches, heads, kv_heads }) => {
    const rows = caches.length, room = Math.max(...figure.data.map((model) => model.caches.length));
    const place = caches.findIndex((cache) => cache.heads === K);
    const drawing = figure.svg("caches", WIDTH, ROW * room + 26, figure.word("caches"));
    const left = 58, most = WIDTH - left - 122, y = (n) => 26 + ROW * n;
    drawing.text("title", "start", 2, 12, figure.word("caches"));
    caches.forEach(({ heads: k, token, sizes }, n) => {
      const part = (most * token) / caches[0].token, on = n === place ? "" : "faint";
      if (n === place) drawing.box("row", "row", 0, y(n) + 1, WIDTH, ROW - 2);
      drawing.text(`name${n}`, `start small ${n === place ? "on-row" : ""}`, 6, y(n) + ROW / 2, `K = ${k}`);
      drawing.box(`keys${n}`, `key ${on}`, left, y(n) + 5, part / 2, ROW - 10, 0);
      drawing.box(`values${n}`, `value ${on}`, left + part / 2, y(n) + 5, part / 2, ROW - 10, 0);
      const what = k === kv_heads ? figure.word("real") : k === heads ? "MHA" : k === 1 ? "MQA" : "";
      drawing.text(`size${n}`, `start small ${n === place ? "on-row" : ""}`, left + part + 7, y(n) + ROW / 2, sizes[length - 10] + (what && ` · ${what}`));
    });
    const moved = (n) => figure.change({ K: caches[live.clamp(n, 0, rows - 1)].heads });
    const row = (y) => Math.floor((y - 26) / ROW);
    drawing.paint((x, y) => (y < 26 || y > 26 + ROW * rows ? undefined : row(y)), () => moved);
    drawing.handle("K", [28, y(place) + ROW / 2], {
      name: "K", value: `${K}`, ends: [1, heads], set: (k) => moved(k > 1 ? 0 : rows - 1), r: 16,
      to: (_, y) => moved(row(y)),
      by: (dx, dy) => moved(place - dx - dy),
    });
  };

  const draw = (figure, state, result) => {
    wiring(figure, state, result);
    caches(figure, state, result);
    const { name, heads, K, group, reads, right, wrong, token, size, reader } = result;
    const { head, repeat, length } = state, same = !wrong.some(Boolean);
    const order = reads.slice(0, 10).join(" ") + (heads > 10 ? " …" : "");
    figure.code("code", [
      [repeat ? `k = k.repeat(1, ${group}, 1, 1)` : `k = k.repeat_interleave(${group}, dim=1)`, repeat && !same ? "bad" : "lit", order],
    ]);
    figure.stage.querySelector(".lines").classList.add("wide");
    const told = {
      name, heads, K, group, head, reader, size, right: right[head], wrong: wrong.filter(Boolean).length,
      token: token.toLocaleString("en"), tokens: (2 ** length).toLocaleString("en"),
    };
    const key = repeat ? (same ? "alike" : wrong[head] ? "tiled" : "lucky") : K === heads ? "mha" : K === 1 ? "mqa" : "gqa";
    figure.say(figure.word(key, told));
  };

  live("gqa", {
    usual: { model: 0, K: 0, head: 13, length: 17, repeat: false },
    said: { length: (length) => (2 ** length).toLocaleString("en") },
    mend(state, data) {
      state.model = live.clamp(Math.round(state.model), 0, data.length - 1);
      const { heads, caches } = data[state.model];
      const far = (cache) => Math.abs(Math.log(cache.heads / live.clamp(state.K, 1, heads)));
      if (state.K) state.K = caches.reduce((best, cache) => (far(cache) < far(best) ? cache : best)).heads;
      state.head = live.clamp(Math.round(state.head), 0, heads - 1);
      state.length = live.clamp(Math.round(state.length), 10, 20);
    },
    compute, draw,
  });
}
