// What MLA stores of a token, whatever the number of heads that are computed
// from it, beside what other variants store for the same heads.
"use strict";
{
  const MODELS = ["deepseek-v3", "kimi-k2", "deepseek-v2-lite", "minicpm3-4b", "own"];

  const compute = (state, { models, costs, stored }) => {
    const { model, H, R, Dr, D, layers } = state, known = models[model];
    const sizes = known ? { ...known, D: known.Dv } : { H, R, Dr, D, Dn: D, Dv: D, layers };
    const many = 2 ** state.tokens, heads = 2 ** state.K;
    const bytes = Object.fromEntries(Object.entries(stored).map(([name, terms]) => [name,
      [{ tokens: 1, layers: 1 }, { tokens: many }].map((size) => live.total(terms, { ...sizes, K: heads, ...size })),
    ]));
    const [again, once] = [1, 2].map((form) => live.total(costs[form], { ...sizes, T: 1, S: many }));
    return { sizes, many, heads, bytes, again, once };
  };

  // From x to the latent that is cached, and from there to all heads.
  const ENDS = { H: [8, 160], R: [32, 768], Dr: [8, 128], D: [32, 256], layers: [1, 200], K: [0, 3], tokens: [10, 20] };
  const C = 122, BASE = 184, TALL = 0.2, HEADS = 210, WIDE = 9, ROW = 21;
  const way = (figure, { sizes }) => {
    const drawing = figure.svg("way", 400, 268, figure.word("way"));
    const { H, R, Dr, D } = sizes, latent = TALL * R, rope = Math.max(6, TALL * Dr);
    const own = (part) => figure.change({ model: "own", H, R, Dr, D, layers: sizes.layers, ...part });
    drawing.box("cache", "past", C - 42, 20, 84, 222, 5);
    drawing.text("cache.name", "soft small", C, 254, figure.word("cache"));
    drawing.box("x", "past", 6, 96, 28, 80);
    drawing.text("x.name", "", 20, 136, "x");
    drawing.arrow("down", "", [36, 136], [C - 22, 136]);
    drawing.text("down.name", "small soft", 60, 122, "Wᴰᴷⱽ");
    drawing.box("c", "latent", C - 18, BASE - latent, 36, latent);
    drawing.text("c.name", "on", C, BASE - latent / 2, "c");
    drawing.text("c.size", "latent small", C, BASE - latent - 16, `R = ${R}`);
    drawing.box("rope", "rope solid", C - 18, BASE + 4, 36, rope);
    drawing.text("rope.name", "rope small", C - 30, BASE + 4 + rope / 2, "kᴿ");
    drawing.text("rope.size", "rope small", C, BASE + 22 + rope, `Dr = ${Dr}`);
    const columns = H / 8, end = HEADS + columns * WIDE;
    drawing.arrow("up", "recomputed", [C + 22, 136], [HEADS - 8, 136]);
    drawing.text("up.name", "recomputed small", 176, 122, "Wᵁᴷ Wᵁⱽ");
    drawing.box("again", "recomputed", HEADS - 4, 32, columns * WIDE + 7, 8 * ROW + 6);
    // Each dash of a row is a head: a row of keys, and beside them their values.
    for (const [i, kind] of ["key", "value"].entries())
      drawing.mark(kind, "path", {
        class: `heads ${kind}`,
        d: live.range(8).map((row) => `M${HEADS + 1 + 3.6 * i} ${45 + ROW * row}h${columns * WIDE - 4}`).join(""),
      });
    drawing.text("heads.name", "recomputed small start", HEADS - 4, 18, figure.word("heads", { H }));
    drawing.text("heads.size", "small start", HEADS - 4, 226, figure.word("again", { H, D }));
    const grip = (key, kind, x, y, name, value, ends, to, by) => {
      drawing.disc(`${key}.grip`, `grip ${kind}`, [x, y], 6);
      drawing.handle(key, [x, y], { name, value: String(value), ends, to, by, set: (n) => own({ [key]: n }) });
    };
    grip("R", "latent", C, BASE - latent, figure.word("rank"), R, ENDS.R,
      (x, y) => own({ R: (BASE - y) / TALL }), (dx, dy) => own({ R: R + 32 * (dx + dy) }));
    grip("Dr", "rope", C, BASE + 4 + rope, figure.word("width"), Dr, ENDS.Dr,
      (x, y) => own({ Dr: (y - BASE - 4) / TALL }), (dx, dy) => own({ Dr: Dr + 8 * (dx - dy) }));
    grip("H", "recomputed", end + 4, 122, figure.word("count"), H, ENDS.H,
      (x) => own({ H: (8 * (x - 4 - HEADS)) / WIDE }), (dx, dy) => own({ H: H + 8 * (dx + dy) }));
  };

  const stored = (figure, { sizes, bytes, many, heads }) => {
    const drawing = figure.svg("stored", 400, 268, figure.word("stored"));
    const { H, R, Dr, layers } = sizes, most = Math.max(...Object.values(bytes).map(([token]) => token));
    drawing.text("token.name", "small soft end", 262, 14, figure.word("token"));
    drawing.text("total.name", "small soft end", 398, 14, figure.word("total", { tokens: many.toLocaleString("en"), layers }));
    const rows = [
      ["mha", "MHA", "", H], ["gqa", heads === 1 ? "MQA" : "GQA", "", heads], ["mla", "MLA", "latent", 0],
    ];
    rows.forEach(([name, title, kind, n], i) => {
      const y = 44 + 76 * i, width = (396 * bytes[name][0]) / most;
      drawing.text(`${name}.name`, `start ${kind || "name"}`, 2, y, title);
      drawing.text(`${name}.heads`, "small soft start", 44, y, n ? figure.word("pairs", { n }) : `${R} + ${Dr}`);
      drawing.text(`${name}.token`, "end", 262, y, `${bytes[name][0].toLocaleString("en")} B`);
      drawing.text(`${name}.total`, "end small", 398, y, live.bytes(bytes[name][1]));
      const split = n ? width / 2 : (width * R) / (R + Dr);
      drawing.box(`${name}.first`, `bar ${n ? "key" : "latent"}`, 2, y + 14, Math.max(1, split), 22, 0);
      drawing.box(`${name}.second`, `bar ${n ? "value" : "rope"}`, 2 + split, y + 14, Math.max(1, width - split), 22, 0);
    });
  };

  const draw = (figure, state, result) => {
    way(figure, result);
    stored(figure, result);
    const { sizes, bytes, again, once } = result, times = bytes.mha[0] / bytes.mla[0];
    figure.say(figure.word(times > 1 ? "less" : "more", {
      entry: sizes.R + sizes.Dr, H: sizes.H, times: live.number(times, times < 10 ? 1 : 0),
      groups: live.number(bytes.mla[0] / bytes.mqa[0]), again: live.flops(again), once: live.flops(once),
    }));
  };

  live("mla", {
    usual: { model: "deepseek-v3", H: 128, R: 512, Dr: 64, D: 128, layers: 61, K: 3, tokens: 17 },
    mend(state) {
      if (!MODELS.includes(state.model)) state.model = MODELS[0];
      const steps = { H: 8, R: 32, Dr: 8, D: 32, layers: 1, K: 1, tokens: 1 };
      for (const [name, [least, most]] of Object.entries(ENDS))
        state[name] = live.clamp(steps[name] * Math.round(state[name] / steps[name]), least, most);
    },
    said: { K: (n) => String(2 ** n), tokens: (n) => (2 ** n).toLocaleString("en") },
    compute, draw,
  });
}
