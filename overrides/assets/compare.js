// Compare: the four variants in sizes of one's own. What a cache takes is
// computed by calculator.js, which stands before it.
"use strict";

for (const box of document.querySelectorAll(".comparison")) {
  const { presets, dtypes, most, words } = JSON.parse(
    box.querySelector("script").textContent,
  );
  const { elements } = box.querySelector("form");
  const problems = box.querySelector(".problems");
  const [state, ...others] = box.querySelectorAll(".state");
  const cells = (row) => [...state.querySelectorAll(`.${row} td`)];
  const standard = { ...presets[0], dtype: "bf16" };
  const { bytes, readable, grouped, digits, whole } = kvMemory;
  const fill = (sizes) => {
    for (const name in sizes) elements[name].value = sizes[name];
  };

  // The texts of a column, as facts() in sitekit/drawn/compare.py has them.
  const column = (size, bits, name, heads) => {
    const of = (key) => size[key];
    const [H, D, E] = ["heads", "head_dim", "d_model"].map(of);
    const [R, Dr, Q] = ["kv_lora_rank", "qk_rope_head_dim", "q_lora_rank"].map(of);
    const latent = name === "mla";
    const widths = latent ? [R, Dr] : [D, D];
    const store = (layers) => [[layers, "kv", heads, widths, null, 1]];
    const taken = (layers, tokens, ranks) =>
      bytes({}, store(layers), { tokens, batch: 1n, ranks, storage: { bits } });
    let weights = 2n * E * D * (H + heads);
    let flops = [4n * H * D];
    if (latent) {
      flops = [2n * H * (2n * R + Dr), 2n * H * (2n * D + Dr)];
      const queries = H * (D + Dr);
      weights = Q ? Q * (E + queries) + Q : E * queries;
      weights += E * (R + Dr) + H * D * E + H * R * 2n * D + R;
    }
    const elements = heads * (widths[0] + widths[1]);
    return [
      latent ? `c (${R}), kᴿ (${Dr})` : `k, v (${heads}, ${D})`,
      grouped(taken(1n, 1n, 1n)),
      readable(taken(size.layers, size.tokens, 1n)),
      readable(taken(size.layers, size.tokens, size.ranks)),
      flops.map(grouped).join(" / "),
      digits.format(Number(flops[0] * 8n) / Number(elements * BigInt(bits))),
      grouped(weights),
    ];
  };

  const say = (text, ...values) =>
    values.reduce((told, value) => told.replace("{}", () => value), text);

  const show = (size) => {
    const { heads: H, kv_heads: K, head_dim: D } = size;
    const stored = { mha: H, gqa: K, mqa: 1n, mla: 1n };
    const rows = [...state.querySelectorAll("tr[class^=of-]")];
    const pairs = { mla: [size.kv_lora_rank, size.qk_rope_head_dim] };
    const { value } = elements.dtype;
    const labels = {
      total: say(words.total, grouped(size.tokens), value),
      device: say(words.device, grouped(size.ranks)),
    };
    for (const name in labels)
      state.querySelector(`.of-${name} th`).textContent = labels[name];
    const of = (name) => (pairs[name] ?? [D, D]).map(Number);
    const wide = Math.max(...Object.keys(stored).map((n) => of(n)[0] + of(n)[1]));
    Object.entries(stored).forEach(([name, heads], i) => {
      const texts = column(size, dtypes[value], name, heads);
      rows.forEach((row, n) => (row.cells[i + 1].textContent = texts[n]));
      const drawn = [...cells("scaled")[i].querySelectorAll("span")];
      drawn.forEach((part, n) => {
        part.style.width = `${(100 * of(name)[n]) / wide}%`;
        part.querySelector("i").style.height = `${(5 * Number(heads)) / Number(H)}rem`;
      });
    });
  };

  const read = () => {
    const [size, wrong] = [{}, []];
    for (const name in most) {
      const { value } = elements[name];
      size[name] = whole(value, most[name]);
      const none = name === "q_lora_rank" && value.trim() === "0";
      if (!size[name] && !none) {
        const told = [words[name], value.slice(0, 40), grouped(most[name])];
        wrong.push([name, say(words.bad_number, ...told)]);
      }
    }
    if (size.heads && size.kv_heads && size.heads % size.kv_heads)
      wrong.push(["kv_heads", words.divides]);
    return [size, wrong];
  };

  const update = () => {
    const [size, wrong] = read();
    for (const name in most) {
      const bad = wrong.some(([at]) => at === name);
      elements[name].toggleAttribute("aria-invalid", bad);
    }
    problems.replaceChildren(
      ...wrong.map(([, why]) => {
        const item = document.createElement("li");
        item.textContent = why;
        return item;
      }),
    );
    problems.hidden = !wrong.length;
    const same = (sizes) => Object.keys(sizes).every((n) => elements[n].value === String(sizes[n]));
    elements.preset.forEach((radio, i) => (radio.checked = same(presets[i])));
    if (!wrong.length) show(size);
    return wrong.length === 0;
  };

  let waiting;
  const toAddress = () => {
    const asked = new URLSearchParams();
    for (const name in standard) {
      const value = elements[name].value.trim();
      if (value !== String(standard[name])) asked.set(name, value);
    }
    const query = String(asked).replaceAll("%2C", ",");
    try {
      history.replaceState(null, "", location.pathname + (query && `?${query}`) + location.hash);
    } catch {
      // The address may not be changed here; the result is shown anyway.
    }
  };
  box.addEventListener("input", ({ target }) => {
    if (target.name === "preset") fill(presets[target.value]);
    clearTimeout(waiting); // browsers let an address change only so often
    waiting = update() ? setTimeout(toAddress, 200) : 0;
  });
  addEventListener("pagehide", () => {
    if (waiting) toAddress(); // of the last edit, for the way back
  });

  others.forEach((other) => other.remove());
  box.classList.add("live");
  fill(standard);
  for (const [name, value] of new URLSearchParams(location.search)) {
    const known = name === "dtype" ? Object.hasOwn(dtypes, value) : Object.hasOwn(most, name);
    if (known) elements[name].value = value;
    if (known) box.querySelector("details").open = true;
  }
  update();
}
