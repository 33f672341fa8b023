// The table of models: its rows are in the page, and are sorted and filtered.
"use strict";
for (const box of document.querySelectorAll("figure.models")) {
  const body = box.querySelector("tbody");
  const rows = [...body.rows];
  const selects = [...box.querySelectorAll("select")];
  const found = box.querySelector("output");
  const heads = [...box.querySelectorAll("thead th")];

  // A number stands beside its text, unless the text is that number, or bytes.
  const keyOf = ({ dataset, textContent }) => {
    if ("value" in dataset) return Number(dataset.value);
    if (textContent === "–") return 0;
    const found = /^([\d,.]+)(?: ?([KMGT]?)i?B)?$/.exec(textContent);
    if (!found) return textContent;
    const unit = 1024 ** " KMGT".indexOf(found[2] || " ");
    return Number(found[1].replaceAll(",", "")) * unit;
  };

  const filter = () => {
    for (const row of rows) {
      row.hidden = !selects.every(
        ({ name, value }) =>
          !value || row.dataset[name].split(" ").includes(value),
      );
    }
    const shown = rows.filter((row) => !row.hidden).length;
    found.textContent = found.dataset.text
      .replace("{}", shown)
      .replace("{}", rows.length);
  };

  const sort = (column, down) => {
    const key = (row) => keyOf(row.cells[column]);
    const before = (a, b) =>
      typeof a === "number" ? a - b : a.localeCompare(b, "en", { numeric: true });
    const sorted = [...rows].sort((a, b) => before(key(a), key(b)));
    body.replaceChildren(...(down ? sorted.reverse() : sorted));
    heads.forEach((head, i) => {
      if (i !== column) head.removeAttribute("aria-sort");
      else head.ariaSort = down ? "descending" : "ascending";
    });
  };

  for (const select of selects) select.addEventListener("change", filter);
  heads.forEach((head, column) => {
    head.querySelector("button")?.addEventListener("click", () => {
      const numbers = typeof keyOf(rows[0].cells[column]) === "number";
      const up = head.ariaSort === "ascending";
      const down = head.ariaSort ? up : numbers;
      sort(column, down);
    });
  });
}
