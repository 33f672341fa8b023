// A pool of blocks that texts share. `ops` is what was done, two letters each: a
// text, A to D, and "t" (one more token, or its start), "f" (a copy of it, which
// goes on as the next text) or "x" (its end); "u" takes the last one back.
"use strict";
{
  const NAMES = [..."ABCD"], SLOTS = 24, ACROSS = 12, PROMPT = "system", LONGEST = 12;

  // The pool of attnref.plain.paged; a block's hash is all tokens up to its end.
  class Pool {
    constructor(size) {
      const blocks = SLOTS / size;
      Object.assign(this, { size, readers: Array(blocks).fill(0), hashes: Array(blocks).fill(null) });
      this.stored = Array(SLOTS).fill("");
    }
    fork(table) {
      for (const block of table) this.readers[block] += 1;
      return [...table];
    }
    release(table) {
      for (const block of table) this.readers[block] -= 1;
    }
    chain(text) {
      return live.range(Math.floor(text.length / this.size)).map((n) => text.slice(0, this.size * (n + 1)));
    }
    find(text) {
      const known = this.chain(text.slice(0, -1)).map((hash) => this.hashes.indexOf(hash));
      return this.fork(known.includes(-1) ? known.slice(0, known.indexOf(-1)) : known);
    }
    append(table, text, start) {
      const { size, readers, stored } = this;
      const old = table.at(-1), shared = start % size > 0 && readers[old] > 1;
      const free = live.range(readers.length).filter((block) => !readers[block]);
      const needed = Math.ceil(text.length / size) - table.length + Number(shared);
      if (needed > free.length) return { refused: [needed, free.length] };
      if (shared) {
        stored.splice(free[0] * size, size, ...stored.slice(old * size, (old + 1) * size));
        readers[table.pop()] -= 1;
      }
      table.push(...this.fork(free.slice(0, needed)));
      const written = live.range(text.length - start).map((i) => {
        const slot = table[Math.floor((start + i) / size)] * size + ((start + i) % size);
        stored[slot] = text[start + i];
        return slot;
      });
      const chain = this.chain(text);
      table.forEach((block, n) => (this.hashes[block] = chain[n] ?? null));
      return { written, ...(shared && { from: old, to: free[0] }) };
    }
  }

  // What each operation did; one that cannot be is left out: null.
  const replay = (ops, size) => {
    const pool = new Pool(size), tables = {}, texts = {}, done = [];
    let read = 0, alone = 0;
    const step = (name, op) => {
      const text = texts[name];
      if (op === "x" && text) {
        pool.release(tables[name]);
        delete tables[name];
        delete texts[name];
        return { kind: "end" };
      }
      if (op === "f" && text) {
        const next = NAMES.find((other) => !(other in texts));
        if (!next) return null;
        tables[next] = pool.fork(tables[name]);
        texts[next] = text;
        alone += text.length;
        return { kind: "fork", next, table: [...tables[next]] };
      }
      if (op !== "t" || text?.length >= LONGEST) return null;
      const now = (text ?? PROMPT) + name.toLowerCase();
      const table = text ? tables[name] : pool.find(now);
      const found = text ? undefined : table.length, start = text ? text.length : found * size;
      const told = pool.append(table, now, start);
      if (told.refused) {
        if (!text) pool.release(table);
        return { kind: "refused", table: [], ...told };
      }
      tables[name] = table;
      texts[name] = now;
      read += now.length - start;
      alone += text ? 1 : now.length;
      return { kind: text ? ("from" in told ? "copy" : "token") : found ? "hit" : "start", found, start, table: [...table], ...told };
    };
    for (const [name, op] of ops.match(/../g) ?? []) {
      const told = step(name, op);
      done.push(told && { name, op, ...told });
    }
    return { pool, tables, texts, done, read, alone };
  };

  const compute = ({ ops, size }) => {
    const { pool, tables, texts, done, ...totals } = replay(ops, Number(size));
    const lengths = Object.values(texts).map((text) => text.length);
    const used = pool.readers.filter(Boolean).length;
    const filled = new Set(Object.entries(tables).flatMap(([name, table]) =>
      [...texts[name]].map((_, i) => table[Math.floor(i / pool.size)] * pool.size + (i % pool.size))));
    const apart = live.sum(lengths.map((length) => Math.ceil(length / pool.size)));
    return {
      tables, texts, done, readers: pool.readers, stored: pool.stored, ...totals, used, apart,
      empty: used * pool.size - filled.size, emptyApart: apart * pool.size - live.sum(lengths),
      filled: [...filled],
    };
  };

  const pool = (figure, { readers, stored, tables, filled, done }, size) => {
    const drawing = figure.svg("pool", 400, 142, figure.word("pool"));
    const written = done.at(-1)?.written ?? [], copied = done.at(-1)?.to;
    readers.forEach((count, block) => {
      const first = block * size, y = 28 + 70 * Math.floor(first / ACROSS);
      const x = (row) => 1 + 31 * ((first + row) % ACROSS) + 5 * ((first % ACROSS) / size);
      const names = Object.keys(tables).filter((name) => tables[name].includes(block));
      drawing.text(`block${block}`, "start small soft", x(0), y - 12, block);
      drawing.text(`block${block}.readers`, `end small${count > 1 ? " value" : count ? "" : " soft"}`, x(size - 1) + 29, y - 12, names.join("") || figure.word("free"));
      for (const row of live.range(size)) {
        const slot = first + row, kept = filled.includes(slot);
        const kind = written.includes(slot) ? "fresh" : !kept ? "slot" : block === copied ? "kept copied" : "kept";
        drawing.cell(`slot${slot}`, kind, x(row), y, 29, 30, stored[slot]);
      }
    });
  };

  // The calls of attnref.plain.paged that do it, each with what it gives.
  const calls = ({ name, kind, table, ...told }) => {
    if (kind === "fork") return [[`${told.next} = pool.fork(${name})`, `[${table.join(", ")}]`]];
    if (kind === "end") return [[`pool.release(${name})`, ""]];
    const found = told.found === undefined ? [] : [[`${name} = pool.find(text)`, `[${table.slice(0, told.found).join(", ")}]`]];
    const gives = kind === "refused" ? "ValueError" : kind === "copy" ? `${told.from} → ${told.to}` : `[${table.join(", ")}]`;
    return [...found, [`pool.append(${name}, text, new)`, gives]];
  };

  const draw = (figure, state, result) => {
    const { tables, texts, done, read, alone, used, apart, empty, emptyApart } = result;
    const size = Number(state.size), last = done.at(-1);
    const refused = last?.refused && figure.data[last.refused.join()];
    const numbers = { ...last, blocks: last?.found, tokens: last?.start, left: result.readers.filter((n) => !n).length, error: refused };
    figure.say(figure.word(last ? last.kind : "empty", numbers));
    pool(figure, result, size);
    figure.table("tables", [
      ["text", "listed", "tokens"].map((key) => figure.word(key)),
      ...NAMES.map((name) => [
        name === state.who ? `<b>${name}</b>` : name, tables[name] ? `[${tables[name].join(", ")}]` : "–",
        texts[name] ? `<code>${texts[name].replace(RegExp(`.{${size}}(?=.)`, "g"), "$&|")}</code>` : "",
      ]),
    ]);
    figure.table("totals", [
      ["now", "shared", "alone"].map((key) => figure.word(key)),
      [figure.word("used"), used, apart],
      [figure.word("unfilled"), empty, emptyApart],
      [figure.word("read"), read, alone],
    ]);
    const kind = refused ? "bad" : "lit";
    const lines = done.slice(-4).flatMap((one) =>
      calls(one).map(([call, gives]) => [call, one === last ? kind : one.refused ? "bad" : "", gives])).slice(-4);
    while (lines.length < 4) lines.push(["&nbsp;"]);
    figure.code("calls", lines);
  };

  live("blocks", {
    usual: { ops: "AtBtAfCt", who: "A", size: "4" },
    mend(state) {
      if (!NAMES.includes(state.who)) state.who = "A";
      if (!["2", "3", "4", "6"].includes(state.size)) state.size = "4";
      let kept = "";
      for (const [, name = state.who, op] of state.ops.matchAll(/([A-D])?([tfxu])/g)) {
        if (op === "u") kept = kept.slice(0, -2);
        else if (kept.length < 80) {
          const { done } = replay(kept + name + op, Number(state.size));
          const [before, last] = [done.at(-2), done.at(-1)];
          const twice = last?.refused && before?.refused && before.name === name;
          if (last && !twice) kept += name + op;
        }
      }
      state.ops = kept;
    },
    compute, draw,
  });
}
