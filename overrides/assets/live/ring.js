// A ring of W slots and some in reserve: which slot the next token overwrites,
// and what it sees. `ops` is what was done: a digit appends so many tokens, "b"
// goes back by one; "u" takes the last letter back.
"use strict";
{
  // Which token each slot holds after `length`, -1 = none.
  const heldAfter = (length, size, lost) => live.range(size).map((slot) => {
    const p = length - 1 - ((((length - 1 - slot) % size) + size) % size);
    return p >= Math.max(0, lost) ? p : -1;
  });

  const replay = (ops, W, reserve) => {
    const size = W + reserve, done = [];
    let length = 0, lost = 0;
    for (const op of ops) {
      const before = heldAfter(length, size, lost), start = length;
      if (op !== "b") {
        length += Number(op);
        lost = Math.max(lost, length - size);
        // One token is written in place; a chunk is returned behind the slots.
        const returned = op === "1" ? heldAfter(length, size, lost) : [...before, ...live.range(length).slice(start)];
        done.push({ new: length - start, before, start, returned });
      } else if (length) {
        const to = length - 1, needed = Math.max(0, to - W + 1);
        const refused = needed < Math.min(to, lost);
        done.push({ new: 0, before, start, to, needed, lost, refused });
        if (!refused) [length, lost] = [to, Math.min(lost, to)];
      } else done.push(null);
    }
    return { length, lost, size, done, held: heldAfter(length, size, lost) };
  };

  const compute = ({ ops, W, reserve }) => {
    const result = replay(ops, W, reserve), last = result.done.at(-1);
    // What the last token sees; after a rollback, what the next one will.
    const end = result.length + (last && !last.new ? 1 : 0);
    const sees = live.range(result.length).filter((p) => p > end - 1 - W);
    return { ...result, sees };
  };

  const RADIUS = 92, X = 200, Y = 122;
  const around = (slot, size, radius = RADIUS) => {
    const angle = (2 * Math.PI * slot) / size - Math.PI / 2;
    return [X + radius * Math.cos(angle), Y + radius * Math.sin(angle)];
  };

  const ring = (figure, { ops }, { length, size, done, held, sees }) => {
    const drawing = figure.svg("ring", 400, 248, figure.word("ring"));
    const last = done.at(-1);
    drawing.disc("wheel", "dial", [X, Y], 40);
    held.forEach((p, slot) => {
      const [x, y] = around(slot, size), [px, py] = around(slot, size, 54);
      const kind = p < 0 ? "slot empty" : last?.new && p >= last.start ? "fresh" : "kept";
      drawing.cell(`${slot}`, kind, x - 22, y - 15, 44, 30, p < 0 ? "" : `k${p}`);
      if (sees.includes(p)) drawing.box(`${slot}.seen`, "seen", x - 25, y - 18, 50, 36, 5);
      const old = last?.before[slot] ?? -1;
      drawing.text(`${slot}.number`, "small soft in", px, py, slot);
      const gone = old >= 0 && old !== p && p >= 0 && last.new;
      if (gone) {
        const out = around(slot, size, RADIUS + 34);
        drawing.text(`${slot}.gone`, `small recomputed ${out[0] > X + 9 ? "start" : out[0] < X - 9 ? "end" : "in"} gone`, out[0], out[1], `k${old}`);
      }
    });
    const slot = length % size, tip = around(slot, size, 30);
    drawing.arrow("next", "", [X, Y], tip);
    drawing.handle("next.tip", tip, {
      name: figure.word("next"), value: String(slot), ends: [0, size - 1],
      set: (n) => figure.change({ ops: ops + "1".repeat((n - slot + size) % size) }),
      to: (x, y) => {
        const turn = Math.round(((Math.atan2(y - Y, x - X) + Math.PI / 2) * size) / (2 * Math.PI)) - slot;
        const way = ((turn % size) + size) % size;
        if (way) figure.change({ ops: ops + (way <= size / 2 ? "1".repeat(way) : "b".repeat(size - way)) });
      },
      by: (dx, dy) => {
        const way = dx || dy;
        figure.change({ ops: ops + (way > 0 ? "1" : "b").repeat(Math.abs(way)) });
      },
    });
  };

  // The text in its order: what is still there, and what the last token sees.
  const text = (figure, { length, size, done, held, sees }) => {
    const ACROSS = 8, last = done.at(-1);
    const drawing = figure.svg("text", 400, 248, figure.word("text"));
    const first = Math.max(0, ACROSS * (Math.ceil(length / ACROSS) - 3));
    drawing.text("head", "start small", 0, 14, figure.word("text"));
    for (const p of live.range(length).slice(first)) {
      const x = 2 + 50 * (p % ACROSS), y = 34 + 72 * Math.floor((p - first) / ACROSS);
      const kind = !held.includes(p) ? "slot" : last.new && p >= last.start ? "fresh" : "kept";
      drawing.cell(`${p}`, kind, x, y, 44, 30, `k${p}`);
      if (sees.includes(p)) drawing.box(`${p}.seen`, "seen", x - 2, y - 3, 48, 36, 5);
      drawing.text(`${p}.slot`, "small soft in", x + 22, y + 46, held.includes(p) ? p % size : "–");
    }
  };

  const draw = (figure, state, result) => {
    const { length, done, sees, size } = result, last = done.at(-1);
    const over = last?.new ? last.before.filter((p, slot) => p >= 0 && p !== result.held[slot]) : [];
    const words = !last ? "empty" : last.refused ? "refused" : !last.new ? "back" : last.new > 1 ? "chunk" : over.length ? "over" : "token";
    figure.say(figure.word(words, {
      ...last, last: length - 1, slot: (length - 1 + size) % size, size, old: over[0], first: sees[0], next: length,
      keys: last?.returned?.filter((p) => p >= 0).length, seen: sees.length, count: over.length,
    }));
    ring(figure, state, result);
    text(figure, result);
  };

  live("ring", {
    usual: { ops: "311111", W: 4, reserve: 2 },
    mend(state) {
      state.W = live.clamp(Math.round(state.W), 2, 6);
      state.reserve = live.clamp(Math.round(state.reserve), 0, 3);
      let kept = "";
      for (const op of state.ops.replace(/[^1-9bu]/g, "")) {
        if (op === "u") kept = kept.slice(0, -1);
        else if (kept.length < 60) {
          const { done, length } = replay(kept + op, state.W, state.reserve);
          const [before, last] = [done.at(-2), done.at(-1)];
          if (last && length <= 96 && !(last.refused && before?.refused)) kept += op;
        }
      }
      state.ops = kept;
    },
    compute, draw,
  });
}
