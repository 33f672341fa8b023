// One query reads eight keys tile by tile: how m, total and acc come to the
// output of softmax over the whole row, and where four mistakes lead instead.
"use strict";
{
  const KEYS = 8, UNIT = 92, LEAST = -2, MOST = 6;
  const MISTAKES = ["acc", "total", "maximum", "divided"];
  const tiles = ({ size }) => Math.ceil(KEYS / size);
  const mean = (weights, values) => [0, 1].map((d) => live.sum(weights.map((w, j) => w * values[j][d])));

  // The state after each tile, as in plain/flash.py or with a mistake in it.
  const compute = ({ scores, size, code }, { values }) => {
    let m = -Number.MAX_VALUE, total = 0, shares = []; // shares of the values in acc
    const states = [{ m, rescale: 1, total, acc: [0, 0], out: [0, 0], weights: shares }];
    for (let j = 0; j < KEYS; j += size) {
      const tile = scores.slice(j, j + size), top = Math.max(...tile);
      const larger = Math.max(m, top), rescale = Math.exp(m - larger);
      const p = tile.map((score) => Math.exp(score - (code === "maximum" ? top : larger)));
      total = total * (code === "total" ? 1 : rescale) + live.sum(p);
      shares = [...shares.map((share) => share * (code === "acc" ? 1 : rescale)), ...p];
      if (code === "divided") shares = shares.map((share) => share / total);
      const weights = code === "divided" ? shares : shares.map((share) => share / total);
      m = larger;
      states.push({ m, rescale, total, acc: mean(shares, values), out: mean(weights, values), weights });
    }
    const truth = live.softmax(scores), ring = mean(truth, values), { out, weights } = states.at(-1);
    return { states, truth, ring, off: Math.hypot(out[0] - ring[0], out[1] - ring[1]), sum: live.sum(weights) };
  };

  const bars = (figure, state, { states }) => {
    const { scores, size, read } = state, drawing = figure.svg("bars", 400, 280, figure.word("bars"));
    const x = (j) => 8 + 45.5 * j, y = (score) => 196 - 25 * score;
    const change = (j, score) => {
      const moved = [...scores];
      moved[j] = Math.round(10 * score) / 10;
      figure.change({ scores: moved });
    };
    for (const n of live.range(tiles(state))) {
      const [start, end] = [n * size, Math.min(KEYS, (n + 1) * size)];
      drawing.box(`tile${n}`, end === Math.min(read, KEYS) ? "now" : end <= read ? "past" : "slot", x(start), 4, 45.5 * (end - start) - 4, 272, 6);
    }
    for (const j of live.range(KEYS)) {
      const top = y(Math.max(scores[j], 0)), bottom = y(Math.min(scores[j], 0)), middle = x(j) + 20.75;
      drawing.box(`bar${j}`, j < read ? "bar key" : "bar key dim", middle - 11, top, 22, Math.max(2, bottom - top));
      drawing.text(`score${j}`, "", middle, scores[j] < 0 ? bottom + 10 : top - 9, live.number(scores[j], 1));
      drawing.text(`key${j}`, "soft", middle, 266, `k${j + 1}`);
    }
    const { m } = states[Math.ceil(read / size)];
    if (read) {
      drawing.line("m", "ray", [8, y(m)], [378, y(m)]);
      drawing.text("m.name", "", 388, y(m), "m");
    }
    for (const j of live.range(KEYS))
      drawing.handle(`hold${j}`, [x(j) + 20.75, y(scores[j])], {
        name: `k${j + 1}`, value: live.number(scores[j], 1), now: scores[j], ends: [LEAST, MOST],
        set: (score) => change(j, score),
        to: (_, place) => change(j, (196 - place) / 25),
        by: (dx, dy) => change(j, scores[j] + (dx + dy) / 10),
      });
  };

  const plane = (figure, { size, read }, { states, truth, ring }) => {
    const { values } = figure.data, drawing = figure.svg("plane", 400, 280, figure.word("plane"));
    const place = ([x, y]) => [200 + 1.25 * UNIT * x, 140 - UNIT * y];
    const radius = (weight) => 46 * Math.sqrt(Math.max(0, weight));
    const last = Math.ceil(read / size), { out, weights } = states[last];
    for (const j of live.range(KEYS)) {
      const [x, y] = place(values[j]), now = Math.min(90, radius(weights[j] ?? 0)), end = radius(truth[j]);
      drawing.disc(`share${j}`, "weight", [x, y], now);
      drawing.disc(`truth${j}`, "goal", [x, y], end);
      const away = (12 + Math.max(6, Math.min(now, 50), end)) / Math.hypot(x - 200, y - 140);
      const name = [x + away * (x - 200), live.clamp(y + away * (y - 140), 8, 272)];
      drawing.text(`v${j}`, j < read ? "value" : "value dim", ...name, `v${j + 1}`);
    }
    const walked = states.slice(1, last + 1).map((state) => place(state.out));
    if (walked.length) drawing.path("walked", "wire", walked);
    walked.forEach((at, n) => drawing.disc(`walked${n}`, "out dim", at, 3.5));
    drawing.disc("ring", "goal ring", place(ring), 11);
    if (!last) return;
    const [x, y] = place(out), [cx, cy] = [live.clamp(x, 8, 392), live.clamp(y, 8, 272)];
    drawing.disc("out", "out", [cx, cy], 6);
    drawing.text("out.name", "out", cx > 370 ? cx - 18 : cx + 18, live.clamp(cy - 8, 12, 268), "o");
  };

  const draw = (figure, state, result) => {
    const { fields, data } = figure, { size, read, code } = state, number = live.number;
    Object.assign(fields.read, { max: tiles(state) * size, step: size });
    bars(figure, state, result);
    plane(figure, state, result);
    const n = Math.ceil(read / size), done = n === tiles(state), now = result.states[n], before = result.states[n - 1];
    const pair = (numbers) => numbers.map((z) => number(z)).join(", ");
    const grew = n > 1 && now.m > before.m;
    // What the lines give, by the name that begins them.
    const gives = !n ? {} : {
      larger: n > 1 && grew ? `${number(before.m)} → ${number(now.m)}` : number(now.m),
      p: number(now.rescale), total: number(now.total), acc: pair(now.acc), outs: done ? pair(now.out) : "",
    };
    const acts = !n ? [] : done ? ["outs"] : grew ? ["larger", "p", "total", "acc"] : ["total", "acc"];
    const { off, sum } = result, isOff = !(off < 1e-9);
    const told = {
      n, m: number(now.m), factor: number(now.rescale), off: number(off, 3), sum: number(sum),
      code: data.ids[code] && `<a href="../../mistakes/${data.ids[code]}/">${data.ids[code]}</a>`, tiles: tiles(state),
    };
    figure.say(figure.word(
      code !== "right" ? (isOff ? "wrong" : "hidden")
      : !n ? "none" : done ? (n > 1 ? "done" : "only") : n === 1 ? "first" : grew ? "grew" : "same", told));
    figure.code("code", data.lines[code].map(([line, isWrong]) => {
      const [name] = line.match(/\w+/);
      return [line, isWrong ? "bad" : acts.includes(name) ? "lit" : "", gives[name] ?? ""];
    }), "wide");
  };

  live("flash", {
    usual: { scores: [1.2, 0.4, 2.1, -0.6, 1.6, 4.2, 0.2, 3.4], size: 2, read: 6, code: "right" },
    mend(state) {
      state.scores = state.scores.map((score) => live.clamp(score, LEAST, MOST));
      state.size = live.clamp(Math.round(state.size), 1, KEYS);
      state.read = state.size * live.clamp(Math.ceil(state.read / state.size), 0, tiles(state));
      if (!MISTAKES.includes(state.code)) state.code = "right";
    },
    compute, draw,
    said: { read: (read, { state }) => `${read / state.size} / ${tiles(state)}` },
  });
}
