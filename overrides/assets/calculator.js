// The calculator: reads the form and draws what `calculated` of
// sitekit/drawn/calculator.py says.
"use strict";
for (const box of document.querySelectorAll(".calculator")) {
  const { $, Entered, calculated, bytes_of } = python;
  const { say, made, grouped, count } = entry;
  const data = JSON.parse(box.querySelector("script").textContent);
  const { words, models, defaults, limits } = data;
  const { elements } = box.querySelector("form");
  const [problems, said, bars, body, facts] = ["problems", "said", "bars", "body", "facts"].map(
    (name) => box.querySelector(`.${name}`),
  );
  // The slider's value is a power of two; it sets the field of the tokens.
  const slider = box.querySelector("[type=range]");
  const OWN = "own";
  const SHAPE = Object.keys(defaults.shape);
  const FIELDS = ["model", "second", ...SHAPE, "tokens", "batch", "dtype"].concat(
    ["scale", "weights", "params", "ranks", "budget"],
  );
  const told = $.from(words);

  // Returns a value, or throws the error message.
  const check = (name, text) => {
    const shown = [words[name], text.slice(0, 40)];
    if (name === "budget") {
      const bytes = bytes_of(text);
      if (!bytes) throw say(words.bad_budget, ...shown);
      return bytes;
    }
    if (name in limits) {
      const value = count(text, limits[name]);
      const unknown = name === "params" && /^0?$/.test(text.trim());
      if (!value && !unknown)
        throw say(words.bad_number, ...shown, grouped(limits[name]));
      return value;
    }
    if (![...elements[name].options].some(({ value }) => value === text))
      throw say(words.bad_choice, ...shown);
    return text;
  };

  const fillShape = (shape) => {
    for (const name of SHAPE) elements[name].value = shape[name];
  };
  const standard = (name) =>
    name === "params"
      ? grouped(models[elements.model.value]?.params ?? "")
      : String(defaults.use[name] ?? defaults.shape[name] ?? defaults[name]);
  const isOwn = () => elements.model.value === OWN;

  // Fills the form from the address; wrong values are reported and left out.
  const fromAddress = () => {
    const wrong = [];
    const attempt = (fill) => {
      try {
        fill();
      } catch (why) {
        wrong.push(String(why));
      }
    };
    const query = new URLSearchParams(location.search);
    for (const name of FIELDS) elements[name].value = standard(name);
    const id = query.get("model");
    if (id !== null) attempt(() => (elements.model.value = check("model", id)));
    if (!isOwn()) fillShape(models[elements.model.value].shape);
    elements.params.value = standard("params");
    for (const [name, text] of query) {
      if (name === "model" || !FIELDS.includes(name)) continue; // not one of ours
      attempt(() => {
        if (SHAPE.includes(name) && !isOwn()) throw say(words.no_shape, words[name]);
        check(name, text);
        elements[name].value = text;
      });
    }
    return wrong;
  };

  const read = () => {
    const [values, wrong] = [{}, []];
    const refuse = (name, why) => {
      wrong.push(String(why));
      elements[name].setAttribute("aria-invalid", "true");
    };
    for (const name of FIELDS) {
      elements[name].removeAttribute("aria-invalid");
      try {
        values[name] = check(name, elements[name].value);
      } catch (why) {
        refuse(name, why);
      }
    }
    const { heads, kv_heads: shared } = values;
    if (heads && shared && heads % shared)
      refuse("kv_heads", say(words.divides, words.kv_heads, words.heads));
    if (values.dtype === "shipped") {
      const chosen = [values.model, values.second].filter((id) => id !== "none");
      if (!chosen.every((id) => models[id]?.shipped))
        refuse("dtype", words.not_shipped);
      if (values.scale !== "none") refuse("scale", words.no_scale);
    }
    return [values, wrong];
  };

  let last; // what the last result said
  const show = (values) => {
    const { tokens, batch, ranks, dtype, scale, weights, params, budget } = values;
    const entered = [tokens, batch, ranks, dtype, scale, weights, params, budget];
    const shape = $.dict(SHAPE.map((name) => [name, values[name]]));
    const known = (id) => (models[id] ? $.from(models[id]) : null);
    const both = [known(values.model), known(values.second)];
    const found = $.plain(calculated($.call(Entered, entered), shape, ...both, told));
    bars.style.setProperty("--budget", `${found.limit}%`);
    bars.replaceChildren(
      ...found.bars.map(([name, held, share, value, over]) => {
        const [weights, fill] = [made("div.weights"), made("div.fill")];
        weights.style.width = `${held}%`;
        fill.style.width = `${share}%`;
        fill.classList.toggle("over", over);
        const track = made("div.track", weights, fill);
        return made("div.bar", made("span.name", name), track, made("span.value", value));
      }),
    );
    body.replaceChildren(
      ...found.rows.map(([name, ...cells]) => {
        const head = made("th", name);
        head.scope = "row";
        return made("tr", head, ...cells.map((text) => made("td", text)));
      }),
    );
    data.shown.forEach((column, i) => (facts.children[i].firstChild.textContent = found.rows[0][column]));
    facts.classList.remove("stale");
    slider.value = Math.log2(Number(tokens));
    slider.nextElementSibling.value = slider.ariaValueText = grouped(tokens);
    last = found.said.join("\n");
    said.textContent = last;
  };

  // A field is empty or wrong: what was shown stays, and says that it is old.
  const keep = () => {
    said.textContent = last ? say(words.kept, last) : words.nothing;
    facts.classList.add("stale");
    if (!last) [bars, body].forEach((part) => part.replaceChildren());
  };

  const remember = entry.address(
    FIELDS.map((name) => elements[name]),
    (name) => (SHAPE.includes(name) && !isOwn() ? null : standard(name)),
  );
  const update = (before = []) => {
    const [values, wrong] = read();
    entry.report(problems, [...before, ...wrong]);
    if (wrong.length) keep();
    else show(values);
    return !wrong.length;
  };

  box.querySelector("form").addEventListener("input", ({ target }) => {
    const { model, second, params, dtype, tokens } = elements;
    if (target === slider) {
      const n = 2 ** slider.value; // a tick of three digits
      const round = 2 ** (Math.floor(Math.log2(n)) - 4);
      tokens.value = Math.round(n / round) * round;
    }
    if (target.name === "model") {
      if (!isOwn()) fillShape(models[model.value].shape);
      params.value = standard("params");
    } else if (SHAPE.includes(target.name)) {
      // What was there stays to be compared.
      if (!isOwn() && second.value === "none") second.value = model.value;
      model.value = OWN;
    } else return remember(update());
    if (dtype.value === "shipped" && !models[model.value]?.shipped) dtype.value = "bf16";
    remember(update());
  });
  update(fromAddress());
}
