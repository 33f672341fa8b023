// What every live figure needs: a state that the address keeps, fields bound to
// it, marks that stay in place, and handles that are moved by pointer, touch or
// keys. A figure is a file of assets/live/: `live(name, { usual, mend, compute,
// draw })`, where `usual` is its state at first, `mend(state, data)` keeps one
// within what is allowed, `compute(state, data)` gives all numbers, which tests
// compare with the package, and `draw(figure, state, result)` shows them.
"use strict";
class Figure {
  constructor(box, name, parts) {
    Object.assign(this, { box, name, parts });
    const { words, data } = JSON.parse(box.querySelector("script").textContent);
    Object.assign(this, { words, data });
    this.stage = box.querySelector(".stage");
    this.fields = box.querySelector("form").elements;
    this.state = structuredClone(parts.usual);
    box.addEventListener("input", ({ target }) => this.#entered(target));
    box.addEventListener("click", ({ target }) => this.#pressed(target.closest("button[name]")));
    box.addEventListener("submit", (event) => event.preventDefault());
    box.querySelector(".again").addEventListener("click", () => this.change(parts.usual));
    addEventListener("popstate", () => this.#follow());
    this.#follow();
  }

  // A text in the reader's language, with numbers in place of its `{names}`.
  word(key, numbers = {}) {
    if (!(key in this.words)) throw new Error(`no word ${key} in ${this.name}`);
    return this.words[key].replace(/\{(\w+)\}/g, (all, name) => numbers[name] ?? all);
  }

  // Changes a part of the state, and shows it.
  change(part) {
    Object.assign(this.state, structuredClone(part));
    this.show();
    clearTimeout(this.later); // browsers refuse more than a few addresses a second
    this.later = setTimeout(() => this.#keep(), 150);
  }

  show() {
    const { mend, compute, draw } = this.parts;
    mend?.(this.state, this.data);
    this.drawn = new Set();
    this.result = compute(this.state, this.data);
    draw(this, this.state, this.result);
    for (const mark of this.stage.querySelectorAll("[data-key]"))
      if (!this.drawn.has(mark)) mark.remove();
    const off = this.parts.off?.(this.state) ?? []; // fields without an effect now
    for (const field of this.fields) {
      this.#fill(field);
      field.disabled = off.includes(field.name);
    }
  }

  // A field shows its part of the state, and in <output> what that says.
  #fill(field) {
    if (!(field.name in this.state) || field.type === "button") return;
    const value = this.state[field.name];
    if (field.type === "checkbox") field.checked = value;
    else if (field.type === "radio") field.checked = field.value === String(value);
    else field.value = value;
    const output = field.closest("label").querySelector("output");
    if (!output) return;
    const said = this.parts.said?.[field.name];
    output.value = said ? said(value, this) : Number(value).toLocaleString("en");
    field.ariaValueText = output.value;
  }

  #entered({ name, type, value, checked }) {
    const usual = this.parts.usual[name];
    if (usual === undefined) return;
    const number = type === "number" && value === "" ? NaN : Number(value);
    if (typeof usual === "number" && Number.isNaN(number)) return; // not yet a number
    this.change({ [name]: type === "checkbox" ? checked : typeof usual === "number" ? number : value });
  }

  // A button adds its letter to a text, such as a list of what was done.
  #pressed(button) {
    if (button) this.change({ [button.name]: this.state[button.name] + button.value });
  }

  // The address holds what differs from the usual state: ?sdpa.q=1,2
  #read(text, usual) {
    if (typeof usual === "boolean") return text === "true";
    if (typeof usual === "string") return text;
    const numbers = text.split(",").map(Number);
    const fits = numbers.length === [usual].flat().length && numbers.every(Number.isFinite);
    return !fits ? usual : Array.isArray(usual) ? numbers : numbers[0];
  }
  #follow() {
    const { searchParams } = new URL(location);
    for (const [key, usual] of Object.entries(this.parts.usual)) {
      const text = searchParams.get(`${this.name}.${key}`);
      this.state[key] = structuredClone(text === null ? usual : this.#read(text, usual));
    }
    this.show();
  }
  #keep() {
    const page = new URL(location);
    for (const [key, usual] of Object.entries(this.parts.usual)) {
      const [value, first] = [this.state[key], usual].map(String);
      if (value === first) page.searchParams.delete(`${this.name}.${key}`);
      else page.searchParams.set(`${this.name}.${key}`, value);
    }
    page.search = page.search.replaceAll("%2C", ",");
    if (page.search !== location.search) page.hash = this.box.id;
    history.replaceState(null, "", page);
  }

  // A part of the stage, made once: it keeps its focus, and style may move it.
  // What is not asked for in a drawing goes.
  #part(parent, key, make) {
    parent.parts ??= new Map([...parent.children].map((child) => [child.dataset.key, child]));
    let part = parent.parts.get(key);
    if (!part?.isConnected) {
      part = make();
      part.dataset.key = key;
      parent.parts.set(key, part);
      if (this.drawn.has(parent.latest)) parent.latest.after(part);
      else parent.prepend(part);
    }
    this.drawn.add((parent.latest = part));
    return part;
  }

  // HTML beside the drawings: `<p class="said">`, changed only if it differs.
  html(key, name, kind, html) {
    const part = this.#part(this.stage, key, () => document.createElement(name));
    part.className = kind;
    if (html !== undefined && part.figureHtml !== html) part.innerHTML = part.figureHtml = html;
    return part;
  }
  // Sentences that are joined by a blank have none between them in Chinese. What
  // stands below does not move up while sentences get shorter.
  say(html) {
    const said = this.html("said", "p", "said", html.replace(/(?<=[。？！]) /g, ""));
    said.ariaLive = "polite";
    const { width, height } = said.getBoundingClientRect();
    if (width !== this.saidWidth) this.saidHeight = 0;
    Object.assign(this, { saidWidth: width, saidHeight: Math.max(this.saidHeight, height) });
    said.style.minHeight = `${this.saidHeight}px`;
  }
  // Lines of code, each with what it gives; `kind` is "", "lit", "bad" or "dim".
  // With the place "wide" they span the stage.
  code(key, lines, place = "") {
    const html = lines.map(([line, kind = "", gives = ""]) =>
      `<span class="${kind}"><code>${line}</code> <i>${gives}</i></span>`);
    this.html(key, "pre", `lines ${place}`, html.join(""));
  }
  // Tasks, each with its text and whether it is met now: what was met once stays
  // ticked. The part `done` of the state keeps this, "0110".
  tasks(key, tasks) {
    const done = tasks.map(([, isMet], n) => (isMet ? "1" : this.state.done[n]));
    this.state.done = done.join("");
    const html = tasks.map(([text], n) => `<li class="${done[n] === "1" ? "done" : ""}">${text}</li>`);
    this.html(key, "ul", "tasks", html.join(""));
  }
  // Rows of cells of HTML; the first row is the head, whose blank cells are none.
  table(key, [head, ...rows]) {
    const part = (cell, name) => (cell === "" ? "<td></td>" : `<${name}>${cell}</${name}>`);
    const row = (cells, name) => `<tr>${cells.map((cell) => part(cell, name)).join("")}</tr>`;
    this.html(key, "table", "numbers", row(head, "th") + rows.map((cells) => row(cells, "td")).join(""));
  }

  // A drawing of `width` by `height`.
  svg(key, width, height, label) {
    const svg = this.#part(this.stage, key, () => document.createElementNS(SVG, "svg"));
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.setAttribute("role", "group");
    svg.setAttribute("aria-label", label);
    return new Drawing(svg, (id, make) => this.#part(svg, id, make), width, height);
  }
}

const SVG = "http://www.w3.org/2000/svg";
const STEPS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };

class Drawing {
  constructor(svg, part, width, height) {
    Object.assign(this, { svg, part, width, height });
  }

  // The mark `key`: its attributes, numbers to a hundredth, and its text.
  mark(key, name, attributes, text) {
    const mark = this.part(key, () => document.createElementNS(SVG, name));
    for (const [attribute, value] of Object.entries(attributes)) {
      const written = typeof value === "number" ? String(Math.round(100 * value) / 100) : value;
      if (mark.getAttribute(attribute) !== written) mark.setAttribute(attribute, written);
    }
    if (text !== undefined && mark.textContent !== String(text)) mark.textContent = text;
    return mark;
  }
  text(key, kind, x, y, words) {
    return this.mark(key, "text", { class: kind, x, y }, words);
  }
  line(key, kind, [x1, y1], [x2, y2]) {
    return this.mark(key, "line", { class: kind, x1, y1, x2, y2 });
  }
  box(key, kind, x, y, width, height, rx = 3) {
    return this.mark(key, "rect", { class: kind, x, y, width: Math.max(0, width), height: Math.max(0, height), rx });
  }
  cell(key, kind, x, y, width, height, words) {
    const box = this.box(key, kind, x, y, width, height);
    return words === "" ? box : this.text(`${key}.text`, `${kind} in`, x + width / 2, y + height / 2, words);
  }
  disc(key, kind, [cx, cy], r) {
    return this.mark(key, "circle", { class: kind, cx, cy, r });
  }
  path(key, kind, points, closed = false) {
    const places = points.map((point) => point.map((z) => z.toFixed(1)).join(" "));
    return this.mark(key, "path", { class: kind, d: `M${places.join("L")}${closed ? "Z" : ""}` });
  }
  // An arrow with its name beyond its tip.
  arrow(key, kind, [x, y], tip, name = "") {
    const [dx, dy] = [tip[0] - x, tip[1] - y];
    const length = Math.hypot(dx, dy) || 1;
    const [ux, uy] = [dx / length, dy / length];
    const barbs = [0.5, -0.5].map((side) => [tip[0] - 8 * (ux - side * uy), tip[1] - 8 * (uy + side * ux)]);
    this.path(key, `arrow ${kind}`, [[x, y], tip, barbs[0], tip, barbs[1]]);
    if (name) this.text(`${key}.name`, kind, tip[0] + 16 * ux, tip[1] + 16 * uy, name);
  }

  // Where a pointer is, in the units of the drawing.
  place({ clientX, clientY }) {
    const { x, y } = new DOMPoint(clientX, clientY).matrixTransform(this.svg.getScreenCTM().inverse());
    return [x, y];
  }

  // A circle, large enough for a thumb, that is dragged: `to(x, y)`. Keys move
  // it `by(dx, dy)` steps, with Shift five, or to one of both ends: `set(end)`.
  // `value` is what is read aloud, and `now` the number that it is.
  handle(key, point, { name, value, now = value, ends, to, by, set, r = 20 }) {
    const mark = this.disc(key, "hit", point, r);
    const [least, most] = ends.map((end) => Number(end.toFixed(2)));
    Object.assign(mark, { ariaLabel: name, ariaValueText: value, ariaValueMin: least, ariaValueMax: most });
    mark.ariaValueNow = live.clamp(Number(Number(now).toFixed(2)), least, most);
    const isNew = !mark.to;
    Object.assign(mark, { to, by, set, point, ends: { Home: least, End: most } }); // of the newest drawing
    if (!isNew) return mark;
    mark.setAttribute("role", "slider");
    mark.setAttribute("tabindex", 0);
    // Where circles overlap, the one whose centre is nearest is held.
    mark.addEventListener("pointerdown", (event) => {
      event.preventDefault();
      const [x, y] = this.place(event);
      const away = ({ point }) => Math.hypot(point[0] - x, point[1] - y);
      const held = [...this.svg.querySelectorAll(".hit")].reduce((a, b) => (away(b) < away(a) ? b : a));
      const move = (moved) => held.to(...this.place(moved));
      held.start?.();
      held.focus();
      held.setPointerCapture(event.pointerId);
      held.addEventListener("pointermove", move);
      const end = () => held.removeEventListener("pointermove", move);
      held.addEventListener("lostpointercapture", end, { once: true });
    });
    // The page does not scroll, but only here: beside it one may scroll on.
    mark.addEventListener("touchstart", (event) => event.preventDefault(), { passive: false });
    mark.addEventListener("keydown", (event) => {
      const end = mark.ends[event.key];
      if ((!STEPS[event.key] && end === undefined) || event.altKey || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      if (end !== undefined) mark.set(end);
      else mark.by(...STEPS[event.key].map((step) => step * (event.shiftKey ? 5 : 1)));
    });
    return mark;
  }

  // Cells painted by dragging: `cell(x, y)` is the one there, or undefined;
  // `begin(cell)` gives what is done to it and to those that follow.
  paint(cell, begin) {
    const isNew = !this.svg.painted;
    this.svg.painted = { cell, begin };
    if (!isNew) return;
    const under = (event) => this.svg.painted.cell(...this.place(event));
    this.svg.addEventListener("pointerdown", (event) => {
      const first = under(event);
      if (first === undefined) return;
      const put = this.svg.painted.begin(first);
      const on = (moved) => under(moved) !== undefined && put(under(moved));
      this.svg.setPointerCapture(event.pointerId);
      this.svg.addEventListener("pointermove", on);
      const end = () => this.svg.removeEventListener("pointermove", on);
      this.svg.addEventListener("lostpointercapture", end, { once: true });
      put(first);
    });
    const still = (event) => under(event.touches[0]) !== undefined && event.preventDefault();
    this.svg.addEventListener("touchstart", still, { passive: false });
  }

  // A plane with its origin in the middle: `unit` is the length of 1.
  plane(unit) {
    const { width, height } = this;
    const reach = [width / 2 / unit, height / 2 / unit];
    const at = ([x, y]) => [width / 2 + unit * x, height / 2 - unit * y];
    this.line("x", "axes", [0, height / 2], [width, height / 2]);
    this.line("y", "axes", [width / 2, 0], [width / 2, height]);
    // A vector with a tip that is moved, in twentieths; `moved` takes its end.
    const vector = (name, kind, end, moved) => {
      this.arrow(name, kind, at([0, 0]), at(end), name);
      const within = (point) => moved(point.map((z, i) =>
        Math.round(20 * Math.max(0.3 - reach[i], Math.min(reach[i] - 0.3, z))) / 20));
      this.handle(`${name}.tip`, at(end), {
        name, value: end.map((z) => live.number(z)).join(", "), now: end[0], ends: [0.3 - reach[0], reach[0] - 0.3],
        set: (x) => within([x, end[1]]),
        to: (x, y) => within([(x - width / 2) / unit, (height / 2 - y) / unit]),
        by: (dx, dy) => within([end[0] + dx / 20, end[1] + dy / 20]),
      });
    };
    return { at, vector };
  }
}

const live = (name, parts) => {
  live.figures[name] = parts; // tests call `compute`
  for (const box of document.querySelectorAll(`[data-live="${name}"]`)) {
    box.figure = new Figure(box, name, parts);
    // The second stop of the Tab key, past the header and all lists of pages.
    const skip = document.querySelector(".md-skip");
    if (skip && !document.querySelector(".md-skip + .md-skip"))
      skip.after(Object.assign(skip.cloneNode(), { href: `#${box.id}`, textContent: box.dataset.skip }));
  }
};
live.figures = {};
live.range = (n) => [...Array(n).keys()];
live.sum = (numbers) => numbers.reduce((a, b) => a + b, 0);
live.dot = (x, y) => live.sum(x.map((z, i) => z * y[i]));
live.clamp = (x, least, most) => Math.max(least, Math.min(most, x));
live.number = (x, digits = 2) =>
  Number.isFinite(x) ? x.toFixed(digits).replace(/^-(0\.?0*)$/, "$1").replace("-", "−")
  : Number.isNaN(x) ? "NaN" : x < 0 ? "−∞" : "∞";
// What `terms` of sitekit/drawing/terms.py read off the package: a sum of
// products, each a number and the names of its factors.
live.total = (terms, sizes) =>
  live.sum(terms.map(([number, ...names]) => names.reduce((x, name) => x * sizes[name], number)));
// In the largest unit that gives 1 or more; a name for each power of `base`.
// Bytes are rounded as Python rounds them.
live.unit = (x, base, units) => {
  const n = live.clamp(Math.floor(Math.log(x) / Math.log(base) + 1e-9), 0, units.length - 1);
  const digits = { maximumSignificantDigits: base > 1000 ? 4 : 3, roundingMode: "halfEven", useGrouping: false };
  return `${(x / base ** n).toLocaleString("en", digits)} ${units[n]}`;
};
live.bytes = (x) => live.unit(x, 1024, ["B", "KiB", "MiB", "GiB", "TiB"]);
live.flops = (x) => live.unit(x, 1000, ["", "k", "M", "G", "T", "P"].map((unit) => `${unit}FLOPs`));
// Softmax as attnref computes it: a row of -Infinity gives zeros.
live.softmax = (scores) => {
  const top = Math.max(...scores);
  const powers = scores.map((s) => (s === -Infinity ? 0 : Math.exp(s - top)));
  const total = live.sum(powers);
  return powers.map((power) => (power ? power / total : 0));
};
