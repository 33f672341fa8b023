// Six tokens are written into a state of 2 by 2, token by token or three at
// once, and read again: what does each rule overwrite, and what fades?
"use strict";
{
  const SIX = live.range(6), INDEX = "₁₂₃₄₅₆", CHUNK = 3, RADIUS = 84, UNIT = 42;
  const pair = (numbers, j) => numbers.slice(2 * j, 2 * j + 2);
  const plus = (x, y) => x.map((row, i) => row.map((z, j) => z + y[i][j]));
  const times = (a, x) => x.map((row) => row.map((z) => a * z));
  const outer = (x, y) => x.map((a) => y.map((b) => a * b));
  const read = (key, state) => [0, 1].map((d) => key[0] * state[0][d] + key[1] * state[1][d]);
  const ZERO = [[0, 0], [0, 0]];

  // One token: the state fades, and what is known at the key moves to the value.
  const step = (state, key, value, decay, beta) => {
    const kept = times(decay, state), known = read(key, kept);
    const erased = beta === null ? ZERO : outer(key, known.map((z) => -beta * z));
    const written = outer(key, value.map((z) => (beta ?? 1) * z));
    return { kept, known, erased, written, state: plus(plus(kept, erased), written) };
  };

  // The tokens of a chunk at once: all that is written, `u`, solves a system
  // with 1 on its diagonal and 0 above it.
  const solve = (state, keys, values, decay, beta) => {
    const n = keys.length;
    const matrix = keys.map((key, i) => keys.map((other, j) =>
      i === j ? 1 : j > i || beta === null ? 0 : beta * decay ** (i - j) * live.dot(key, other)));
    const right = keys.map((key, i) => values[i].map((z, d) =>
      beta === null ? z : beta * (z - decay ** (i + 1) * read(key, state)[d])));
    const u = [];
    for (const i of live.range(n))
      u.push(right[i].map((z, d) => z - live.sum(u.map((row, j) => matrix[i][j] * row[d]))));
    const end = keys.reduce((sum, key, i) =>
      plus(sum, times(decay ** (n - 1 - i), outer(key, u[i]))), times(decay ** n, state));
    return { matrix, right, u, state: end };
  };

  const compute = ({ k, v, t, rule, ...rates }) => {
    const keys = k.map((turn) => [Math.cos, Math.sin].map((f) => f((turn * Math.PI) / 180)));
    const values = SIX.map((j) => pair(v, j));
    const decay = rule === "decay" || rule === "gated" ? rates.decay : 1;
    const beta = rule === "delta" || rule === "gated" ? rates.beta : null;
    const first = CHUNK * Math.floor((t - 1) / CHUNK);
    let now = { state: ZERO }, before = ZERO;
    for (const j of live.range(t)) {
      if (j === first) before = now.state;
      now = step(now.state, keys[j], values[j], decay, beta);
    }
    const chunk = solve(before, keys.slice(first, t), values.slice(first, t), decay, beta);
    const reads = keys.slice(0, t).map((key) => read(key, now.state));
    const errors = reads.map((o, j) => Math.hypot(o[0] - values[j][0], o[1] - values[j][1]));
    return { keys, values, decay, beta, first, ...now, chunk, reads, errors };
  };

  const moved = (list, start, part) => list.toSpliced(start, part.length, ...part);
  const place = (numbers) => `(${numbers.map((z) => live.number(z, 1)).join(", ")})`;

  const drawKeys = (figure, { k, t }, { keys }) => {
    const drawing = figure.svg("keys", 400, 214, figure.word("keys"));
    const middle = [200, 107];
    drawing.disc("circle", "axes", middle, RADIUS);
    for (const j of SIX) {
      const tip = [200 + RADIUS * keys[j][0], 107 - RADIUS * keys[j][1]];
      const kind = j < t ? "key" : "key dim";
      drawing.arrow(`k${j}`, kind, middle, tip, `k${INDEX[j]}`);
      const turn = (degrees) => figure.change({ k: moved(k, j, [(Math.round(degrees) + 720) % 360]) });
      drawing.handle(`k${j}.tip`, tip, {
        name: `k${INDEX[j]}`, value: `${k[j]}°`, now: k[j], ends: [0, 359], set: turn,
        to: (x, y) => turn((Math.atan2(107 - y, x - 200) * 180) / Math.PI),
        by: (dx, dy) => turn(k[j] + 3 * (dx + dy)),
      });
    }
  };

  // Where a name stands clear of what is there: beyond its point, or beside it.
  const clear = (taken, [x, y], beyond) => {
    const turns = [0, 1, -1, 2, -2, 3, -3, 4].map((n) => Math.atan2(beyond[1], beyond[0]) + (n * Math.PI) / 4);
    const places = [16, 30, 44].flatMap((r) => turns.map((turn) => [x + r * Math.cos(turn), y + r * Math.sin(turn)]));
    const room = (at) => Math.min(22, ...[at[0], 400 - at[0], at[1], 214 - at[1]].map((z) => 2 * z - 10),
      ...taken.map((other) => Math.hypot(other[0] - at[0], other[1] - at[1])));
    const best = places.reduce((a, b) => (room(b) > room(a) + 1 ? b : a));
    taken.push(best);
    return best;
  };

  const drawValues = (figure, { v, t }, { values, reads }) => {
    const drawing = figure.svg("values", 400, 214, figure.word("values"));
    const plane = drawing.plane(UNIT), done = SIX.slice(0, t);
    // What is read further out is an arrow at the edge.
    const away = reads.map((read) => [UNIT * read[0], -UNIT * read[1]]);
    const within = away.map(([x, y]) => Math.min(1, 194 / Math.abs(x), 101 / Math.abs(y)));
    const dots = away.map((way, j) => way.map((z, d) => [200, 107][d] + within[j] * z));
    const taken = [...dots, ...values.map(plane.at)];
    for (const j of done) drawing.line(`miss${j}`, "ray recomputed", dots[j], plane.at(values[j]));
    for (const j of SIX) {
      const name = `v${INDEX[j]}`, kind = j < t ? "value" : "value dim";
      plane.vector(name, kind, values[j], (end) => figure.change({ v: moved(v, 2 * j, end) }));
      drawing.text(`${name}.name`, kind, ...clear(taken, plane.at(values[j]), [values[j][0], -values[j][1]]), name);
    }
    for (const j of done) {
      const [x, y] = dots[j], far = within[j] < 1, length = Math.hypot(...away[j]);
      if (far) drawing.arrow(`far${j}`, "", away[j].map((z, d) => dots[j][d] - (14 * z) / length), dots[j]);
      else drawing.disc(`read${j}`, "out", [x, y], 5);
      const from = values[j].map((z, d) => (d ? -1 : 1) * (reads[j][d] - z));
      drawing.text(`read${j}.name`, "key small", ...clear(taken, [x, y], far ? away[j].map((z) => -z) : from), `k${INDEX[j]}`);
    }
  };

  // A matrix as cells: the further from 0, the fuller; below 0 without colour.
  const cells = (drawing, key, kind, x, y, matrix, width, height, digits) => {
    for (const [i, row] of matrix.entries())
      for (const [j, number] of row.entries()) {
        if (key === "matrix" && j > i) continue; // nothing stands above its diagonal
        const cell = [x + width * j, y + height * i, width - 2, height - 2];
        drawing.box(`${key}${i}${j}.slot`, "slot", ...cell);
        drawing.box(`${key}${i}${j}`, number < 0 ? "below" : kind, ...cell)
          .setAttribute("style", `fill-opacity: ${(0.6 * Math.min(1, Math.abs(number) / 2.5)).toFixed(3)}`);
        drawing.text(`${key}${i}${j}.text`, "small in", cell[0] + width / 2 - 1, cell[1] + height / 2 - 1, live.number(number, digits));
      }
  };

  const drawState = (figure, { chunk: together, t }, result) => {
    const drawing = figure.svg("state", 400, 212, figure.word("state"));
    const blocks = together
      ? [["matrix", "key", 0, result.chunk.matrix, "", 38], ["u", "value", 120, result.chunk.u, "", 39],
         ["right", "value", 216, result.chunk.right, "=", 39], ["now", "latent", 314, result.chunk.state, "→", 42]]
      : [["kept", "latent", 0, result.kept, "", 46], ["erased", "recomputed", 103, result.erased, "+", 46],
         ["written", "value", 206, result.written, "+", 46], ["now", "latent", 309, result.state, "=", 46]];
    for (const [key, kind, x, matrix, sign, width] of blocks) {
      const wide = width * matrix[0].length - 2;
      drawing.text(`${key}.name`, "small in soft", x + wide / 2, 10, figure.word(key));
      if (sign) drawing.text(`${key}.sign`, "in soft", x - (together ? 11 : 6), together ? 58 : 51, sign);
      cells(drawing, key, kind, x, 20, matrix, width, together ? 26 : 32, together ? 1 : 2);
    }
    // What each key misses: the distance of what it reads from its value.
    drawing.text("missed", "small soft start", 0, 112, figure.word("missed"));
    const longest = Math.max(4, ...result.errors);
    for (const j of SIX.slice(0, t)) {
      const error = result.errors[j], high = (42 * error) / longest;
      drawing.box(`error${j}`, "bar bad", 66 * j + 4, 188 - high, 44, high, 0);
      drawing.text(`error${j}.number`, "small in", 66 * j + 26, 178 - high, live.number(error));
      drawing.text(`error${j}.name`, "key in", 66 * j + 26, 202, `k${INDEX[j]}`);
    }
  };

  const draw = (figure, state, result) => {
    drawKeys(figure, state, result);
    drawValues(figure, state, result);
    drawState(figure, state, result);
    const { t, chunk } = state, { decay, beta, errors, reads, values } = result;
    const key = `k${INDEX[t - 1]}`, value = `v${INDEX[t - 1]}`, fades = decay < 1;
    const delta = beta !== null, lit = (on) => (on ? "lit" : "dim");
    const n = t - result.first;
    figure.code("code", chunk ? [
      [`L = (beta * k @ k.mT * decays).tril(-1)`, lit(delta)],
      [`b = beta * (v - past * (k @ S))`, lit(delta)],
      [`u = solve(I + L, b)`, "lit", figure.word("rows", { n })],
      [`S = decay ** ${n} * S + (until * k).mT @ u`, "lit"],
    ] : [
      ["S = decay * S", lit(fades), live.number(decay)],
      [`known = ${key} @ S`, lit(delta), delta ? place(result.known) : ""],
      [delta ? `u = beta * (${value} - known)` : `u = ${value}`, "lit", place(delta ? values[t - 1].map((z, d) => beta * (z - result.known[d])) : values[t - 1])],
      [`S = S + outer(${key}, u)`, "lit"],
      [`o = ${key} @ S`, "", place(reads[t - 1])],
    ]);
    const most = Math.max(...errors.slice(0, -1)), worst = errors.indexOf(most);
    const numbers = {
      key, value, read: place(reads[t - 1]), beta: live.number(beta ?? 1),
      error: live.number(errors[t - 1]), other: `k${INDEX[worst]}`, most: live.number(most),
      left: live.number(100 * decay ** (t - 1), 0), n,
    };
    const exact = errors[t - 1] < 0.005;
    figure.say([
      figure.word(chunk ? "together" : exact ? "exact" : delta ? "part" : "added", numbers),
      figure.word(t === 1 ? "first" : most < 0.005 ? "none" : fades ? "fades" : "lost", numbers),
    ].join(" "));
  };

  const RULES = ["linear", "decay", "delta", "gated"];
  const rate = (value, { state }, ...rules) => (rules.includes(state.rule) ? live.number(value) : "–");
  live("state", {
    usual: {
      rule: "gated", t: 3, beta: 1, decay: 0.9, chunk: false,
      k: [8, 100, 28, 155, 290, 120], v: [2, 1, -1, 1.5, 1.2, -1.6, -2.4, -0.5, 3, 0.3, -1, -1.8],
    },
    mend(state) {
      if (!RULES.includes(state.rule)) state.rule = "gated";
      state.t = live.clamp(Math.round(state.t), 1, 6);
      state.beta = live.clamp(state.beta, 0, 1);
      state.decay = live.clamp(state.decay, 0.1, 1);
      state.k = state.k.map((z) => live.clamp(z, 0, 360));
      state.v = state.v.map((z) => live.clamp(z, -4.45, 4.45)); // as far as the plane
    },
    said: {
      t: (t) => `${t} / 6`,
      beta: (value, figure) => rate(value, figure, "delta", "gated"),
      decay: (value, figure) => rate(value, figure, "decay", "gated"),
    },
    off: ({ rule }) => [...(rule === "linear" || rule === "decay" ? ["beta"] : []), ...(rule === "linear" || rule === "delta" ? ["decay"] : [])],
    compute, draw,
  });
}
