// Where W_UK is applied: to a token when it is stored, to all tokens when they
// are read, or to the query. What each costs as the chunk and the cache grow.
"use strict";
{
  const FORMS = ["expanded", "latent", "absorbed"], KINDS = ["key", "recomputed", "latent"];
  const MODELS = ["deepseek-v3", "kimi-k2", "deepseek-v2-lite", "glm-4.7-flash", "minicpm3-4b"];
  const MOST = 4096, STOPS = [1, 2, 3, ...live.range(21).map((n) => Math.round(2 ** (2 + n / 2)))];
  const W = "Wᵁᴷ", SLOTS = [88, 220, 332];

  const cached = (n) => (n > 4 ? 2 ** n : 0);
  const time = (seconds) => live.unit(1e9 * seconds, 1000, ["ns", "µs", "ms", "s"]);

  const compute = ({ model, T, cache }, { models, costs, gpu }) => {
    const past = cached(cache);
    const parts = (T, S) => costs.map((form) => form.map((terms) => live.total(terms, { ...models[model], T, S })));
    const flops = (rows) => rows.map(([up, attention]) => up + attention);
    // Latent less absorbed is a S + b T + c T S, from which follows where both
    // are equal: c T² + (a + b + c past) T + a past = 0, in a long cache c T + a = 0.
    const less = (T, S) => live.dot([1, -1], flops(parts(T, S)).slice(1));
    const [a, b] = [less(0, 1), less(1, 0)], c = less(1, 1) - a - b;
    const half = (a + b + c * past) / (2 * c);
    const here = Math.sqrt(half ** 2 - (a * past) / c) - half;
    const rows = parts(T, past + T);
    return {
      past, here, limit: -a / c, parts: rows, flops: flops(rows),
      curves: STOPS.map((stop) => flops(parts(stop, past + stop)).map((x) => x / stop)),
      seconds: rows.map(([up, attention, read]) => Math.max((up + attention) / gpu[0], read / gpu[1])),
      // What `form_of` takes: of the forms that cache latents the cheaper one.
      best: past && T < here ? 2 : 1,
    };
  };

  // The way of a latent: into the cache, out of it, to the query.
  const way = (figure, { form, T }, { past }) => {
    const drawing = figure.svg("way", 400, 210, figure.word("way"));
    const n = FORMS.indexOf(form), rows = [42, 96, 150], middle = rows[1];
    const part = (key, kind, x, width, y = middle, height = 30) =>
      drawing.box(key, kind, x - width / 2, y - height / 2, width, height);
    const name = (key, kind, x, y, words) => drawing.text(`${key}.name`, kind, x, y, words);
    part("cache", "past", 154, 62, middle, 168);
    name("cache", "soft small", 154, 194, figure.word("cache"));
    drawing.line("in", "wire", [22, middle], [134, middle]);
    for (const [i, y] of rows.entries()) {
      drawing.path(`out${i}`, "wire", [[154, y], [258, y], [288, middle]]);
      part(`row${i}`, n ? "latent" : "key", 154, 46, y, n ? 24 : 40);
      name(`row${i}`, "on", 154, y, n ? "c" : "k, v");
      if (n !== 1) continue;
      part(`again${i}`, "recomputed", 262, 26, y);
      name(`again${i}`, "recomputed", 262, y, "k");
    }
    drawing.line("query", "wire", [296, middle], [372, middle]);
    part("c", "latent", 22, 32, middle, 24);
    name("c", "on", 22, middle, "c");
    name("new", "soft small start", 6, middle + 26, `T = ${T}`);
    drawing.disc("dot", "dot-of", [294, middle], 11);
    name("dot", "", 294, middle, "·");
    part("q", "query", 380, 32, middle, 34);
    name("q", "query", 380, middle, "q");
    for (const [i, x] of SLOTS.entries()) {
      if (i === n) continue;
      part(`slot${i}`, "slot", x, 44, middle, 38).onclick = () => figure.change({ form: FORMS[i] });
    }
    const times = (n === 1 ? past + T : T).toLocaleString("en");
    part("W", "out", SLOTS[n], 44, middle, n === 1 ? 150 : 38);
    name("W", "on", SLOTS[n], middle, n === 2 ? "Wᵀ" : W);
    name("times", n === 1 ? "bad" : "good", SLOTS[n] + (n === 1 ? 24 : 0), n === 1 ? 194 : 132, figure.word(`times ${form}`, { times }));
    name("score", "", 322, 168, ["q · k", "q · (W c)", "(Wᵀ q) · c"][n]);
    const to = (i) => figure.change({ form: FORMS[live.clamp(i, 0, 2)] });
    // From the slot where a drag began, a little is enough to reach the next.
    const chip = drawing.handle("chip", [SLOTS[n], middle], {
      name: W, value: figure.word(form), now: n, ends: [0, 2], set: to, r: 24,
      to: (x) => {
        const from = SLOTS[chip.began], side = Math.abs(x - from) < 12 ? 0 : Math.sign(x - from);
        const nearest = [0, 1, 2].filter((i) => i === chip.began || Math.sign(i - chip.began) === side);
        const beyond = side ? nearest.filter((i) => i !== chip.began) : nearest;
        if (beyond.length) to(beyond.reduce((a, b) => (Math.abs(SLOTS[b] - x) < Math.abs(SLOTS[a] - x) ? b : a)));
      },
      by: (dx, dy) => to(n + Math.sign(dx + dy)),
    });
    chip.start = () => (chip.began = n);
  };

  const LEFT = 14, X = (T) => LEFT + 30.5 * Math.log2(T);
  const chart = (figure, { form, T }, { past, here, curves, flops }) => {
    const drawing = figure.svg("chart", 400, 226, figure.word("chart"));
    const [low, high] = [Math.log(Math.min(...curves.flat())), Math.log(Math.max(...curves.flat()))];
    const Y = (x) => 160 - (104 * (Math.log(x) - low)) / (high - low);
    drawing.text("chart.name", "soft small start", LEFT, 12, figure.word("chart"));
    drawing.line("axis", "axes", [LEFT, 184], [386, 184]);
    for (const x of [1, 16, 256, 4096])
      drawing.text(`x${x}`, `soft small ${x === 1 ? "start" : x === MOST ? "end" : ""}`, X(x), 200, x.toLocaleString("en"));
    drawing.text("axis.name", "soft small start", LEFT, 218, figure.word("axis", { past: past.toLocaleString("en") }));
    if (here >= 1) {
      drawing.line("cross", "ray", [X(here), 28], [X(here), 184]);
      drawing.text("cross.name", "small start", X(here) + 6, 36, `T = ${live.number(here, 0)}`);
    }
    const n = FORMS.indexOf(form);
    FORMS.forEach((name, i) => {
      const line = STOPS.map((stop, j) => [X(stop), Y(curves[j][i])]);
      drawing.path(name, `curve ${KINDS[i]} ${i === n ? "chosen" : ""}`, line);
      drawing.text(`${name}.name`, `${KINDS[i]} small start`, X(1.6), past ? line[i === 1 ? 0 : 1][1] + (i ? -9 : 13) : 40 + 17 * i, figure.word(name));
    });
    drawing.line("now", "ray", [X(T), 28], [X(T), 184]);
    flops.forEach((x, i) => drawing.disc(`now${i}`, KINDS[i], [X(T), Y(x / T)], i === n ? 7 : 4));
    const to = (x) => figure.change({ T: x });
    drawing.handle("T", [X(T), Y(flops[n] / T)], {
      name: figure.word("new"), value: String(T), ends: [1, MOST], set: to, r: 24,
      to: (x) => to(2 ** ((x - LEFT) / 30.5)), by: (dx, dy) => to(T + dx + dy),
    });
  };

  const bars = (figure, { form }, { parts, flops, seconds }) => {
    const drawing = figure.svg("bars", 400, 216, figure.word("bars"));
    const most = [Math.max(...flops), Math.max(...parts.map((row) => row[2]))], n = FORMS.indexOf(form);
    drawing.box("chosen", "past", 0, 2 + 72 * n, 400, 66, 5);
    FORMS.forEach((name, i) => {
      const y = 6 + 72 * i, [up, attention, read] = parts[i], width = 268;
      drawing.text(`${name}.name`, `start ${KINDS[i]}`, 8, y + 8, figure.word(name));
      drawing.text(`${name}.time`, `end ${seconds[i] === Math.min(...seconds) ? "good" : "soft"}`, 392, y + 8, `≥ ${time(seconds[i])}`);
      const split = (width * up) / most[0];
      drawing.box(`${name}.up`, "out", 8, y + 21, split, 14, 0);
      drawing.box(`${name}.attention`, "query-share", 8 + split, y + 21, (width * attention) / most[0], 14, 0);
      drawing.text(`${name}.flops`, "end small", 392, y + 28, live.flops(flops[i]));
      drawing.box(`${name}.read`, `bar ${i ? "latent" : "key"}`, 8, y + 41, Math.max(1.5, (width * read) / most[1]), 14, 0);
      drawing.text(`${name}.bytes`, "end small", 392, y + 48, live.bytes(read));
    });
  };

  const draw = (figure, state, result) => {
    way(figure, state, result);
    chart(figure, state, result);
    bars(figure, state, result);
    const { form, T } = state, { past, here, limit, flops, parts, best } = result;
    const S = past + T, n = FORMS.indexOf(form), count = (x) => x.toLocaleString("en");
    const again = figure.word("again", { S: count(S) }), once = figure.word("once", { T: count(T) });
    const kept = ["cache.append(c, k_rope)", "", live.bytes(parts[n][2])];
    figure.code("code", [
      ...[
        [["k, v = kv_b_proj(c)", "", once], ["cache.append(k, v)", "bad", live.bytes(parts[0][2])]],
        [kept, ["k, v = kv_b_proj(cache)", "bad", again]],
        [kept, ["q = q @ w_k", "lit", once]],
      ][n],
      [n === 2 ? "scores = q @ cache.mT" : "scores = q @ k.mT"],
      n === 2 ? ["out = (weights @ cache) @ w_v.mT", "lit", once] : ["out = weights @ v"],
      [`form_of(layer, ${T}, ${past})`, "", `"${FORMS[best]}"`],
    ]);
    // First what is chosen, against the form that is read in its place.
    const [way_, other] = [n, n === 2 ? 0 : 2].map((i) => time(result.seconds[i]));
    const apart = Math.max(flops[1] / flops[2], flops[2] / flops[1]);
    const told = {
      bytes: live.bytes(parts[n][2]), time: way_, other, past: count(past), here: live.number(here, 0),
      limit: live.number(limit, 0), times: live.number(apart, 1), more: live.number(parts[0][2] / parts[2][2], 1),
    };
    const flop = apart < 1.05 ? "alike" : best === 2 ? "absorb" : "expand";
    figure.say([`say ${form}`, ...(past ? [flop, "cross"] : ["none"])].map((key) => figure.word(key, told)).join(" "));
  };

  live("absorb", {
    usual: { model: "deepseek-v3", form: "absorbed", T: 16, cache: 12 },
    mend(state) {
      if (!MODELS.includes(state.model)) state.model = MODELS[0];
      if (!FORMS.includes(state.form)) state.form = "absorbed";
      state.T = live.clamp(Math.round(state.T), 1, MOST);
      state.cache = live.clamp(Math.round(state.cache), 4, 17);
    },
    said: { cache: (n) => cached(n).toLocaleString("en") },
    compute, draw,
  });
}
