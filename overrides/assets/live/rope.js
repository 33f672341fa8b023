// A query and a key on a text of 64 tokens: the angle between them in each pair,
// the score by distance, and how scaling turns pairs back to angles that
// training has seen.
"use strict";
{
  const END = 64, X = 14, STEP = 5.9; // a token of the text is 5.9 wide
  const HALVES = live.range(2 * END - 1).map((n) => n / 2);
  const turn = (angle) => angle % (2 * Math.PI);

  const compute = ({ i, j, base, D, rule, stretch, pair }, { trained, scalings }) => {
    const pairs = live.range(D / 2), plain = pairs.map((p) => base ** ((-2 * p) / D));
    const scaling = rule === "none" ? undefined : scalings[`${rule} ${2 ** stretch}`];
    const slowed = scaling ? scaling.slowed[`${base} ${D}`] : pairs.map(() => 1);
    const speeds = plain.map((speed, p) => speed * slowed[p]);
    const scale = scaling ? scaling.scale ** 2 : 1; // of queries and of keys
    // The score of a vector of length 1, all pairs equally long, with itself.
    const score = (distance, of = speeds) => live.sum(of.map((speed) => Math.cos(distance * speed))) / pairs.length;
    const d = i - j;
    // A pair has seen all angles up to its angle over the trained length.
    const reach = plain.map((speed) => Math.min(trained * speed, 2 * Math.PI));
    return {
      d, speeds, reach, score: scale * score(d),
      query: speeds.map((speed) => turn(i * speed)), key: speeds.map((speed) => turn(j * speed)),
      between: speeds.map((speed) => d * speed),
      unseen: pairs.filter((p) => turn(d * speeds[p]) > reach[p] + 1e-9),
      // At every half token, so that fast pairs are round.
      curve: HALVES.map((n) => scale * score(n)),
      before: HALVES.map((n) => score(n, plain)),
      cosines: HALVES.map((n) => Math.cos(n * speeds[pair])),
      scale,
      wavelength: (2 * Math.PI) / speeds[pair],
      code: scaling?.code,
    };
  };

  const point = ([x, y], radius, angle) => [x + radius * Math.cos(angle), y - radius * Math.sin(angle)];
  const degrees = (angle) => live.number((180 / Math.PI) * angle, angle < 1 ? 1 : 0);

  const dials = (figure, { pair }, { query, key, between, reach, unseen }) => {
    const n = query.length, columns = n > 4 ? 4 : 2, radius = n > 4 ? 42 : 52;
    const drawing = figure.svg("dials", 400, 300, figure.word("dials"));
    for (const p of live.range(n)) {
      const middle = [(400 / columns) * ((p % columns) + 0.5), n > 2 ? 74 + 154 * Math.floor(p / columns) : 140];
      const kind = unseen.includes(p) ? "recomputed" : "";
      const dial = drawing.disc(`dial${p}`, p === pair ? "dial chosen" : "dial", middle, radius);
      dial.onclick = () => figure.change({ pair: p });
      // From the key on: the angles that training has seen.
      const arc = live.range(33).map((k) => point(middle, radius, key[p] + (k / 32) * reach[p]));
      drawing.path(`seen${p}`, "seen", reach[p] < 2 * Math.PI ? [middle, ...arc] : arc, true);
      drawing.arrow(`k${p}`, "key", middle, point(middle, radius, key[p]));
      drawing.arrow(`q${p}`, kind || "query", middle, point(middle, radius, query[p]));
      drawing.text(`p${p}`, "soft small", middle[0], middle[1] - radius - 12, `p = ${p}`);
      drawing.text(`angle${p}`, `small ${kind}`, middle[0], middle[1] + radius + 13, `${degrees(between[p])}°`);
    }
  };

  const text = (drawing, figure, { i, j }, { d }) => {
    const at = (n) => X + STEP * n, to = (x) => Math.round((x - X) / STEP);
    drawing.line("line", "axes", [at(0), 39], [at(END - 1), 39]);
    for (const n of [0, 16, 32, 48, 63]) drawing.text(`n${n}`, "soft small", at(n), 74, n);
    drawing.line("distance", "span", [at(j), 39], [at(i), 39]);
    drawing.box("key", "token key", at(j) - 7, 43, 14, 14);
    drawing.box("query", "token query", at(i) - 7, 21, 14, 14);
    drawing.text("k", "key", at(j) - 16, 50, "k");
    drawing.text("q", "query", at(i) - 16, 28, "q");
    const both = (by) => {
      const moved = live.clamp(by, -j, END - 1 - i);
      figure.change({ i: i + moved, j: j + moved });
    };
    drawing.handle("move k", [at(j), 52], {
      name: figure.word("key"), value: j, r: 14, ends: [0, i], set: (n) => figure.change({ j: n }),
      to: (x) => figure.change({ j: Math.min(i, to(x)) }), by: (dx, dy) => figure.change({ j: Math.min(i, j + dx + dy) }),
    });
    drawing.handle("move q", [at(i), 26], {
      name: figure.word("query"), value: i, r: 14, ends: [j, END - 1], set: (n) => figure.change({ i: n }),
      to: (x) => figure.change({ i: Math.max(j, to(x)) }), by: (dx, dy) => figure.change({ i: Math.max(j, i + dx + dy) }),
    });
    // In the middle both are held: the distance stays.
    const middle = (i + j) / 2;
    drawing.disc("middle", "middle", [at(middle), 39], 3.5);
    drawing.handle("move both", [at(middle), 39], {
      name: figure.word("both"), value: figure.word("places", { i, j }), r: 14,
      now: j, ends: [0, END - 1 - d], set: (n) => both(n - j),
      to: (x) => both(Math.round((x - X) / STEP - middle)), by: (dx, dy) => both(dx + dy),
    });
  };

  // Below the text, at the same scale.
  const curve = (drawing, figure, { j, rule }, { d, curve, before, cosines, score }, { trained }) => {
    const top = Math.max(1, ...curve), y = (s) => 112 + (76 * (top - s)) / top, x = (n) => X + STEP * n;
    const line = (scores) => scores.map((s, n) => [x(n / 2), y(s)]);
    drawing.box("unseen", "unseen", x(trained), 106, x(END - 1) - x(trained), 164, 0);
    drawing.line("zero", "axes", [x(0), y(0)], [x(END - 1), y(0)]);
    drawing.path("pair", "curve pair", line(cosines));
    if (rule !== "none") drawing.path("before", "ray", line(before));
    drawing.path("score", "curve score", line(curve));
    drawing.disc("point", "query", [x(d), y(score)], 6);
    drawing.text("trained", "small start soft", x(trained) + 4, 284, figure.word("unseen"));
    drawing.text("d", "small soft", x(trained / 2), 284, figure.word("distance"));
    drawing.handle("move score", [x(d), y(score)], {
      name: figure.word("distance"), value: d, r: 16, ends: [0, END - 1 - j], set: (n) => figure.change({ i: j + n }),
      to: (at) => figure.change({ i: live.clamp(j + Math.round((at - X) / STEP), j, END - 1) }),
      by: (dx, dy) => figure.change({ i: Math.max(j, j + d + dx + dy) }),
    });
  };

  const draw = (figure, state, result) => {
    const { data } = figure, { base, D, pair, rule, i, j } = state;
    if (!figure.heard) {
      // Whoever stretches asks for a scaling.
      figure.heard = true;
      figure.box.addEventListener("input", ({ target }) => {
        if (target.name === "stretch" && figure.state.rule === "none") figure.state.rule = "linear";
      }, true);
    }
    figure.fields.pair.max = D / 2 - 1;
    const drawing = figure.svg("text", 400, 300, figure.word("text"));
    text(drawing, figure, state, result);
    curve(drawing, figure, state, result, data);
    dials(figure, state, result);
    const { d, score, unseen, speeds, wavelength, code } = result;
    figure.code("code", [
      [`cos, sin = rope_table(torch.tensor([${j}, ${i}]), ${D}, theta=${base}.0${code ? "," : ")"}`],
      code ? [`&nbsp; scaling=${code})`, "lit"] : ["&nbsp;"],
    ]);
    const numbers = {
      d, i, j, score: live.number(score), pair, trained: data.trained, unseen: unseen.length,
      speed: speeds[pair] < 0.001 ? speeds[pair].toExponential(2) : live.number(speeds[pair], speeds[pair] < 0.1 ? 4 : 2), all: D / 2,
      wavelength: Math.round(wavelength).toLocaleString("en"), first: degrees(speeds[0]), grow: Math.round(100 * result.scale - 100),
    };
    const say = [d ? "score" : "together"];
    if (unseen.length) say.push(rule === "none" ? "beyond" : "still");
    else if (rule !== "none") say.push(rule);
    else if (d) say.push("only");
    say.push("pair");
    figure.say(say.map((key) => figure.word(key, numbers)).join(" ").replace(/([。！])(<\/\w+>)? /g, "$1$2"));
  };

  live("rope", {
    usual: { i: 8, j: 5, base: 10000, D: 8, rule: "none", stretch: 2, pair: 0 },
    mend(state) {
      const nearest = (z, values) => values.reduce((a, b) => (Math.abs(b - z) < Math.abs(a - z) ? b : a));
      state.i = live.clamp(Math.round(state.i), 0, END - 1);
      state.j = live.clamp(Math.round(state.j), 0, state.i);
      state.base = nearest(state.base, [100, 1000, 10000, 500000]);
      state.D = nearest(state.D, [4, 8, 16]);
      state.stretch = live.clamp(Math.round(state.stretch), 1, 3);
      state.pair = live.clamp(Math.round(state.pair), 0, state.D / 2 - 1);
      if (!["linear", "ntk", "yarn"].includes(state.rule)) state.rule = "none";
    },
    said: { stretch: (value, { state }) => (state.rule === "none" ? "–" : `× ${2 ** value}`) },
    compute, draw,
  });
}
