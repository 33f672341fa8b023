// Your model: what attnref says of the config.json that one enters. Record,
// sentences, numbers and file are computed by record.js, which is the Python of
// attnref and of the build, rewritten: reader.js runs it, beside the page. Both
// come once a reader touches the form, with the configs to choose from; and
// mixers.js, once a config has other layers than attention. To read the page,
// none of them is needed.
"use strict";
{
  const { src } = document.currentScript;
  const [card] = cards;
  const { made } = entry;
  const form = document.querySelector(".yours form"), sizes = card.form;
  const known = (box) => JSON.parse(box.parentElement.querySelector("script").textContent);
  const { words, kinds, refusals } = known(form);
  const memoryPart = document.querySelector(".yours.memory");
  const { words: said, devices, reused: firstReused } = known(memoryPart.firstElementChild);
  const language = document.documentElement.lang.slice(0, 2);
  const part = (name) => document.querySelector(`.yours.${name}`);
  const say = (box, text) => {
    const place = box.querySelector(".problems");
    place.hidden = !text;
    place.textContent = text ?? "";
  };
  // **bold** and `code`, as the sentences have them.
  const line = (text) =>
    text.split(/(\*\*.*?\*\*|`[^`]*`)/).map((piece) => {
      if (piece.startsWith("**")) return made("strong", piece.slice(2, -2));
      return piece.startsWith("`") ? made("code", piece.slice(1, -1)) : piece;
    });
  const list = (place, sentences) =>
    place.replaceChildren(...sentences.map((text) => made("li", ...line(text))));
  const table = (place, rows, named) =>
    place.querySelector("tbody").replaceChildren(
      ...rows.map((row) => made("tr", ...row.map((text, i) => made(i || !named ? "td" : "th", text)))),
    );

  const path = (d, name) => {
    const drawn = document.createElementNS("http://www.w3.org/2000/svg", "path");
    drawn.setAttribute("class", name);
    drawn.setAttribute("d", d);
    return drawn;
  };

  // The strip: a path per kind of layer, whose dashes the style makes.
  const strip = (place, letters) => {
    const svg = place.querySelector("svg");
    const runs = new Map();
    letters.forEach((letter, i) => {
      const [name, strokes] = kinds[letter];
      for (const [y, wide] of strokes) {
        const key = `${name} ${y} ${wide}`;
        runs.set(key, `${runs.get(key) ?? ""}M${i} ${y}h1`);
      }
    });
    svg.setAttribute("viewBox", `0 0 ${letters.length} 10`);
    svg.replaceChildren(
      ...[...runs].map(([key, d]) => {
        const [name, , wide] = key.split(" ");
        const drawn = path(d, name);
        drawn.setAttribute("stroke-width", wide);
        return drawn;
      }),
    );
  };

  // Python in colours: the classes are those of the build.
  const TOKENS =
    /(?<c1>#.*)|(?<sd>"""[^]*?""")|(?<s2>f?"(?:[^"\\\n]|\\.)*")|(?<mi>\b\d+\.?\d*(?:e-?\d+)?\b)|(?<k>\b(?:class|def|if|elif|else|for|in|is|not|and|or|return|raise|import|from|as|None|True|False)\b)|(?<nb>\b(?:super|len|zip|tuple|range|int|min|max|self)\b)|(?<o>[-+*/@=<>!~&|]+)/g;
  const coloured = (code) => {
    const out = [];
    let at = 0;
    for (const found of code.matchAll(TOKENS)) {
      out.push(code.slice(at, found.index));
      const kind = Object.keys(found.groups).find((k) => found.groups[k]);
      out.push(made(`span.${kind}`, found[0]));
      at = found.index + found[0].length;
    }
    return [...out, code.slice(at)];
  };

  // What is not as in Llama, with the damage; the lines of code come after what
  // else a reader waits for.
  const { losses, first, loaders, damage, lines, few } = known(part("differs").lastElementChild);
  const damaged = (name, moved) => {
    const bar = made("span.damage");
    bar.style.setProperty("--of", `${Math.min(moved, 1) * 100}%`);
    return made("p", ...line(damage.replace("{}", loaders[name]).replace("{}", moved)), " ", bar);
  };
  const diff = (rows) => {
    const code = rows.flatMap((row) => [made(row[0] === "+" ? "span.gi" : "span.gd", row), "\n"]);
    const block = made("div.language-diff highlight", made("pre", made("code", ...code)));
    if (rows.length <= few) return block;
    return made("details.file", made("summary", lines.replace("{}", rows.length)), block);
  };
  let items = []; // of what differs; the lines of code come after
  const differ = (family, found) => {
    const place = part("differs"), [nothing, from] = place.querySelectorAll(":scope > p");
    const id = form.elements.model.value || first[family];
    items = found.map(([name, said]) => {
      const moved = losses[id]?.[name];
      return made("li", made("p", ...line(said)), ...(moved ? [damaged(name, moved)] : []));
    });
    place.querySelector("ul").replaceChildren(...items);
    nothing.hidden = items.length > 0;
    from.hidden = !place.querySelector(".damage");
    from.querySelector("output").value = [...form.elements.model.options].find(({ value }) => value === id)?.text;
  };

  const bar = document.querySelector(".whole");
  const block = bar.nextElementSibling, code = block.querySelector("code");
  const { turns } = JSON.parse(part("rope").querySelector("script").textContent);
  const unit = bar.querySelector(".size").textContent.replace(/^\d+/, "");
  let config = form.elements.config.defaultValue; // the last that was read
  let reused = firstReused; // of its layers, as reader.js says it
  let counted = null; // whether its sizes are known, once that was asked

  // The reader, beside the page if that may be: a function that sends it a
  // request, of which only the newest of its kind is answered.
  const scripts = {}; // one that has come is not asked for again
  const fetched = (name) =>
    (scripts[name] ??= new Promise((resolve, reject) => {
      const script = made("script");
      script.src = src.replace("yours", name);
      script.async = false; // in this order
      script.onload = resolve;
      script.onerror = () => {
        delete scripts[name];
        reject();
      };
      document.head.append(script);
    }));
  const settings = {
    ...{ language, words, refusals, page: said },
    mib: Object.fromEntries(Object.entries(devices).map(([id, [mib]]) => [id, mib])),
    ranks: [...sizes.elements.ranks.options].map(({ value }) => Number(value)),
  };
  const started = async () => {
    if (location.protocol === "file:") {
      await Promise.all(["record", "mixers", "reader"].map(fetched));
      return reader(settings, received);
    }
    const worker = new Worker(src.replace("yours", "reader"));
    return new Promise((resolve, reject) => {
      worker.onerror = reject;
      worker.onmessage = ({ data }) => {
        if (data.kind !== "ready") received(data);
        else resolve((request) => worker.postMessage(request));
      };
      worker.postMessage(settings);
    });
  };
  let loading;
  const loaded = () =>
    (loading ??= Promise.all([started(), fetched("configs")]).then(
      ([send]) => send,
      () => {
        loading = null;
        say(form.parentElement, refusals.offline);
        return new Promise(() => {}); // who asked does nothing
      },
    ));
  const newest = { read: 0, size: 0, weigh: 0 };
  const ask = (kind, request) => {
    const n = ++newest[kind];
    loaded().then((send) => send({ kind, n, ...request }));
  };

  const address = () => {
    const { value } = form.elements.model;
    const page = new URL(location);
    page.search = "";
    if (value) page.searchParams.set("model", value);
    else {
      try {
        const text = JSON.stringify(JSON.parse(form.elements.config.value));
        if (text.length < 6000) page.searchParams.set("config", form.elements.config.value.replace(/\s*\n\s*/g, " "));
      } catch {
        // What is no JSON stays on the page.
      }
    }
    card.keep(page);
    history.replaceState(null, "", page);
  };

  const weigh = () => {
    if (counted === null) return ask("size", { text: config, reused }); // the page has one row of it
    if (!counted) return;
    const { device, weights, dtype, ranks } = sizes.elements;
    const [mib, bandwidth] = devices[device.value];
    const use = [mib, bandwidth, ranks.value, weights.value, dtype.value, card.tokens()];
    ask("weigh", { text: config, use });
  };
  const weighed = ({ memory }) => {
    const rows = memoryPart.querySelector(".scroll");
    list(memoryPart.querySelector("ul"), memory.said);
    table(rows, memory.rows, true);
    rows.hidden = !memory.rows.length;
  };
  const sized = ({ text, card: data }, title) => {
    [config, counted] = [text, Boolean(data)];
    card.box.hidden = !data;
    if (data) card.take(data, title);
    weigh();
  };

  const show = (found) => {
    const layers = part("strip"), rope = part("rope");
    strip(layers, found.letters);
    layers.querySelector("svg").ariaLabel = found.said;
    layers.querySelector("code").textContent = found.family;
    layers.querySelector("span").textContent = found.said;
    table(part("layers"), found.kinds);
    rope.hidden = !found.curves.length; // ALiBi, or no positions at all
    rope.querySelector(".lines").replaceChildren(
      ...found.curves.flatMap(([scaled, plain]) => [path(plain, "plain"), path(scaled, "")]),
    );
    list(rope.querySelector("ul"), found.curves.map((c) => turns.replace("{}", c[2]).replace("{}", c[3])));
    differ(found.family, found.differs);
    code.replaceChildren(...coloured(found.file));
    const link = bar.querySelector("a");
    link.href = `data:text/x-python;charset=utf-8,${encodeURIComponent(found.file)}`;
    link.download = link.textContent = "attention.py";
    bar.querySelector(".size").textContent = found.file.split("\n").length - 1 + unit;
  };

  // JSON without the spaces between its parts, or null.
  const tight = (text) => {
    try {
      JSON.parse(text);
    } catch {
      return null;
    }
    return text.replace(/("(?:[^"\\]|\\.)*")|\s+/g, "$1");
  };
  let shown = tight(config);
  const read = () => {
    const text = form.elements.config.value, now = tight(text);
    if (!now || now !== shown) return ask("read", { text });
    newest.read++; // what is being read is no longer asked for
    address();
  };
  // Of a config that is refused, the page shows what is known, and nothing of
  // the one before it.
  const coded = [part("layers"), part("rope"), part("differs"), bar];
  for (const box of [...coded, memoryPart]) box.dataset.blank = refusals.blank;
  const answered = (found) => {
    const { text, answer, wrong, uncounted } = found;
    if (answer) show(answer);
    else part("rope").hidden = false;
    reused = answer?.reused ?? [];
    shown = wrong ? null : tight(text);
    say(form.parentElement, wrong);
    form.elements.config.ariaInvalid = wrong ? "true" : null;
    document.querySelector(".partly").hidden = !wrong || Boolean(uncounted);
    part("strip").hidden = block.hidden = Boolean(wrong);
    for (const box of coded) box.classList.toggle("blank", wrong);
    memoryPart.classList.toggle("blank", uncounted);
    say(memoryPart, wrong ? "" : uncounted);
    newest.size++; // of what is no longer shown
    sized(found, form.elements.model.selectedOptions[0].text);
    address();
  };
  const takes = {
    read: (found) => (found.lines ? found.lines.length && items[found.i].append(diff(found.lines)) : answered(found)),
    size: sized,
    weigh: weighed,
  };
  const received = ({ kind, n, ...found }) => n === newest[kind] && takes[kind](found);

  // Once the reader pauses, and what was typed or chosen has been drawn.
  let waiting;
  const later = (pause) => {
    clearTimeout(waiting);
    waiting = setTimeout(read, pause);
  };
  addEventListener("pagehide", address); // of the last edit, for the way back

  const pretty = (text) => text.replace(/([{,])(?="\w+":)/g, "$1\n  ").replace(/(?<="\w+"):/g, ": ").replace(/\}$/, "\n}");
  const take = async (file) => {
    if (!file) return;
    form.elements.config.value = await file.text();
    form.elements.model.value = "";
    later(20);
  };
  form.addEventListener("submit", (event) => event.preventDefault());
  const choose = () => {
    const { model, config } = form.elements;
    if (model.value) config.value = pretty(configs[model.value]);
    later(20);
  };
  form.elements.model.addEventListener("change", () => loaded().then(choose));
  form.elements.config.addEventListener("input", () => {
    form.elements.model.value = "";
    later(250);
  });
  form.elements.file.addEventListener("change", ({ target }) => take(target.files[0]));
  // A file is dropped anywhere; a text, where fields take it by themselves.
  for (const kind of ["dragover", "drop"])
    addEventListener(kind, (event) => {
      if (!event.dataTransfer.types.includes("Files")) return;
      event.preventDefault();
      take(event.dataTransfer.files[0]); // there is none before the drop
    });
  sizes.addEventListener("input", weigh);
  for (const kind of ["pointerover", "focusin"])
    for (const box of [form, sizes]) box.addEventListener(kind, loaded, { once: true });

  // The state that an address carries.
  const given = new URL(location).searchParams;
  const { model: chosen, config: field } = form.elements;
  if (given.size) shown = null;
  if (given.has("config")) {
    field.value = given.get("config");
    chosen.value = "";
  } else if ([...chosen.options].some(({ value }) => value && value === given.get("model"))) {
    chosen.value = given.get("model");
  }
  if (given.size) loaded().then(choose);
}
