// What the pages with a form share. Before it stands a script that is made of
// Python, as `python`: all numbers are read and computed there.
"use strict";
const entry = (() => {
  const say = (text, ...values) =>
    values.reduce((said, value) => said.replace("{}", () => value), text);

  // An element: made("div.bar", text, other).
  const made = (kind, ...inside) => {
    const [tag, name] = kind.split(".");
    const node = document.createElement(tag);
    node.append(...inside);
    if (name) node.className = name;
    return node;
  };

  const grouped = (n) => n.toLocaleString("en");

  // A whole number from 1 to `most`, or 0n.
  const count = (text, most) => {
    const n = python.count_of(text);
    return n <= most ? n : 0n;
  };

  const report = (place, sentences) => {
    place.replaceChildren(...sentences.map((text) => made("li", text)));
    place.hidden = !sentences.length;
  };

  // The address holds the fields of which `usual` gives another value, or null
  // if they do not belong there. It is written a while after the last change,
  // as browsers let it change only so often; and before the page is left.
  const address = (fields, usual) => {
    let waiting = 0;
    const write = () => {
      waiting = 0;
      const query = new URLSearchParams();
      for (const { name, value } of fields) {
        const other = usual(name);
        if (other !== null && value.trim() !== other) query.set(name, value.trim());
      }
      const text = String(query).replaceAll("%2F", "/").replaceAll("%2C", ",");
      try {
        history.replaceState(null, "", location.pathname + (text && `?${text}`) + location.hash);
      } catch {
        // The address may not be changed here; the result is shown anyway.
      }
    };
    addEventListener("pagehide", () => {
      if (waiting) write();
    });
    return (valid) => {
      clearTimeout(waiting);
      waiting = valid ? setTimeout(write, 200) : 0;
    };
  };

  return { say, made, grouped, count, report, address };
})();
