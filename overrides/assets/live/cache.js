// Tokens one by one or in chunks: which keys a pass computes, which it reads,
// and which it computes again because nobody kept them. `ops` is what was done:
// a digit appends so many tokens, "b" goes back by one; "u" takes a letter back.
"use strict";
{
  const ROOM = 8, WIDEST = 10, ROWS = 6;
  const letter = (token) => String.fromCharCode(97 + (token % 26));

  // Every pass: the tokens that it finds, those that it adds, and what stands
  // in the slots of a fixed cache afterwards, left-overs included.
  const replay = (ops, kind, refusals) => {
    const passes = [];
    let held = [], slots = [], next = 0;
    for (const op of ops) {
      const past = held.length, last = passes.at(-1);
      if (op === "b") {
        const to = past - 1;
        const refused = past ? "" : refusals.crop;
        held = held.slice(0, Math.max(0, to));
        if (last?.new === 0 && !last.refused && !refused) passes.pop();
        passes.push({ crop: to, past, new: 0, refused });
      } else {
        const more = live.range(Number(op)).map((i) => next + i);
        const refused = (kind === "fixed" && refusals.append[`${past},${op}`]) || "";
        if (!refused) {
          held = [...held, ...more];
          slots = [...held, ...slots.slice(held.length)];
          next += more.length;
        }
        passes.push({ past, new: more.length, refused });
      }
      Object.assign(passes.at(-1), { held, slots });
    }
    return passes;
  };

  const compute = ({ ops, kind }, data) => {
    const passes = replay(ops, kind, data);
    const read = passes.filter((pass) => pass.new && !pass.refused);
    const total = (of) => live.sum(read.map((pass) => of(pass.new, pass.held.length)));
    const [anew, all] = [total((T) => T), total((T, S) => S)];
    const scores = total((T, S) => T * S);
    return {
      passes,
      totals: {
        fixed: { computed: anew, written: anew, scores },
        growing: { computed: anew, written: all, scores },
        none: { computed: all, written: 0, scores: total((T, S) => S * S) },
      },
    };
  };

  const X = 68, PITCH = 28;
  const x = (i) => X + PITCH * i;

  // The latest passes, one a row; `cell` says what a token is in one of them.
  const rows = (figure, name, passes, cell) => {
    const drawing = figure.svg(name, 400, 204, figure.word(name));
    drawing.text("head", "start", 2, 15, figure.word(name));
    drawing.text("scores", "query small end", 398, 15, "q × k");
    passes.slice(-ROWS).forEach((pass, row) => {
      const y = 36 + 28 * row, key = `row${row}`, now = pass === passes.at(-1) ? "" : " soft";
      const words = pass.new ? `T = ${pass.new}` : `crop(${pass.crop})`;
      drawing.text(key, `start small${pass.refused ? " recomputed" : now}`, 2, y + 12, words);
      for (const i of live.range(WIDEST)) {
        const [kind, text = ""] = cell(pass, i);
        if (kind) drawing.cell(`${key}.${i}`, kind, x(i), y, 25, 24, text);
      }
      if (!pass.new || pass.refused) return;
      const queries = name === "cached" ? pass.new : pass.held.length;
      drawing.text(`${key}.scores`, `query small end`, 398, y + 12, `${queries} × ${pass.held.length}`);
    });
    return drawing;
  };

  const cached = (figure, { ops, kind }, passes) => {
    const length = passes.at(-1)?.held.length ?? 0;
    const drawing = rows(figure, "cached", passes, ({ past, held, slots, refused, ...pass }, i) => {
      if (i < held.length)
        return [pass.new && i >= past ? "fresh" : pass.new && !refused && kind === "growing" ? "kept copied" : "kept", letter(held[i])];
      if (refused && i < past + pass.new) return ["refused", "×"];
      if (kind === "fixed" && i < ROOM) return ["slot", i < slots.length ? letter(slots[i]) : ""];
      return [];
    });
    const end = [x(length) - 1.5, 15];
    drawing.line("end", "wire", end, [end[0], 32 + 28 * live.clamp(passes.length, 1, ROWS)]);
    drawing.disc("grip", "grip", end, 8);
    const go = (to) => {
      const way = to > length ? "1".repeat(to - length) : "b".repeat(length - to);
      if (way) figure.change({ ops: ops + way });
    };
    drawing.handle("end.grip", end, {
      name: figure.word("length"), value: String(length), ends: [0, kind === "fixed" ? ROOM : WIDEST], set: go,
      to: (px) => go(live.clamp(Math.round((px - X) / PITCH), 0, WIDEST)),
      by: (dx, dy) => go(length + (dx || dy)),
    });
  };

  const uncached = (figure, passes) =>
    rows(figure, "uncached", passes, ({ past, held, refused, ...pass }, i) => {
      if (i >= held.length) return [];
      if (!pass.new || refused) return ["slot", letter(held[i])];
      return [i < past ? "recomputed" : "fresh", letter(held[i])];
    });

  const draw = (figure, { ops, kind }, { passes, totals }) => {
    const pass = passes.at(-1);
    const all = pass?.held.length;
    const words = !pass ? "empty" : pass.refused ? "refused" : !pass.new ? `crop.${kind}`
      : /^1{2,}$/.test(ops) ? "single" : !pass.past ? "prefill" : kind;
    figure.say(figure.word(words, {
      new: pass?.new, past: pass?.past, all, sum: totals.none.computed,
      error: pass?.refused.replaceAll(">", "&gt;"),
    }));
    cached(figure, { ops, kind }, passes);
    uncached(figure, passes);
    figure.table("totals", [
      ["total", "computed", "written", "scored"].map((key) => figure.word(key)),
      ...["fixed", "growing", "none"].map((name) => [
        name === kind ? `<b>${figure.word(`in.${name}`)}</b>` : figure.word(`in.${name}`),
        ...Object.values(totals[name]),
      ]),
    ]);
    const calls = passes.slice(-4).map((one) => [
      one.new ? "cache.append(k, v)" : `cache.crop(${one.crop})`,
      one.refused ? "bad" : one === pass ? "lit" : "",
      one.refused ? "ValueError" : `${one.new ? `T = ${one.new}, ` : ""}S = ${one.held.length}`,
    ]);
    while (calls.length < 4) calls.push(["&nbsp;"]);
    figure.code("calls", calls);
  };

  live("cache", {
    usual: { ops: "3111", kind: "fixed" },
    mend(state) {
      if (state.kind !== "growing") state.kind = "fixed";
      const most = state.kind === "fixed" ? ROOM : WIDEST;
      const after = (length, op) => length + (op === "b" ? -1 : Number(op));
      const fits = (length) => length >= 0 && length <= most;
      let kept = "";
      for (const op of state.ops.replace(/[^1-4bu]/g, "")) {
        if (op === "u") kept = kept.slice(0, -1);
        else {
          let length = 0, refused = "";
          for (const one of kept) {
            refused = fits(after(length, one)) ? "" : one;
            if (!refused) length = after(length, one);
          }
          const to = after(length, op);
          // The same refusal twice says nothing; the drawing has an end, too.
          if (refused !== op && (to <= most || state.kind === "fixed")) kept += op;
        }
      }
      state.ops = kept.slice(0, 60);
    },
    compute, draw,
  });
}
