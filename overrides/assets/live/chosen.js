// Ten keys, of which attention reads the k that an indexer scores best: what
// does it miss, and what does the output lose?
"use strict";
{
  const TEN = live.range(10), UNIT = 46;
  // Values, and how far off an indexer of error 1 is: one list, begun elsewhere
  // by each other indexer.
  const V = [[-2.2, 1.2], [1.5, 1.6], [2.6, -0.6], [-0.4, -1.7], [-2.9, -0.3], [0.4, 1.9], [3.2, 0.8], [-1.4, -1], [1.6, -1.7], [-0.6, 0.9]];
  const NOISE = [1.1, -0.7, 0.2, -1.1, 0.4, -0.9, -1.3, 0.7, 1.5, -0.3];
  const pair = (numbers, j) => numbers.slice(2 * j, 2 * j + 2);
  // The places of the n largest, in order of the text.
  const best = (scores, n) => [...TEN].sort((i, j) => scores[j] - scores[i] || i - j).slice(0, n).sort((i, j) => i - j);
  const mean = (weights) => [0, 1].map((d) => live.dot(weights, V.map((value) => value[d])));

  const compute = ({ q, k, topk, error, indexer }) => {
    const scores = TEN.map((j) => live.dot(q, pair(k, j)) * Math.SQRT1_2);
    const index = scores.map((score, j) => score + error * NOISE[(j + 3 * indexer) % 10]);
    const chosen = best(index, topk), top = best(scores, topk);
    const weights = live.softmax(scores);
    const sparse = live.softmax(scores.map((score, j) => (chosen.includes(j) ? score : -Infinity)));
    const full = mean(weights), out = mean(sparse);
    return {
      scores, index, chosen, weights, sparse, full, out,
      missed: top.filter((j) => !chosen.includes(j)),
      share: live.sum(chosen.map((j) => weights[j])),
      lost: Math.hypot(out[0] - full[0], out[1] - full[1]),
      border: Math.min(...chosen.map((j) => index[j])), // of what the indexer says
      line: Math.min(...top.map((j) => scores[j])), // of what is true
    };
  };

  // What is read is filled, what should have been read is red.
  const kindOf = ({ chosen, missed }, j, kind) =>
    chosen.includes(j) ? kind : missed.includes(j) ? "recomputed" : "unread";

  const drawKeys = (figure, { q, k }, result) => {
    const drawing = figure.svg("keys", 400, 232, figure.word("keys"));
    drawing.text("title", "small soft start", 0, 10, figure.word("q, k"));
    const plane = drawing.plane(UNIT), square = live.dot(q, q) || 1;
    // The best keys lie on one side of a line across q.
    const foot = q.map((z) => (z * result.line * Math.SQRT2) / square), far = 9 / Math.sqrt(square);
    const [from, to] = [far, -far].map((z) => plane.at([foot[0] - z * q[1], foot[1] + z * q[0]]));
    drawing.line("border", "ray", from, to);
    for (const j of TEN) {
      const [x, y] = plane.at(pair(k, j));
      drawing.disc(`k${j}`, `dot ${kindOf(result, j, "key")}`, [x, y], 11);
      drawing.text(`k${j}.name`, `small in ${result.chosen.includes(j) ? "on" : "soft"}`, x, y + 0.5, j);
      const within = (point) => {
        const end = point.map((z, d) => Math.round(20 * live.clamp(z, d ? -2.2 : -4, d ? 2.2 : 4)) / 20);
        figure.change({ k: k.toSpliced(2 * j, 2, ...end) });
      };
      drawing.handle(`k${j}.tip`, [x, y], {
        name: `k ${j}`, value: pair(k, j).map((z) => live.number(z)).join(", "), r: 16,
        now: k[2 * j], ends: [-4, 4], set: (x) => within([x, k[2 * j + 1]]),
        to: (x, y) => within([(x - 200) / UNIT, (116 - y) / UNIT]),
        by: (dx, dy) => within([k[2 * j] + dx / 20, k[2 * j + 1] + dy / 20]),
      });
    }
    plane.vector("q", "query", q, (end) => figure.change({ q: end }));
  };

  const drawScores = (figure, state, result) => {
    const drawing = figure.svg("scores", 400, 232, figure.word("scores"));
    const { scores, index, weights, chosen, border } = result;
    drawing.text("weights", "small soft start", 0, 10, figure.word("weights"));
    drawing.text("index", "small soft start", 0, 122, figure.word("index"));
    const all = [...scores, ...index], low = Math.min(...all), high = Math.max(...all, low + 1);
    const level = (score) => 208 - (68 * (score - low)) / (high - low);
    drawing.line("border", "ray", [0, level(border) + 7], [400, level(border) + 7]);
    for (const j of TEN) {
      const x = 40 * j + 20, tall = 56 * weights[j] / Math.max(...weights);
      drawing.box(`weight${j}`, `part ${kindOf(result, j, "key")}`, x - 15, 92 - tall, 30, Math.max(1, tall), 0);
      drawing.text(`weight${j}.number`, "small in", x, 82 - tall, `${live.number(100 * weights[j], 0)}%`);
      drawing.text(`name${j}`, `small in ${chosen.includes(j) ? "key" : "soft"}`, x, 103, j);
      drawing.line(`miss${j}`, "ray", [x, level(scores[j])], [x, level(index[j])]);
      drawing.line(`true${j}`, "border", [x - 7, level(scores[j])], [x + 7, level(scores[j])]);
      drawing.disc(`index${j}`, `dot ${kindOf(result, j, "key")}`, [x, level(index[j])], 6);
    }
  };

  const drawValues = (figure, state, result) => {
    const drawing = figure.svg("values", 400, 212, figure.word("values"));
    drawing.text("title", "small soft start", 0, 10, figure.word("v"));
    const plane = drawing.plane(UNIT), { full, out, weights } = result;
    for (const j of TEN) {
      const [x, y] = plane.at(V[j]);
      drawing.disc(`v${j}`, `dot ${kindOf(result, j, "value")}`, [x, y], 8 + 14 * Math.sqrt(weights[j]));
      drawing.text(`v${j}.name`, `small in ${result.chosen.includes(j) ? "on" : "soft"}`, x, y + 0.5, j);
    }
    drawing.line("lost", "lost", plane.at(full), plane.at(out));
    drawing.disc("full", "ring", plane.at(full), 7);
    drawing.disc("out", "out", plane.at(out), 5);
  };

  const draw = (figure, state, result) => {
    const { topk } = state, { chosen, missed, out, full, lost, share, weights } = result;
    const names = (list) => list.join(", ");
    const point = (numbers) => numbers.map((z) => live.number(z)).join(", ");
    const numbers = {
      n: topk, share: live.number(100 * share, 0), lost: live.number(lost), missed: names(missed),
      weight: live.number(100 * live.sum(missed.map((j) => weights[j])), 0),
    };
    const case_ = missed.length ? "missed" : share < 0.6 ? "even" : "best";
    const kept = topk === 1 ? "kept one" : "kept";
    figure.say(topk === 10 ? figure.word("all") : `${figure.word(kept, numbers)} ${figure.word(case_, numbers)}`);
    drawKeys(figure, state, result);
    drawScores(figure, state, result);
    drawValues(figure, state, result);
    figure.code("code", [
      ["scores = indexer(q)"],
      [`i = scores.topk(${topk}).indices`, missed.length ? "bad" : "lit", names(chosen)],
      ["out = sdpa(q, k[i], v[i])", "lit", point(out)],
      ["full = sdpa(q, k, v)", "", point(full)],
      ["(out - full).norm()", "", live.number(lost, 3)],
    ]);
  };

  live("chosen", {
    usual: {
      q: [2.6, 1.1], topk: 3, error: 1.5, indexer: 0,
      k: [2.9, -1.6, 1.1, 1.9, -2.4, 0.9, 2.4, 1.3, -0.8, -1.5, 0.3, -0.7, 3.4, 0.2, -3.2, -0.7, 1.8, -0.2, -0.9, 1.7],
    },
    mend(state) {
      state.q = state.q.map((z) => live.clamp(z, -4, 4));
      state.k = state.k.map((z) => live.clamp(z, -4, 4));
      state.topk = live.clamp(Math.round(state.topk), 1, 10);
      state.error = live.clamp(state.error, 0, 3);
      state.indexer = live.clamp(Math.round(state.indexer), 0, 3);
    },
    said: { topk: (n) => `${n} / 10`, error: (x) => live.number(x, 1), indexer: (n) => "ABCD"[n] },
    compute, draw, values: V, noise: NOISE, // tests read these
  });
}
