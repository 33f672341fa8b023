// A causal triangle whose tokens are split over ranks, and what each rank has to
// score in each step of a ring: a step lasts as long as its longest rank.
"use strict";
{
  const T = 16, KINDS = ["query", "key", "value", "latent"];
  const INKS = ["head-0", "fresh", "share value", "head-1"];

  const place = (n, how) => {
    const half = Math.ceil(T / (2 * n));
    const chunk = (c) => live.range(half).map((i) => c * half + i).filter((p) => p < T);
    return live.range(n).map((r) =>
      how === "striped" ? live.range(T).filter((p) => p % n === r)
      : how === "zigzag" ? [...chunk(r), ...chunk(2 * n - 1 - r)]
      : [...chunk(2 * r), ...chunk(2 * r + 1)]);
  };

  const compute = ({ ranks, how }) => {
    const held = place(ranks, how);
    const pairs = live.range(ranks).map((step) => held.map((mine, r) => {
      const keys = held[(r - step + ranks) % ranks];
      return live.sum(mine.map((i) => keys.filter((j) => j <= i).length));
    }));
    const longest = pairs.map((row) => Math.max(...row));
    return {
      held, pairs, longest,
      totals: held.map((_, r) => live.sum(pairs.map((row) => row[r]))),
      all: live.sum(longest),
    };
  };

  const triangle = (figure, { step }, { held }) => {
    const CELL = 15, drawing = figure.svg("triangle", 300, 300, figure.word("triangle"));
    const owner = live.range(T).map((p) => held.findIndex((mine) => mine.includes(p)));
    const n = held.length, x0 = 44, y0 = 40;
    drawing.text("keys", "start small soft", x0, 14, figure.word("keys"));
    for (const i of live.range(T)) {
      const kind = KINDS[owner[i]];
      drawing.text(`row${i}`, `end small ${kind}`, x0 - 6, y0 + CELL * i + CELL / 2, owner[i]);
      drawing.text(`column${i}`, `in small ${kind}`, x0 + CELL * i + CELL / 2, y0 - 9, owner[i]);
      for (const j of live.range(i + 1)) {
        const now = (owner[i] - owner[j] + n) % n === step;
        drawing.box(`pair${i}.${j}`, `${INKS[owner[i]]} ${now ? "" : "dim"}`, x0 + CELL * j, y0 + CELL * i, CELL - 1, CELL - 1, 2);
      }
    }
  };

  const bars = (figure, { step }, { held, pairs, longest, totals, all }) => {
    const n = held.length, drawing = figure.svg("bars", 400, 214, figure.word("bars"));
    const unit = 300 / 58, row = 34, starts = longest.map((_, s) => live.sum(longest.slice(0, s)));
    drawing.text("head", "start small soft", 0, 14, figure.word("bars"));
    for (const r of live.range(n)) {
      const y = 34 + row * r;
      drawing.text(`rank${r}`, `start small ${KINDS[r]}`, 0, y + 11, r);
      pairs.forEach((counts, s) => {
        const x = 18 + unit * starts[s];
        drawing.box(`slot${r}.${s}`, `slot ${s === step ? "now" : ""}`, x, y, unit * longest[s], 22, 0);
        drawing.box(`bar${r}.${s}`, `${INKS[r]} ${s === step ? "" : "dim"}`, x, y + 2, unit * counts[r], 18, 0);
      });
      drawing.text(`total${r}`, "start small", 24 + unit * all, y + 11, totals[r]);
    }
    const y = 44 + row * n;
    longest.forEach((most, s) => {
      const x = 18 + unit * (starts[s] + most / 2);
      if (most) drawing.text(`step${s}`, `in small ${s === step ? "on-row" : "soft"}`, x, y, s);
    });
    drawing.text("below", "start small soft", 18, y + 20, figure.word("below"));
    const moved = (s) => figure.change({ step: live.clamp(s, 0, n - 1) });
    const under = (x) => live.clamp(starts.findLastIndex((start) => 18 + unit * start <= x), 0, n - 1);
    const middle = 18 + unit * (starts[step] + longest[step] / 2);
    // From the step where a drag began, a little is enough to reach the next.
    const grip = drawing.handle("step", [middle, y], {
      name: figure.word("step"), value: `${step}`, ends: [0, n - 1], set: moved, r: 14,
      to: (x) => {
        const [first, from] = grip.began, s = under(x);
        moved(s === first && Math.abs(x - from) > 9 ? s + Math.sign(x - from) : s);
      },
      by: (dx, dy) => moved(step + dx + dy),
    });
    grip.start = () => (grip.began = [step, middle]);
  };

  const draw = (figure, state, result) => {
    triangle(figure, state, result);
    bars(figure, state, result);
    const { pairs, longest, all, totals } = result, counts = pairs[state.step];
    const told = {
      step: state.step, most: longest[state.step], least: Math.min(...counts), all,
      work: Math.max(...totals), ratio: live.number((all * totals.length) / live.sum(totals)),
    };
    const even = Math.max(...counts) === Math.min(...counts);
    figure.say(`${figure.word(even ? "even" : "uneven", told)} ${figure.word("whole", told)}`);
  };

  live("ranks", {
    usual: { ranks: 4, how: "contiguous", step: 1 },
    mend(state) {
      state.ranks = live.clamp(Math.round(state.ranks), 1, 4);
      state.step = live.clamp(Math.round(state.step), 0, state.ranks - 1);
      if (!["zigzag", "striped", "contiguous"].includes(state.how)) state.how = "zigzag";
    },
    compute, draw,
  });
}
