// The trained model of learn/trained on what one types. Its parameters are in
// assets/weights.js, which is loaded once somebody turns to the field.
"use strict";
const trained = (() => {
  const [E, H, D, LAYERS, SYMBOLS, THETA, EPS] = [64, 2, 32, 2, 16, 10, 2 ** -23];
  let model = null;

  // As nn.Module lists them, in bfloat16: the upper half of a float32.
  const read = (text) => {
    const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    const n = bytes.length / 2;
    const words = Uint32Array.from({ length: n }, (_, i) => ((bytes[n + i] << 8) | bytes[i]) << 16);
    const all = new Float32Array(words.buffer);
    let at = 0;
    const next = (n) => all.slice(at, (at += n));
    const embed = next(SYMBOLS * E);
    const layers = Array.from({ length: LAYERS }, () => "qkvo".split("").map(() => next(E * E)));
    const norms = Array.from({ length: LAYERS + 1 }, () => next(E));
    return { embed, layers, norms, head: next(SYMBOLS * E) };
  };

  const dot = (a, i, b, j, n) => {
    let sum = 0;
    for (let k = 0; k < n; k++) sum += a[i + k] * b[j + k];
    return sum;
  };
  // Rows of `x`, each times a matrix of `n` rows, as nn.Linear has it.
  const linear = (x, weight, n) =>
    x.map((row) => Float64Array.from({ length: n }, (_, i) => dot(row, 0, weight, i * E, E)));
  const norm = (x, weight) =>
    x.map((row) => {
      const size = Math.sqrt(dot(row, 0, row, 0, E) / E + EPS);
      return row.map((value, i) => (value / size) * weight[i]);
    });
  const softmax = (scores) => {
    const most = Math.max(...scores);
    const parts = scores.map((s) => Math.exp(s - most));
    const sum = parts.reduce((a, b) => a + b);
    return parts.map((part) => part / sum);
  };

  // (T, E) to (H, T, D): with a transpose, or, by mistake, without.
  const split = (x, mistake) => {
    const flat = x.flatMap((row) => [...row]);
    const from = (h, t) => (mistake === "split-by-view-alone" ? (h * x.length + t) * D : t * E + h * D);
    return Array.from({ length: H }, (_, h) => x.map((_, t) => flat.slice(from(h, t), from(h, t) + D)));
  };
  const rope = (heads, mistake) =>
    heads.map((rows, h) =>
      rows.map((row, t) => {
        const at = mistake === "rope-over-heads" ? h : t, half = D / 2;
        const turned = [...row];
        for (let p = 0; p < half; p++) {
          const angle = at * THETA ** ((-2 * p) / D), [cos, sin] = [Math.cos(angle), Math.sin(angle)];
          turned[p] = row[p] * cos - row[p + half] * sin;
          turned[p + half] = row[p + half] * cos + row[p] * sin;
        }
        return turned;
      }),
    );

  // What the model says of each token: logits (T, SYMBOLS), and of each head
  // its weights (T, T).
  const forward = (tokens, mistake = "") => {
    let x = tokens.map((n) => Float64Array.from(model.embed.slice(n * E, (n + 1) * E)));
    const heads = [];
    for (const [n, [wq, wk, wv, wo]] of model.layers.entries()) {
      const normed = norm(x, model.norms[n]);
      const [q, k, v] = [wq, wk, wv].map((w) => split(linear(normed, w, E), mistake));
      const [rq, rk] = [rope(q, mistake), rope(k, mistake)];
      const weights = rq.map((rows, h) =>
        rows.map((row, t) => {
          const seen = (s) => mistake === "not-causal" || s <= t;
          return softmax(rk[h].map((key, s) => (seen(s) ? dot(row, 0, key, 0, D) / Math.sqrt(D) : -Infinity)));
        }),
      );
      heads.push(...weights);
      const merged = x.map((_, t) =>
        Float64Array.from({ length: E }, (_, i) => {
          const h = Math.floor(i / D);
          return weights[h][t].reduce((sum, w, s) => sum + w * v[h][s][i % D], 0);
        }),
      );
      const out = linear(merged, wo, E);
      x = x.map((row, t) => row.map((value, i) => value + out[t][i]));
    }
    return { logits: linear(norm(x, model.norms[LAYERS]), model.head, SYMBOLS), heads };
  };

  const form = document.querySelector("form.play");
  const { text, mistake } = form.elements;
  const script = document.createElement("script");
  script.src = new URL("weights.js", document.currentScript.src);
  script.addEventListener("load", () => {
    model = read(trainedWeights);
    show();
  });
  const load = () => script.isConnected || document.head.append(script);

  // The figure below the field: it shows the recorded heads until somebody
  // types, and again when the field is empty.
  const panels = [...form.nextElementSibling.querySelectorAll(".panel")];
  const recorded = panels.map((panel) => [...panel.childNodes]);
  const WIDTH = panels[0].querySelector("svg").getAttribute("width");
  const CELL = 11, LEFT = 20;
  const svg = (kind, attributes, inside = "") => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", kind);
    for (const name in attributes) node.setAttribute(name, attributes[name]);
    node.textContent = inside;
    return node;
  };
  const picture = (weights, symbols, title) => {
    const wide = LEFT + CELL * symbols.length + 1;
    const drawn = svg("svg", { viewBox: `0 0 ${wide} ${wide}`, width: WIDTH, role: "img", "aria-label": title });
    for (const [t, row] of weights.entries())
      for (const [s, weight] of row.entries())
        if (weight >= 0.05)
          drawn.append(
            svg("rect", { class: "weight", x: LEFT + s * CELL, y: LEFT + t * CELL, width: 10, height: 10, "fill-opacity": weight.toFixed(2) }),
          );
    for (const [i, symbol] of symbols.entries()) {
      const at = LEFT + CELL * (i + 0.5);
      drawn.append(svg("text", { class: "symbol", x: at, y: LEFT - 7 }, symbol));
      drawn.append(svg("text", { class: "symbol", x: LEFT - 9, y: at }, symbol));
    }
    return drawn;
  };

  const show = () => {
    const symbols = [...text.value.toUpperCase()].filter((c) => c >= "A" && c <= "P").slice(0, 24);
    const address = new URL(location);
    for (const { name, value } of [text, mistake])
      if (value) address.searchParams.set(name, value);
      else address.searchParams.delete(name);
    history.replaceState(null, "", address);
    const place = form.querySelector("output");
    place.textContent = text.value && !symbols.length ? form.dataset.letters : "";
    if (!symbols.length && mistake.value) symbols.push(...text.placeholder);
    if (!symbols.length || !model) return panels.forEach((panel, n) => panel.replaceChildren(...recorded[n]));
    const { logits, heads } = forward(symbols.map((c) => c.charCodeAt(0) - 65), mistake.value);
    const chances = softmax([...logits.at(-1)]);
    const best = chances.map((p, i) => [p, String.fromCharCode(65 + i)]).sort(([a], [b]) => b - a);
    const list = best.slice(0, 3).filter(([p], i) => !i || p >= 0.01).map(([p, c]) => `${c} ${Math.round(100 * p)}%`);
    place.textContent = `${form.dataset.next.replace("{}", symbols.join(""))} ${list.join(" · ")}`;
    heads.forEach((weights, n) => {
      const title = form.dataset.head.replace("{}", 1 + Math.floor(n / H)).replace("{}", 1 + (n % H));
      const name = Object.assign(document.createElement("p"), { className: "panel-title", textContent: title });
      panels[n].replaceChildren(name, picture(weights, symbols, title));
    });
  };

  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("focusin", load);
  form.addEventListener("input", show);
  const { searchParams } = new URL(location);
  for (const field of [text, mistake]) field.value = searchParams.get(field.name) ?? field.value;
  if (text.value || mistake.value) load();
  return { forward };
})();
