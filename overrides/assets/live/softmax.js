// Three scores become weights: what an offset leaves, what the temperature does,
// and where the exponentials leave the range of a dtype.
"use strict";
{
  const THREE = [0, 1, 2], INDEX = "₁₂₃", LEAST = -3, MOST = 4;
  const DTYPES = ["float16", "bfloat16", "float32"];

  // Only the range of the dtype is imitated, not its rounding.
  const compute = ({ scores, offset, temperature, safe, dtype }, data) => {
    const [largest, smallest] = data[dtype];
    const fit = (z) => (z > largest ? Infinity : z < smallest / 2 ? 0 : z);
    const x = scores.map((score) => (score + offset) / temperature);
    const top = Math.max(...x), shifted = safe ? x.map((z) => z - top) : x;
    const e = shifted.map((z) => fit(Math.exp(z))), total = fit(live.sum(e));
    return { x, shifted, e, total, weights: e.map((z) => z / total) };
  };

  const bars = (figure, { scores }) => {
    const drawing = figure.svg("scores", 400, 260, figure.word("scores"));
    const x = (j) => 80 + 120 * j, y = (score) => 140 - 28 * score;
    const change = (j, score) => {
      const moved = [...scores];
      moved[j] = Math.round(10 * score) / 10;
      figure.change({ scores: moved });
    };
    drawing.line("zero", "axes", [20, y(0)], [380, y(0)]);
    for (const j of THREE) {
      const top = y(Math.max(scores[j], 0)), bottom = y(Math.min(scores[j], 0));
      drawing.box(`bar${j}`, "bar key", x(j) - 24, top, 48, Math.max(2, bottom - top));
      drawing.text(`score${j}`, "", x(j), scores[j] < 0 ? bottom + 12 : top - 11, live.number(scores[j], 1));
      drawing.text(`name${j}`, "soft", x(j), 248, `s${INDEX[j]}`);
      drawing.handle(`hold${j}`, [x(j), y(scores[j])], {
        name: `s${INDEX[j]}`, value: live.number(scores[j], 1), now: scores[j], ends: [LEAST, MOST], r: 30,
        set: (score) => change(j, score),
        to: (_, place) => change(j, (140 - place) / 28),
        by: (dx, dy) => change(j, scores[j] + (dx + dy) / 10),
      });
    }
  };

  const shares = (figure, { weights }) => {
    const drawing = figure.svg("weights", 400, 260, figure.word("weights"));
    drawing.line("zero", "axes", [20, 230], [380, 230]);
    for (const j of THREE) {
      const x = 80 + 120 * j, height = Number.isNaN(weights[j]) ? 0 : 200 * weights[j];
      drawing.box(`bar${j}`, "bar value", x - 24, 230 - height, 48, height);
      drawing.text(`weight${j}`, Number.isNaN(weights[j]) ? "bad" : "", x, 219 - height, live.number(weights[j]));
      drawing.text(`name${j}`, "soft", x, 248, `w${INDEX[j]}`);
    }
  };

  // Large and small numbers need a power of ten.
  const short = (z) => {
    if (!Number.isFinite(z) || z === 0 || (z >= 0.005 && z < 1e5)) return live.number(z, z < 1000 ? 2 : 0);
    const [digits, power] = z.toExponential(1).split("e");
    return `${digits}e${Number(power)}`;
  };

  const draw = (figure, state, result) => {
    const { offset, temperature, safe, dtype } = state, { x, shifted, e, total, weights } = result;
    bars(figure, state);
    shares(figure, result);
    const isLost = weights.some(Number.isNaN), most = Math.max(...weights);
    const said = e.includes(Infinity) ? "overflow" : total === Infinity ? "sum" : total === 0 ? "underflow"
      : offset ? (safe ? "shifted" : "scaled") : temperature < 1 ? "sharper" : temperature > 1 ? "softer" : safe ? "safe" : "plain";
    figure.say(figure.word(said, {
      dtype, offset, temperature, most: live.number(most), total: short(total), top: live.number(Math.max(...x), 1),
      largest: short(figure.data[dtype][0]), times: live.number(1 / temperature), factor: short(Math.exp(offset / temperature)),
    }));
    const list = (numbers, write = short) => numbers.map(write).join(", ");
    figure.code("code", [
      [`x = (scores.to(torch.${dtype}) + offset) / temperature`, offset || temperature !== 1 ? "lit" : "", list(x, (z) => live.number(z, 1))],
      ["x = x - x.amax(dim=-1, keepdim=True)", safe ? "lit" : "dim", safe ? list(shifted, (z) => live.number(z, 1)) : ""],
      ["e = x.exp()", e.includes(Infinity) || total === 0 ? "bad" : "", list(e)],
      ["weights = e / e.sum(dim=-1, keepdim=True)", isLost || total === Infinity ? "bad" : "", list(weights, (z) => live.number(z))],
    ], "wide");
  };

  live("softmax", {
    usual: { scores: [2, 1, 0], offset: 0, temperature: 1, safe: false, dtype: "float16" },
    mend(state) {
      state.scores = state.scores.map((score) => live.clamp(score, LEAST, MOST));
      state.offset = live.clamp(Math.round(state.offset), -100, 100);
      state.temperature = live.clamp(state.temperature, 0.25, 4);
      if (!DTYPES.includes(state.dtype)) state.dtype = "float16";
    },
    compute, draw,
  });
}
