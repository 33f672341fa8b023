// Both bars of the roofline, for a decode step and for a prompt: the time to read
// the weights and the caches, and the time to compute with them. All times come
// from `passes` of sitekit/drawn/operations.py.
"use strict";
{
  const WIDTH = 400, LEFT = 70, TYPES = ["bf16", "fp8", "int4"], RANKS = [1, 2, 4, 8];
  const short = (x) => Number(x.toPrecision(3)).toLocaleString("en");
  const power = (n) => (2 ** n).toLocaleString("en");
  const kinds = ([weights, caches, multiply, attend]) => [[weights, caches], [multiply, attend]];

  const compute = ({ model, gpu, batch, tokens, ranks, weights, cache }, { models, gpus }) => {
    const { $, passes } = python;
    const device = $.dict(Object.entries(gpus[gpu])); // its numbers are floats
    const use = { tokens: 2 ** tokens, batch: 2 ** batch, ranks, weights, cache };
    return $.plain(passes($.from(models[model].sizes), device, $.from(use)));
  };

  // The two bars of a pass; the longer one is the limit.
  const bars = (figure, key, words, parts) => {
    const drawing = figure.svg(key, WIDTH, 88, words);
    const rows = kinds(parts), times = rows.map(live.sum), most = Math.max(...times);
    drawing.text("title", "start", 2, 12, words);
    rows.forEach((row, n) => {
      const y = 28 + 31 * n, unit = (WIDTH - LEFT - 78) / most, limit = times[n] === most;
      const ends = row.map((time) => unit * time);
      drawing.text(`name${n}`, `start small ${limit ? "on-row" : ""}`, 2, y + 12, figure.word(n ? "compute" : "read"));
      drawing.box(`weights${n}`, limit ? "of-weights" : "of-weights faint", LEFT, y, ends[0], 24, 0);
      drawing.box(`caches${n}`, limit ? "value" : "value faint", LEFT + ends[0], y, ends[1], 24, 0);
      drawing.text(`time${n}`, `start small ${limit ? "on-row" : ""}`, LEFT + unit * times[n] + 7, y + 12, `${short(times[n])} ms`);
    });
  };

  // Tokens per second by batch; beyond what fits, the line is dashed.
  const rates = (figure, { batch }, { line }) => {
    const drawing = figure.svg("rates", WIDTH, 190, figure.word("rates"));
    const right = WIDTH - 14, top = 30, bottom = 160, last = line.length - 1;
    const [low, high] = [line[0][0] / 1.4, line[last][0] * 1.4].map(Math.log10);
    const x = (n) => LEFT - 16 + ((right - LEFT + 16) * n) / last;
    const y = (rate) => bottom - ((bottom - top) * (Math.log10(rate) - low)) / (high - low);
    drawing.text("title", "start", 2, 12, figure.word("rates"));
    drawing.line("bottom", "axes", [x(0), bottom], [right, bottom]);
    for (let n = 0; n <= last; n += 2) drawing.text(`x${n}`, `${n === last ? "end" : ""} small soft`, n === last ? right + 12 : x(n), bottom + 14, power(n));
    for (const mark of live.range(7).flatMap((n) => [1, 3].map((m) => m * 10 ** n))) {
      if (Math.log10(mark) < low || Math.log10(mark) > high) continue;
      drawing.line(`grid${mark}`, "axes", [x(0), y(mark)], [right, y(mark)]);
      drawing.text(`y${mark}`, "end small soft", x(0) - 6, y(mark), mark.toLocaleString("en"));
    }
    const points = line.map(([rate], n) => [x(n), y(rate)]);
    const fits = line.filter(([, room]) => room).length;
    if (fits) drawing.path("fits", "curve fits", points.slice(0, fits));
    if (fits <= last) drawing.path("more", "ray recomputed", points.slice(Math.max(0, fits - 1)));
    if (fits <= last) drawing.text("room", "recomputed end small", right, bottom - 10, figure.word("room"));
    const [rate, room] = line[batch];
    drawing.disc("now", room ? "out" : "recomputed", points[batch], 7);
    // Below the line, which rises ever less.
    const [side, away] = batch > 6 ? ["end", 6] : ["start", 8];
    drawing.text("rate", `${side} on-row`, points[batch][0] + away, points[batch][1] + 18, `${short(rate)}/s`);
    const moved = (n) => figure.change({ batch: live.clamp(n, 0, last) });
    drawing.handle("batch", points[batch], {
      name: figure.word("batch"), value: power(batch), now: 2 ** batch, ends: [1, 2 ** last],
      set: (n) => moved(Math.log2(n)),
      to: (px) => moved(Math.round(((px - x(0)) * last) / (right - x(0)))),
      by: (dx, dy) => moved(batch + dx + dy),
    });
  };

  const draw = (figure, state, result) => {
    const { decode, prompt, taken, line } = result, { models, gpus } = figure.data;
    const count = 2 ** state.batch, tokens = power(state.tokens);
    bars(figure, "decode", figure.word(state.batch ? "decode" : "decode_one", { batch: power(state.batch) }), decode);
    bars(figure, "prompt", figure.word("prompt", { tokens }), prompt);
    rates(figure, state, result);
    const cells = [0, 1, 2, 3].map((n) => [decode[n], prompt[n]].map(short));
    figure.table("times", [
      ["ms", figure.word("of_decode"), figure.word("of_prompt")],
      ...["weights", "caches", "multiply", "attend"].map((key, n) => [figure.word(key), ...cells[n]]),
      [`<b>${figure.word("least")}</b>`, ...[decode, prompt].map((parts) => `<b>${short(Math.max(...kinds(parts).map(live.sum)))}</b>`)],
    ]);
    const [[read, sums], [first, work]] = [decode, prompt].map((parts) => kinds(parts).map(live.sum));
    const [rate, room] = line[state.batch], { name, memory } = gpus[state.gpu];
    const told = {
      model: models[state.model].name, gpu: name, taken: short(taken / 1e9), memory: short(memory / 1e9), tokens,
      read: short(read), sums: short(sums), rate: short(rate), each: short(rate / count),
      first: short(Math.max(first, work)), share: short((100 * decode[1]) / read),
      slower: live.number(result.slower), more: live.number(2 / result.slower), gain: live.number(result.gain),
    };
    const limit = sums > read ? "computing" : decode[1] > decode[0] ? "caching" : "weighing";
    const next = work > first ? "after_sums" : "after_bytes";
    told.twice = figure.word(result.room ? limit === "caching" ? "more" : "slower" : "twice_full", told);
    const both = { step: figure.word(limit, told), then: figure.word(next, told) };
    figure.say(room ? figure.word("both", both) : figure.word("full", told));
  };

  const usual = { model: 0, gpu: 1, batch: 3, tokens: 13, ranks: 1, weights: "bf16", cache: "bf16" };
  live("roofline", {
    usual,
    said: { batch: power, tokens: power },
    mend(state, { models, gpus }) {
      const within = (name, least, most) => (state[name] = live.clamp(Math.round(state[name]), least, most));
      within("model", 0, models.length - 1);
      within("gpu", 0, gpus.length - 1);
      within("batch", 0, 10);
      within("tokens", 9, 17);
      if (!RANKS.includes(state.ranks)) state.ranks = usual.ranks;
      for (const name of ["weights", "cache"]) if (!TYPES.includes(state[name])) state[name] = usual[name];
    },
    compute, draw,
  });
}
