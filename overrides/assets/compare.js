// Compare: the four variants in sizes of one's own, as `facts` and `parts` of
// sitekit/drawn/compare.py have them.
"use strict";

for (const box of document.querySelectorAll(".comparison")) {
  const { $, facts, parts } = python;
  const { say, grouped, count } = entry;
  const { presets, dtypes, most, words } = JSON.parse(
    box.querySelector("script").textContent,
  );
  const { elements } = box.querySelector("form");
  const problems = box.querySelector(".problems");
  const [state, ...others] = box.querySelectorAll(".state");
  const standard = { ...presets[0], dtype: "bf16" };
  const fill = (sizes) => {
    for (const name in sizes) elements[name].value = sizes[name];
  };

  const show = (size) => {
    const { value } = elements.dtype;
    state.querySelector(".of-total th").textContent = say(words.total, grouped(size.tokens), value);
    state.querySelector(".of-device th").textContent = say(words.device, grouped(size.ranks));
    const shape = $.dict(Object.entries(size));
    const rows = [...state.querySelectorAll("tr[class^=of-]")];
    Object.values($.plain(facts(shape, value))).forEach((texts, i) =>
      rows.forEach((row, n) => (row.cells[i + 1].textContent = texts[n])),
    );
    const boxes = Object.values($.plain(parts(shape)));
    const widths = boxes.map((each) => each.reduce((sum, [, , , width]) => sum + width, 0));
    const drawn = [...state.querySelectorAll(".scaled span")];
    for (const [, , heads, width] of boxes.flat()) {
      const part = drawn.shift();
      part.style.width = `${(100 * width) / Math.max(...widths)}%`;
      part.querySelector("i").style.height = `${(5 * heads) / Number(size.heads)}rem`;
    }
  };

  const update = () => {
    const [size, wrong] = [{}, {}];
    for (const name in most) {
      const { value } = elements[name];
      size[name] = count(value, most[name]);
      const none = name === "q_lora_rank" && value.trim() === "0";
      if (!size[name] && !none)
        wrong[name] = say(words.bad_number, words[name], value.slice(0, 40), grouped(most[name]));
    }
    if (size.heads && size.kv_heads && size.heads % size.kv_heads)
      wrong.kv_heads = words.divides;
    for (const name in most) elements[name].toggleAttribute("aria-invalid", name in wrong);
    const sentences = Object.values(wrong);
    entry.report(problems, sentences);
    const same = (sizes) => Object.keys(sizes).every((n) => elements[n].value === String(sizes[n]));
    elements.preset.forEach((radio, i) => (radio.checked = same(presets[i])));
    if (!sentences.length) show(size);
    return !sentences.length;
  };

  const remember = entry.address(
    Object.keys(standard).map((name) => elements[name]),
    (name) => String(standard[name]),
  );
  box.addEventListener("input", ({ target }) => {
    if (target.name === "preset") fill(presets[target.value]);
    remember(update());
  });

  others.forEach((other) => other.remove());
  box.classList.add("live");
  fill(standard);
  for (const [name, value] of new URLSearchParams(location.search)) {
    const known = name === "dtype" ? dtypes.includes(value) : Object.hasOwn(most, name);
    if (known) elements[name].value = value;
  }
  update();
}
