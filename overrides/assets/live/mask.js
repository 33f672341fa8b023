// A mask that one paints: which line of code computes it? The faint rows are the
// tokens before the T queries; their keys are in the cache.
"use strict";
{
  const SIZE = 16, LEFT = 42, TOP = 40;
  // A line of code, what it is, and whether row r of its mask sees key j: the
  // row is the query of token i = S - T + r. The first line of a rule is right.
  const causal = ({ i, j }) => j <= i;
  const corner = ({ r, j }) => j <= r;
  const chunk = (a, { j, W }) => Math.floor(a / W) === Math.floor(j / W);
  const same = (a, { j, W }) => a >= W === j >= W;
  const RULES = {
    causal: [
      ["full.tril(S - T)", "causal_mask", causal],
      ["full.tril()", "is_causal=True", corner],
      ["full.tril(S - T + 1)", "next", ({ i, j }) => j <= i + 1],
      ["full.tril(S - T - 1)", "before", ({ i, j }) => j < i],
      ["full.triu(S - T)", "upper", ({ i, j }) => j >= i],
    ],
    window: [
      ["causal.triu(S - T - W + 1)", "window_mask", ({ i, j, W }) => i - W < j && j <= i],
      ["causal.triu(S - T - W)", "more", ({ i, j, W }) => i - W <= j && j <= i],
      ["causal.triu(1 - W)", "corner", ({ i, j, r, W }) => r - W < j && j <= i],
      ["full.tril().triu(1 - W)", "corner", ({ j, r, W }) => r - W < j && j <= r],
      ["(i - j).abs() < W", "later", ({ i, j, W }) => Math.abs(i - j) < W],
    ],
    chunk: [
      ["causal & (i // W == j // W)", "chunks", (x) => causal(x) && chunk(x.i, x)],
      ["causal & (r // W == j // W)", "corner", (x) => causal(x) && chunk(x.r, x)],
      ["i // W == j // W", "later", (x) => chunk(x.i, x)],
      ["causal & (i - j < W)", "window", ({ i, j, W }) => j <= i && i - j < W],
    ],
    documents: [
      ["same.tril()[..., -T:, :]", "document_mask", (x) => causal(x) && same(x.i, x)],
      ["same.tril()[..., :T, :]", "corner", (x) => corner(x) && same(x.r, x)],
      ["same[..., -T:, :]", "later", (x) => same(x.i, x)],
      ["causal", "leak", causal],
    ],
    all: [
      ["full", "every", () => true],
      ["full.tril(S - T)", "causal_mask", causal],
      ["full.tril()", "is_causal=True", corner],
    ],
  };
  const PLAIN = ["causal", "all"]; // rules without W

  const real = (z, { S, left, right }) => z >= left && z < S - right;
  // The lines of a rule; with pads, each hides them, and three more do not.
  const linesOf = ({ rule, left, right }) => {
    const lines = RULES[rule], [code, , sees] = lines[0];
    if (!left && !right) return lines;
    const joined = lines.map(([line, name, within]) => [
      `${/^\(?i /.test(line) ? `(${line})` : line} & pads`, name, (x) => within(x) && real(x.j, x)]);
    return [
      ...joined,
      [code, "forgotten", sees],
      [`${code} & valid[..., -T:, None]`, "queries", (x) => sees(x) && real(x.i, x)],
      [`${code} | pads`, "or", (x) => sees(x) || real(x.j, x)],
    ];
  };
  const cellsOf = function* ([, , sees], state) {
    const x = { ...state };
    for (x.i = state.S - state.T, x.r = 0; x.r < state.T; x.r++, x.i++)
      for (x.j = 0; x.j < state.S; x.j++) yield Number(sees(x));
  };
  const maskOf = (line, state) => [...cellsOf(line, state)].join("");
  const gives = (line, state, cells) => {
    let n = 0;
    for (const cell of cellsOf(line, state)) if (Number(cells[n++]) !== cell) return false;
    return true;
  };

  // What the names in these lines stand for.
  const namesOf = ({ T, S, W, left, right }, lines) => {
    const code = lines.map(([line]) => line).join(" "), uses = (name) => new RegExp(`\\b${name}\\b`).test(code);
    const row = (...parts) => parts.filter(([, n]) => n).map(([what, n]) => `[${what}] * ${n}`).join(" + ");
    const pads = left || right;
    return [
      uses("W") ? `T, S, W = ${T}, ${S}, ${W}` : `T, S = ${T}, ${S}`,
      uses("full") && "full = torch.ones(T, S, dtype=torch.bool)",
      uses("causal") && "causal = causal_mask(T, S)",
      uses("i") && "i = torch.arange(S - T, S)[:, None]",
      uses("r") && "r = torch.arange(T)[:, None]",
      uses("j") && "j = torch.arange(S)",
      uses("same") && `ids = torch.tensor([${row([0, W], [1, S - W])}])`,
      uses("same") && "same = ids[:, :, None] == ids[:, None, :]",
      pads && `valid = torch.tensor([${row(["False", left], ["True", S - left - right], ["False", right])}])`,
      pads && "pads = padding_mask(valid)",
    ].filter(Boolean);
  };

  // A rule, a W and pads that give these cells, with as few pads as possible. If
  // any pads do, then as many as there are empty columns on their side.
  const search = (cells, { T, S }) => {
    const columns = live.range(S).map((j) => live.range(T).some((r) => cells[r * S + j] === "1"));
    const [left, right] = [columns, [...columns].reverse()].map((list) => (list.indexOf(true) + S + 1) % (S + 1));
    for (const pads of [{ left: 0, right: 0 }, { left, right: 0 }, { left: 0, right }, { left, right }])
      for (const rule of Object.keys(RULES))
        for (const W of PLAIN.includes(rule) ? [1] : live.range(S).map((n) => n + 1)) {
          const state = { rule, T, S, W, ...pads };
          const fits = (part) => gives(linesOf({ ...state, ...part })[0], { ...state, ...part }, cells);
          if (!fits({})) continue;
          for (const side of ["left", "right"])
            while (state[side] && fits({ [side]: state[side] - 1 })) state[side] -= 1;
          return { ...state, line: linesOf(state)[0][0] };
        }
  };

  const compute = (state) => {
    const { T, S, painted, cursor } = state, lines = linesOf(state);
    const masks = lines.map((line) => maskOf(line, state));
    const cells = painted || masks[state.line];
    const lit = masks.map((mask) => mask === cells);
    const rows = live.range(T).map((r) => cells.slice(r * S, (r + 1) * S));
    const row = T - 1 - cursor[0];
    return {
      cells, masks, lit, row,
      lines: lines.map(([line, name]) => [line, name]),
      names: namesOf(state, lines),
      whole: maskOf(lines[0], { ...state, T: S }),
      wrong: live.range(T * S).filter((n) => cells[n] !== masks[0][n]),
      blind: live.range(T).filter((r) => !rows[r].includes("1")),
      keys: live.range(S).filter((j) => rows[row][j] === "1"),
      found: lit.includes(true) ? undefined : search(cells, state),
    };
  };

  const grid = (figure, state, { cells, whole, masks, blind, keys, row }) => {
    const { rule, T, S, W, left, right, cursor } = state, past = S - T;
    const drawing = figure.svg("mask", 400, 400, figure.word("mask"));
    const size = Math.min(60, (398 - LEFT) / S), far = LEFT + S * size;
    const [x, y] = [(j) => LEFT + j * size, (i) => TOP + i * size];
    // One path for all cells of a kind: 256 marks would be slow, and heavy.
    const kinds = { "cell old": "", "cell old lit": "", cell: "", "cell lit": "", "cell extra": "", "cell missing": "" };
    for (const i of live.range(S))
      for (const j of live.range(S)) {
        const n = (i - past) * S + j, asked = masks[0][n];
        const kind = i < past ? (whole[i * S + j] === "1" ? "cell old lit" : "cell old")
          : cells[n] === asked ? (asked === "1" ? "cell lit" : "cell") : asked === "1" ? "cell missing" : "cell extra";
        const side = (size - 4).toFixed(1);
        kinds[kind] += `M${(x(j) + 2).toFixed(1)} ${(y(i) + 2).toFixed(1)}h${side}v${side}h-${side}z`;
      }
    for (const [kind, d] of Object.entries(kinds)) drawing.mark(kind, "path", { class: kind, d: d || "M0 0" });
    // Where a chunk or the second document begins, and the pads.
    const borders = rule === "documents" ? [W] : rule === "chunk" ? live.range(S).filter((j) => j && j % W === 0) : [];
    for (const j of borders.filter((border) => border < S)) {
      drawing.line(`column${j}`, "border", [x(j), TOP - 8], [x(j), y(S)]);
      drawing.line(`row${j}`, "border", [LEFT - 8, y(j)], [far, y(j)]);
    }
    if (left) drawing.box("left", "pads", x(0), TOP - 22, left * size, 22 + S * size);
    if (right) drawing.box("right", "pads", x(S - right), TOP - 22, right * size, 22 + S * size);
    drawing.text("query", "query small start", 3, 12, figure.word("query"));
    drawing.text("key", "key small start", LEFT + 14, 12, figure.word("key"));
    for (const i of live.range(S)) {
      drawing.text(`k${i}`, keys.includes(i) ? "key" : "soft", x(i + 0.5), 30, i);
      drawing.text(`q${i}`, i === past + row ? "query" : i < past ? "soft dim" : "soft", 22, y(i + 0.5), i);
    }
    for (const r of blind) drawing.text(`nan${r}`, "nan in", x(S / 2), y(past + r + 0.5), "NaN");
    drawing.box("token", "token", LEFT, y(past + row), S * size, size);
    drawing.box("cursor", "cursor", x(cursor[1]) + 2, y(past + row) + 2, size - 4, size - 4);

    const put = (value) => ([r, j]) => {
      const { cells: now } = figure.result, n = r * S + j;
      figure.change({ painted: now.slice(0, n) + value + now.slice(n + 1), cursor: [T - 1 - r, j] });
    };
    const other = ([r, j]) => 1 - figure.result.cells[r * S + j];
    drawing.paint((px, py) => {
      const [r, j] = [Math.floor((py - TOP) / size) - past, Math.floor((px - LEFT) / size)];
      return r >= 0 && r < T && j >= 0 && j < S ? [r, j] : undefined;
    }, (cell) => put(other(cell)));
    const here = [row, cursor[1]];
    const held = drawing.handle("here", [x(here[1] + 0.5), y(past + row + 0.5)], {
      name: figure.word("cell"), r: size / 2, now: here[1], ends: [0, S - 1],
      set: (j) => figure.change({ cursor: [cursor[0], j] }),
      value: figure.word(other(here) ? "hidden" : "seen", { i: past + row, j: here[1] }),
      to() {}, // painted by the drawing
      by: (dx, dy) => figure.change({ cursor: [cursor[0] + dy, cursor[1] + dx] }),
    });
    held.onkeydown = (event) => {
      if (event.key !== " " && event.key !== "Enter") return;
      event.preventDefault();
      put(other(here))(here);
    };
  };

  // The lines as buttons, which keep their focus.
  const listing = (figure, state, { lines, names, lit, found }) => {
    const list = figure.html("code", "pre", "lines choices");
    const rows = lines.map(([line, name], n) => [line, figure.words[name] ?? name, "line", n, lit[n] && (n ? "bad" : "lit")]);
    if (found) {
      const { rule, W, left, right } = found;
      const said = [figure.word(`${rule}.rule`), !PLAIN.includes(rule) && `W = ${W}`, (left || right) && `${figure.word("pads")} ${left} + ${right}`];
      rows.push([found.line, said.filter(Boolean).join(", "), "found", 0, "lit"]);
    }
    while (list.children.length > rows.length + 1) list.lastChild.remove();
    while (list.children.length < rows.length + 1)
      list.insertAdjacentHTML("beforeend", list.children.length
        ? '<label><input type="radio"><code></code> <i></i></label>' : "<code></code>");
    const show = (part, text) => part.textContent !== text && (part.textContent = text);
    show(list.children[0], names.join("\n"));
    rows.forEach(([line, said, name, value, kind], n) => {
      const label = list.children[n + 1], [input, code, gives] = label.children;
      label.className = kind || "";
      Object.assign(input, { name, value, checked: name === "line" && !state.painted && state.line === n });
      show(code, line);
      show(gives, said);
    });
  };

  // 0, 1, 2, 5 as "0–2, 5".
  const spans = (numbers) => {
    const parts = [];
    for (const n of numbers) {
      const last = parts.at(-1);
      if (last?.[1] === n - 1) last[1] = n;
      else parts.push([n, n]);
    }
    return parts.map(([first, last]) => (first === last ? first : `${first}–${last}`)).join(", ");
  };

  const draw = (figure, state, result) => {
    const { S, T } = state, { lit, wrong, blind, keys, row, found } = result;
    if (!figure.heard) {
      // Whoever sets a field, or picks a line, no longer has a painted mask.
      figure.heard = true;
      figure.box.addEventListener("input", ({ target }) => {
        figure.state.painted = "";
        if (target.name === "W" && PLAIN.includes(figure.state.rule)) Object.assign(figure.state, { rule: "window", line: 0 });
        if (target.name === "rule") figure.state.line = 0;
        if (target.name === "found") {
          const { rule, W, left, right } = figure.result.found;
          figure.change({ rule, W, left, right, line: 0 });
        }
      }, true);
    }
    grid(figure, state, result);
    listing(figure, state, result);
    const many = lit.filter(Boolean).length;
    const numbers = {
      i: S - T + row, n: keys.length, S, keys: spans(keys), many, blind: blind.length, wrong: wrong.length,
      line: result.lines[0][0],
    };
    const say = [!keys.length ? "nothing" : S === 1 ? "sees one" : "sees"];
    if (blind.length > (keys.length ? 0 : 1)) say.push("blind");
    const trap = lit.some((on, n) => on && result.lines[n][1] === "is_causal=True");
    if (wrong.length) say.push(trap ? "trap" : found || many ? "wrong" : "no line");
    if (found) say.push("found");
    if (many > 1) say.push("alike");
    else if (!wrong.length) say.push("one");
    // No space follows a Chinese full stop.
    figure.say(say.map((key) => figure.word(key, numbers)).join(" ").replace(/([。！])(<\/\w+>)? /g, "$1$2"));
  };

  live("mask", {
    usual: { rule: "causal", T: 4, S: 8, W: 3, left: 0, right: 0, line: 0, painted: "", cursor: [0, 0] },
    mend(state) {
      const within = (name, least, most) => (state[name] = live.clamp(Math.round(state[name]), least, most));
      if (!Object.hasOwn(RULES, state.rule)) state.rule = "causal";
      within("S", 1, SIZE);
      within("T", 1, state.S);
      within("W", 1, state.S);
      within("left", 0, state.S);
      within("right", 0, state.S - state.left);
      within("line", 0, linesOf(state).length - 1);
      if (!/^[01]+$/.test(state.painted) || state.painted.length !== state.T * state.S) state.painted = "";
      state.cursor = [live.clamp(state.cursor[0], 0, state.T - 1), live.clamp(state.cursor[1], 0, state.S - 1)].map(Math.round);
    },
    said: { W: (value, { state }) => (PLAIN.includes(state.rule) ? "–" : value) },
    compute, draw,
  });
}
