// One query and four keys on a plane: where must q point? What the scale does,
// and who gets the weight of a key that is hidden.
"use strict";
{
  const FOUR = [0, 1, 2, 3], INDEX = "₁₂₃₄", UNIT = 62;
  const pair = (numbers, j) => numbers.slice(2 * j, 2 * j + 2);

  const compute = ({ q, k, v, scaled, factor, ...state }) => {
    const hidden = FOUR.map((j) => !state[`k${j + 1}`]);
    const dots = FOUR.map((j) => live.dot(q, pair(k, j)));
    const scale = factor * (scaled ? Math.SQRT1_2 : 1);
    const scores = dots.map((x, j) => (hidden[j] ? -Infinity : x * scale));
    const weights = live.softmax(scores);
    const out = [0, 1].map((d) => live.dot(weights, FOUR.map((j) => v[2 * j + d])));
    return { hidden, dots, scores, weights, out };
  };

  const keys = (figure, { q, k }, { hidden }) => {
    const drawing = figure.svg("keys", 400, 280, figure.word("keys"));
    const plane = drawing.plane(UNIT);
    const length = Math.hypot(...q) || 1, unit = q.map((z) => z / length);
    drawing.line("line", "ray query", plane.at(unit.map((z) => -5 * z)), plane.at(unit.map((z) => 5 * z)));
    for (const j of FOUR) {
      const foot = unit.map((z) => z * live.dot(unit, pair(k, j)));
      drawing.line(`ray${j}`, hidden[j] ? "ray dim" : "ray", plane.at(pair(k, j)), plane.at(foot));
    }
    for (const j of FOUR)
      plane.vector(`k${INDEX[j]}`, hidden[j] ? "key dim" : "key", pair(k, j), (end) => {
        const moved = [...k];
        moved.splice(2 * j, 2, ...end);
        figure.change({ k: moved });
      });
    plane.vector("q", "query", q, (end) => figure.change({ q: end }));
  };

  const values = (figure, { v }, { hidden, weights, out }) => {
    const drawing = figure.svg("values", 400, 280, figure.word("values"));
    const plane = drawing.plane(UNIT), seen = FOUR.filter((j) => !hidden[j]);
    // The triangles of the values that are seen: together, all that o can be.
    for (const j of FOUR)
      drawing.path(`area${j}`, "area", [plane.at(out), ...seen.filter((i) => i !== j).map((i) => plane.at(pair(v, i)))].slice(-3), true);
    for (const j of FOUR) drawing.disc(`share${j}`, "weight", plane.at(pair(v, j)), 50 * Math.sqrt(weights[j]));
    for (const j of FOUR)
      plane.vector(`v${INDEX[j]}`, hidden[j] ? "value dim" : "value", pair(v, j), (end) => {
        const moved = [...v];
        moved.splice(2 * j, 2, ...end);
        figure.change({ v: moved });
      });
    drawing.disc("out", "out", plane.at(out), 7);
    const [x, y] = plane.at(out);
    drawing.text("out.name", "out", x + 16, y, "o");
  };

  const draw = (figure, state, result) => {
    keys(figure, state, result);
    values(figure, state, result);
    const { hidden, dots, scores, weights, out } = result;
    const most = Math.max(...weights), first = weights.indexOf(most);
    const none = hidden.every(Boolean), any = hidden.some(Boolean);
    const even = weights.every((w) => Math.abs(w - 0.25) < 0.0005);
    const told = { key: `k${INDEX[first]}`, value: `v${INDEX[first]}`, most: live.number(100 * most, 0) };
    figure.say(figure.word(none ? "none" : even ? "even" : most > 0.9 ? "sharp" : any ? "hidden" : "mean", told));
    figure.table("weights", [
      ["", "q · k", figure.word("score"), figure.word("weight"), ""],
      ...FOUR.map((j) => [
        `<span class="key">k${INDEX[j]}</span>`,
        live.number(dots[j]), live.number(scores[j]), live.number(weights[j]),
        `<i class="bar" style="width: ${(100 * weights[j]).toFixed(1)}%"></i>`,
      ]),
    ]);
    const isHidden = state.factor > 0 && !none && hidden[dots.indexOf(Math.max(...dots))];
    const met = [most > 0.9, even, isHidden];
    // The last cannot be done; who did the others is told why.
    const last = met.every((isMet, n) => isMet || state.done[n] === "1") ? "never" : "leave";
    figure.tasks("tasks", ["more", "same", "hide", last].map((word, n) => [figure.word(word), met[n] ?? false]));
    figure.code("code", [
      [`scores = q @ k.mT${state.scaled ? " / q.shape[-1] ** 0.5" : ""}`, state.scaled ? "" : "bad"],
      [`scores = scores * ${state.factor}`, state.factor === 1 ? "dim" : "lit"],
      ["scores = scores.masked_fill(~mask, -torch.inf)", any ? "lit" : "dim"],
      ["weights = scores.softmax(dim=-1)", "", none ? "NaN" : figure.word("largest", { most: live.number(most) })],
      ["weights = weights.nan_to_num(0.0)", none ? "lit" : "dim"],
      ["out = weights @ v", "", out.map((z) => live.number(z)).join(", ")],
    ], "wide");
  };

  live("sdpa", {
    usual: {
      q: [1.2, 1.1], k: [1.7, -0.5, 0.3, 1.6, -1.5, 0.7, -1, -1.4],
      v: [1.6, -1.2, 1.4, 1.3, -1.3, 1.5, -1.6, -1],
      k1: true, k2: true, k3: true, k4: true, scaled: true, factor: 1, done: "0000",
    },
    mend(state) {
      for (const name of ["q", "k", "v"]) state[name] = state[name].map((z) => live.clamp(z, -3, 3));
      state.factor = live.clamp(state.factor, 0, 8);
      if (!/^[01]{3}0$/.test(state.done)) state.done = "0000";
    },
    compute, draw,
  });
}
