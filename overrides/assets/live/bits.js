// Eight keys in few bits: which elements does an outlier channel spoil, and
// which layout keeps it apart?
"use strict";
{
  const EIGHT = live.range(8), f32 = Math.fround;
  const even = (x) => (Math.abs(x % 1) === 0.5 ? 2 * Math.round(x / 2) : Math.round(x));
  // x rounded to a float with so many bits behind the point.
  const float = (x, bits, least) => {
    if (!x) return 0;
    const step = 2 ** (Math.max(Math.floor(Math.log2(Math.abs(x))), least) - bits);
    return even(x / step) * step;
  };
  const half = (x) => float(f32(x), 10, -14);
  const turn = (x) => x.map((row) => EIGHT.map((j) => // times a Hadamard matrix
    live.sum(row.map((z, i) => ((i & j).toString(2).replaceAll("0", "").length % 2 ? -z : z))) / Math.sqrt(8)));
  const flip = (x) => EIGHT.map((j) => x.map((row) => row[j]));

  // As attnref.plain.quantised: groups of a row share a minimum and a step.
  const inGroups = (x, bits, size) => {
    const steps = [], back = x.map((row) => {
      const out = [];
      for (let start = 0; start < 8; start += size) {
        const part = row.slice(start, start + size).map(f32);
        const low = half(Math.min(...part)), most = 2 ** bits - 1;
        const step = half(half(f32(f32(Math.max(...part) - Math.min(...part)) / most)) + 1e-7);
        steps.push(step);
        for (const z of part)
          out.push(f32(f32(live.clamp(even(f32(f32(z - low) / step)), 0, most) * step) + low));
      }
      return out;
    });
    return { back, step: Math.max(...steps) };
  };
  const inFp8 = (x) => {
    const scale = f32(f32(Math.max(...x.flat().map(Math.abs))) / 448);
    const back = x.map((row) => row.map((z) =>
      f32(float(live.clamp(f32(f32(z) / scale), -448, 448), 3, -6) * scale)));
    return { back, step: 32 * scale };
  };

  // What a layout makes of keys, and how far off it is on average.
  const stored = (keys, bits, along, size, rotated) => {
    const x = rotated ? turn(keys) : keys;
    const { back, step } = bits === "fp8" ? inFp8(x) : inGroups(along === "token" ? x : flip(x), Number(bits), size);
    const upright = bits === "fp8" || along === "token" ? back : flip(back);
    const restored = rotated ? turn(upright) : upright;
    const missed = restored.map((row, i) => row.map((z, j) => Math.abs(z - keys[i][j])));
    return { x, restored, missed, step, error: live.sum(missed.flat()) / 64 };
  };

  const LAYOUTS = [["token"], ["channel"], ["token", true], ["channel", true], ["fp8"], ["fp8", true]];
  const compute = ({ bits, along, group, size, channel, rotated }, data) => {
    const keys = data.keys.map((row) => row.map((z, j) => (j === channel ? z + size : z)));
    const number = bits === "fp8" ? "8" : bits;
    const errors = LAYOUTS.map(([way, turned = false]) =>
      stored(keys, way === "fp8" ? "fp8" : number, way, Number(group), turned).error);
    const now = LAYOUTS.findIndex(([way, turned = false]) => way === (bits === "fp8" ? "fp8" : along) && turned === rotated);
    return { keys, errors, now, ...stored(keys, bits, along, Number(group), rotated) };
  };

  // A matrix as cells under bars, one for each channel.
  const TOP = 62, HIGH = 25, WIDE = 50, TALL = 1.4;
  const matrix = (drawing, kind, numbers, most, bars, longest) => {
    for (const j of EIGHT) {
      const tall = (TALL * 30 * bars[j]) / longest;
      drawing.box(`bar${j}`, `bar ${kind}`, WIDE * j + 10, TOP - 6 - tall, WIDE - 22, tall, 0);
    }
    for (const i of EIGHT)
      for (const j of EIGHT) {
        const x = WIDE * j, y = TOP + HIGH * i, number = numbers[i][j];
        drawing.mark(`${i},${j}`, "rect", {
          class: number < 0 ? "below" : `shade ${kind}`, x, y, width: WIDE - 2, height: HIGH - 2, rx: 3,
          style: `fill-opacity: ${(0.6 * Math.min(1, Math.abs(number) / most)).toFixed(3)}`,
        });
        drawing.text(`${i},${j}.text`, "small in", x + WIDE / 2 - 1, y + HIGH / 2 - 1, live.number(number, Math.abs(number) < 10 ? 2 : 1));
      }
  };

  const drawKeys = (figure, { bits, along, group, size, channel, rotated }, { x, keys }) => {
    const drawing = figure.svg("keys", 400, 266, figure.word("keys"));
    const bars = EIGHT.map((j) => Math.max(...x.map((row) => Math.abs(row[j]))));
    matrix(drawing, "key", x, 4, bars, 30);
    const n = bits === "fp8" ? 8 : Number(group), token = bits === "fp8" || along === "token";
    for (const i of EIGHT)
      for (const start of EIGHT.filter((z) => z % n === 0)) {
        if (bits === "fp8" && i) continue; // one scale for all of them
        const [across, down] = bits === "fp8" ? [8, 8] : token ? [n, 1] : [1, n];
        const [column, row] = token ? [start, i] : [i, start];
        drawing.box(`group${i},${start}`, "group", WIDE * column, TOP + HIGH * row, WIDE * across - 2, HIGH * down - 2);
      }
    drawing.text("outlier", "small soft start", 0, 10, figure.word(rotated ? "spread" : "outlier"));
    const set = (column, most) => figure.change({
      channel: live.clamp(column, 0, 7), size: live.clamp(Math.round(2 * most) / 2, 0, 20),
    });
    const [px, py] = [WIDE * channel + 24, TOP - 6 - TALL * size];
    drawing.disc("grip", "grip", [px, py], 5);
    drawing.handle("grip.tip", [px, py], {
      name: figure.word("handle"), value: `${channel}, ${size}`, now: size, ends: [0, 20],
      set: (most) => set(channel, most),
      to: (x, y) => set(Math.floor(x / WIDE), (TOP - 6 - y) / TALL),
      by: (dx, dy) => set(channel + Math.sign(dx), size + dy / 2),
    });
  };

  const drawMissed = (figure, state, { missed }) => {
    const drawing = figure.svg("missed", 400, 266, figure.word("missed"));
    const bars = EIGHT.map((j) => live.sum(missed.map((row) => row[j])) / 8);
    drawing.text("name", "small soft start", 0, 10, figure.word("missed"));
    matrix(drawing, "bad", missed, 1, bars, Math.max(1, ...bars));
  };

  const drawErrors = (figure, { bits }, { errors, now }) => {
    const drawing = figure.svg("errors", 400, 160, figure.word("errors"));
    drawing.text("name", "small soft start", 0, 10, figure.word("errors"));
    const longest = Math.max(...errors, 0.1), least = Math.min(...errors);
    for (const [n, [way, turned]] of LAYOUTS.entries()) {
      const y = 34 + 23 * n, width = (170 * errors[n]) / longest;
      const name = way === "fp8" ? "FP8" : figure.word(way, { bits: bits === "fp8" ? "8" : bits });
      drawing.text(`name${n}`, `small start ${n === now ? "" : "soft"}`, 12, y, turned ? figure.word("turned", { name }) : name);
      if (n === now) drawing.text("now", "small start", 0, y, "▸");
      drawing.box(`error${n}`, `bar ${errors[n] === least ? "good" : "bad"}${n === now ? "" : " pale"}`, 180, y - 9, width, 17, 0);
      drawing.text(`number${n}`, "small start", 186 + width, y, live.number(errors[n], 3));
    }
  };

  const draw = (figure, state, result) => {
    drawKeys(figure, state, result);
    drawMissed(figure, state, result);
    drawErrors(figure, state, result);
    const { bits, along, group, size, channel, rotated } = state, { step, error, errors, missed } = result;
    const fp8 = bits === "fp8", dim = along === "token" ? -1 : -2, lit = rotated ? "lit" : "dim";
    const widest = figure.word("widest", { step: live.number(step, 3) });
    const each = figure.word("each", { bits: figure.data.bits[fp8 ? "fp8" : `${bits},${group}`] });
    figure.code("code", [
      ["x = k @ H", lit],
      ...(fp8 ? [
        ["scale = x.abs().max() / 448", "lit", widest],
        ["y = to_fp8(x, scale)", "lit", each],
        ["x = y.float() * scale", "lit"],
      ] : [
        [`y = quantise(x, ${bits}, ${dim}, ${group})`, "lit", each],
        [`x = restore(*y, ${bits}, ${dim})`, "lit", widest],
      ]),
      ["k = x @ H.mT", lit],
    ]);
    const others = missed.flatMap((row) => row.filter((_, j) => j !== channel));
    const numbers = {
      error: live.number(error, 3), step: live.number(step, 2), channel, size,
      own: live.number(live.sum(missed.map((row) => row[channel])) / 8, 2),
      others: live.number(live.sum(others) / 56, 2),
      plain: live.number(errors[fp8 ? 4 : along === "token" ? 0 : 1], 3),
    };
    const case_ = rotated ? "rotated" : fp8 ? "float" : size < 3 ? "small" : along === "token" ? "shared" : "apart";
    figure.say(`${figure.word("mean", numbers)} ${figure.word(case_, numbers)}`);
  };

  const known = (state, key, values) => {
    if (!values.includes(state[key])) state[key] = values[0];
  };
  live("bits", {
    usual: { bits: "4", along: "token", group: "8", size: 12, channel: 2, rotated: false },
    mend(state) {
      known(state, "bits", ["4", "8", "2", "fp8"]);
      known(state, "along", ["token", "channel"]);
      known(state, "group", ["8", "4"]);
      state.size = live.clamp(state.size, 0, 20);
      state.channel = live.clamp(Math.round(state.channel), 0, 7);
    },
    off: ({ bits }) => (bits === "fp8" ? ["along", "group"] : []),
    compute, draw,
  });
}
