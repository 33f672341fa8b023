// The calculator. Its arithmetic is that of attnref/numbers/kv_memory.py, in
// integers of any size; the tests compare the two for every model.
"use strict";

const kvMemory = (() => {
  const over = (a, b) => (a + b - 1n) / b; // divided and rounded up

  // A store: [layers, role, heads, widths, window or null, ratio].
  const fixed = ([, role]) => role === "state" || role === "conv";

  const entries = (store, tokens) => {
    const [, , , , window, ratio] = store;
    if (fixed(store)) return 1n;
    const seen = window !== null && tokens > window ? BigInt(window) : tokens;
    return seen / BigInt(ratio);
  };

  // A storage: { bits, scaleBits, block } or { shipped }.
  const entryBytes = (data, store, storage, ranks) => {
    const [, role, heads, widths, window] = store;
    const kept = fixed(store) ? { bits: data.fixed[role] } : storage;
    if (kept.shipped) {
      const { kv, index, window: recent } = kept.shipped;
      if (role === "index") return BigInt(index);
      return BigInt((window !== null && recent) || kv);
    }
    const { bits, scaleBits = 0, block = 1 } = kept;
    let total = 0n;
    for (const width of widths) {
      const scales = over(BigInt(width), BigInt(block)) * BigInt(scaleBits);
      total += BigInt(width) * BigInt(bits) + scales;
    }
    return over(over(BigInt(heads), ranks) * total, 8n);
  };

  const bytes = (data, stores, { tokens, batch, storage, ranks }) => {
    let sum = 0n;
    for (const store of stores) {
      sum +=
        BigInt(store[0]) *
        entries(store, tokens) *
        entryBytes(data, store, storage, ranks);
    }
    return batch * sum;
  };

  // What a token adds once the windows are full: [numerator, denominator].
  const later = (data, stores, { storage, ranks }) => {
    let [above, below] = [0n, 1n];
    for (const store of stores) {
      if (fixed(store) || store[4] !== null) continue;
      const ratio = BigInt(store[5]);
      const added =
        BigInt(store[0]) * entryBytes(data, store, storage, ranks);
      [above, below] = [above * ratio + added * below, below * ratio];
    }
    let [a, b] = [above, below];
    while (b) [a, b] = [b, a % b];
    return a ? [above / a, below / a] : [0n, 1n];
  };

  // The most tokens that fit into a budget: 0n if none do, null if any number.
  const longest = (data, stores, use, budget) => {
    const fits = (tokens) => bytes(data, stores, { ...use, tokens }) <= budget;
    if (!fits(1n)) return 0n;
    const endless = later(data, stores, use)[0] === 0n;
    const windows = stores.map((store) => BigInt(store[4] ?? 0));
    const last = windows.reduce((a, b) => (a > b ? a : b), 0n);
    let [low, high] = [1n, 2n];
    while (fits(high)) {
      if (endless && high >= last) return null;
      [low, high] = [high, 2n * high];
    }
    while (high - low > 1n) {
      const middle = (low + high) / 2n;
      if (fits(middle)) low = middle;
      else high = middle;
    }
    return low;
  };

  const largest = (data, stores, use, budget) =>
    budget > 0n ? budget / bytes(data, stores, { ...use, batch: 1n }) : 0n;

  // Of all parameters, on each device.
  const weightBytes = (params, bits, ranks) =>
    over(params * BigInt(bits), 8n * ranks);

  const grouped = (n) => String(n).replace(/\B(?=(\d{3})+$)/g, ",");

  // Four digits, rounded as Python does.
  const digits = new Intl.NumberFormat("en", {
    maximumSignificantDigits: 4,
    roundingMode: "halfEven",
    useGrouping: false,
  });
  const readable = (n) => {
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let value = Number(n);
    while (Number(digits.format(value)) >= 1024 && units.length > 1) {
      value /= 1024;
      units.shift();
    }
    return `${digits.format(value)} ${units[0]}`;
  };

  // A whole number from 1 to `most`, or 0n. 131072, 131,072, 131 072, 128K; or
  // 1e6, 1.5e5
  const whole = (text, most) => {
    const digits = /^(\d{1,18}|\d{1,3}(?:[,_\s]\d{3}){1,5})([KM]?)$/i;
    const power = /^(\d{1,9})(?:\.(\d{1,9}))?e\+?(\d{1,2})$/i;
    const match = digits.exec(text.trim());
    const unit = { K: 1024n, M: 1048576n }[match?.[2].toUpperCase()] ?? 1n;
    let value = match ? BigInt(match[1].replace(/[_,\s]/g, "")) * unit : 0n;
    const [, head, part = "", zeros] = power.exec(text.trim()) ?? [];
    if (zeros >= part.length)
      value = BigInt(head + part) * 10n ** BigInt(zeros - part.length);
    return value <= BigInt(most) ? value : 0n;
  };

  return { bytes, later, longest, largest, weightBytes, grouped, digits, readable, whole };
})();

for (const box of document.querySelectorAll(".calculator")) {
  const data = JSON.parse(box.querySelector("script").textContent);
  const { words, models, defaults } = data;
  const form = box.querySelector("form");
  const [problems, said, bars, body] = ["problems", "said", "bars", "body"].map(
    (name) => box.querySelector(`.${name}`),
  );
  const OWN = "own";
  const SHAPE = Object.keys(defaults.shape);
  const NUMBERS = { ...defaults.shape, ...defaults.use, params: 0 };

  const say = (key, ...values) =>
    values.reduce((text, value) => text.replace("{}", () => value), words[key]);
  const { grouped, readable } = kvMemory;

  const fraction = ([above, below]) => {
    if (below === 1n) return grouped(above);
    const hundredths = (200n * above + below) / (2n * below);
    const cents = String(hundredths % 100n).padStart(2, "0");
    return `${grouped(hundredths / 100n)}.${cents}`;
  };

  // Each of these returns a value, or throws the error message.
  const asNumber = (name, text) => {
    const most = data.limits[name];
    const value = kvMemory.whole(text, most);
    const unknown = name === "params" && /^0?$/.test(text.trim());
    if (!value && !unknown) {
      throw say("bad_number", words[name], text.slice(0, 40), grouped(most));
    }
    return value;
  };
  const asBudget = (text) => {
    const match = /^(\d{1,7})(?:\.(\d{1,3}))?$/.exec(text.trim());
    const thousandths = match
      ? BigInt(match[1] + (match[2] ?? "").padEnd(3, "0"))
      : 0n;
    if (!thousandths) {
      throw say("bad_budget", words.budget, text.slice(0, 40));
    }
    return (thousandths * 2n ** 30n) / 1000n;
  };
  const asChoice = (name, text) => {
    const options = [...form.elements[name].options].map((o) => o.value);
    if (!options.includes(text)) {
      throw say("bad_choice", words[name], text.slice(0, 40));
    }
    return text;
  };
  const check = (name, text) => {
    if (name === "budget") return asBudget(text);
    if (name in NUMBERS) return asNumber(name, text);
    return asChoice(name, text);
  };

  const fillShape = (shape) => {
    for (const name of SHAPE) form.elements[name].value = shape[name];
  };

  const FIELDS = ["model", "second", ...SHAPE, "tokens", "batch", "dtype"].concat(
    ["scale", "weights", "params", "ranks", "budget"],
  );
  const standard = (name) =>
    name === "params"
      ? grouped(models[form.elements.model.value]?.params ?? "")
      : String(defaults.use[name] ?? defaults.shape[name] ?? defaults[name]);

  // Fills the form from the address; wrong values are reported and left out.
  const fromAddress = () => {
    const found = [];
    const asked = new URLSearchParams(location.search);
    for (const name of FIELDS) form.elements[name].value = standard(name);
    const id = asked.get("model");
    if (id !== null) {
      try {
        form.elements.model.value = asChoice("model", id);
      } catch (why) {
        found.push(String(why));
      }
    }
    const own = form.elements.model.value === OWN;
    if (!own) fillShape(models[form.elements.model.value].shape);
    form.elements.params.value = standard("params");
    for (const [name, text] of asked) {
      try {
        if (name === "model") continue;
        if (!FIELDS.includes(name)) continue; // not one of ours
        if (SHAPE.includes(name) && !own) throw say("no_shape", words[name]);
        check(name, text);
        form.elements[name].value = text;
      } catch (why) {
        found.push(String(why));
      }
    }
    return found;
  };

  const toAddress = () => {
    const told = new URLSearchParams();
    const own = form.elements.model.value === OWN;
    for (const name of FIELDS) {
      const value = form.elements[name].value.trim();
      if (SHAPE.includes(name) && !own) continue;
      if (value !== standard(name)) told.set(name, value);
    }
    const query = String(told).replaceAll("%2F", "/").replaceAll("%2C", ",");
    const address = location.pathname + (query && `?${query}`) + location.hash;
    try {
      history.replaceState(null, "", address);
    } catch {
      // The address may not be changed here; the result is shown anyway.
    }
  };

  const read = () => {
    const [values, found] = [{}, []];
    for (const name of FIELDS) {
      const input = form.elements[name];
      try {
        values[name] = check(name, input.value);
        input.removeAttribute("aria-invalid");
      } catch (why) {
        found.push(String(why));
        input.setAttribute("aria-invalid", "true");
      }
    }
    const refuse = (name, why) => {
      found.push(why);
      form.elements[name].setAttribute("aria-invalid", "true");
    };
    const { heads, kv_heads: shared } = values;
    if (heads && shared && heads % shared) {
      refuse("kv_heads", say("divides", words.kv_heads, words.heads));
    }
    const chosen = [values.model, values.second].filter((id) => id !== "none");
    if (values.dtype === "shipped" && !chosen.every((id) => models[id]?.shipped)) {
      refuse("dtype", say("not_shipped"));
    }
    if (values.dtype === "shipped" && values.scale !== "none") {
      refuse("scale", say("no_scale"));
    }
    return [values, found];
  };

  // Rows of a name, stores, how they are stored, and a number of parameters.
  const asked = (values) => {
    const shape = Object.fromEntries(
      SHAPE.map((name) => [name, Number(values[name])]),
    );
    const { layers, heads, kv_heads, head_dim, v_head_dim } = shape;
    const { kv_lora_rank, qk_rope_head_dim } = shape;
    const kept = (n) => [[layers, "kv", n, [head_dim, v_head_dim], null, 1]];
    const latent = [kv_lora_rank, qk_rope_head_dim];
    const model = models[values.model];
    const [bits, block] = values.scale.split("/").map(Number);
    const scale = block ? { scaleBits: bits, block } : {};
    const plain = { bits: data.dtypes[values.dtype] ?? 16, ...scale };
    const { params } = values;
    const asIs = ({ name, stores, shipped }, params) => {
      const storage = values.dtype === "shipped" ? { shipped } : plain;
      return [name, stores, storage, params];
    };
    const rows = [
      ["mha", kept(heads), plain],
      ["gqa", kept(kv_heads), plain],
      ["mla", [[layers, "kv", 1, latent, null, 1]], plain],
      ["mqa", kept(1), plain],
    ];
    const head = model
      ? asIs(model, params)
      : [say("own"), kept(kv_heads), plain, params];
    const second = models[values.second];
    const beside = second ? [asIs(second, BigInt(second.params ?? 0))] : [];
    return [head, ...beside, ...rows.map(([k, ...rest]) => [say(k), ...rest, params])];
  };

  const element = (tag, text, name) => {
    const made = document.createElement(tag);
    if (text !== undefined) made.textContent = text;
    if (name) made.className = name;
    return made;
  };

  let last; // what the last result said
  const show = (values) => {
    const { tokens, batch, ranks, budget } = values;
    const bits = data.dtypes[values.weights] ?? 0;
    const rows = asked(values).map(([name, stores, storage, params]) => {
      const use = { tokens, batch, ranks, storage };
      const weights = kvMemory.weightBytes(params, bits, ranks);
      const total = kvMemory.bytes(data, stores, use);
      return {
        name,
        weights,
        unknown: bits && !params,
        later: fraction(kvMemory.later(data, stores, use)),
        total,
        over: weights + total > budget,
        longest: kvMemory.longest(data, stores, use, budget - weights),
        largest: kvMemory.largest(data, stores, use, budget - weights),
      };
    });
    const most = rows.reduce((a, r) => {
      const taken = r.weights + r.total;
      return taken > a ? taken : a;
    }, budget);
    const share = (n) => `${Number((n * 10000n) / most) / 100}%`;
    bars.style.setProperty("--budget", share(budget));
    bars.replaceChildren(
      ...rows.map((row) => {
        const item = element("div", undefined, "bar");
        const track = element("div", undefined, "track");
        const weights = element("div", undefined, "weights");
        const fill = element("div", undefined, "fill");
        fill.classList.toggle("over", row.over);
        weights.style.width = share(row.weights);
        fill.style.width = share(row.total);
        track.append(weights, fill);
        item.append(
          element("span", row.name, "name"),
          track,
          element("span", readable(row.total), "value"),
        );
        return item;
      }),
    );
    body.replaceChildren(
      ...rows.map((row) => {
        const line = document.createElement("tr");
        const head = element("th", row.name);
        head.scope = "row";
        const longest =
          row.longest === null ? words.endless : grouped(row.longest);
        line.append(
          head,
          element("td", row.later),
          element("td", grouped(row.total)),
          element("td", readable(row.total)),
          element("td", longest),
          element("td", grouped(row.largest)),
        );
        return line;
      }),
    );
    const tell = (row) => {
      const told = [row.name, readable(row.total), grouped(batch), grouped(tokens)];
      told.push(row.weights ? say("beside", readable(row.weights)) : "");
      told.push(readable(budget));
      const fits = row.over ? say("said_over", ...told) : say("said", ...told);
      return row.unknown ? fits + say("unknown") : fits;
    };
    last = rows.slice(0, models[values.second] ? 2 : 1).map(tell).join("\n");
    said.textContent = last;
  };

  // A field is empty or wrong: what was shown stays, and says that it is old.
  const keep = () => {
    said.textContent = last ? say("kept", last) : words.nothing;
    if (!last) [bars, body].forEach((part) => part.replaceChildren());
  };

  const tell = (found) => {
    problems.replaceChildren(...found.map((text) => element("li", text)));
    problems.hidden = !found.length;
  };

  let waiting;
  const stop = () => {
    clearTimeout(waiting);
    waiting = 0;
  };
  const update = () => {
    stop(); // browsers let an address change only so often
    const [values, found] = read();
    tell(found);
    if (found.length) return keep();
    show(values);
    waiting = setTimeout(toAddress, 200);
  };
  addEventListener("pagehide", () => {
    if (waiting) toAddress(); // of the last edit, for the way back
    stop();
  });

  form.addEventListener("input", ({ target }) => {
    if (target.name === "model") {
      const model = models[target.value];
      if (model) fillShape(model.shape);
      form.elements.params.value = standard("params");
      const { dtype } = form.elements;
      if (dtype.value === "shipped" && !model?.shipped) dtype.value = "bf16";
    } else if (SHAPE.includes(target.name)) {
      form.elements.model.value = OWN;
      if (form.elements.dtype.value === "shipped") {
        form.elements.dtype.value = "bf16";
      }
    }
    update();
  });
  const found = fromAddress();
  const [values, wrong] = read();
  tell([...found, ...wrong]);
  if (!wrong.length) show(values);
  else keep();
}
