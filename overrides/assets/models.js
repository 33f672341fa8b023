// The table of models: its rows are in the page; they are searched, filtered
// and sorted. The address says how.
"use strict";
for (const box of document.querySelectorAll("figure.models")) {
  const form = box.querySelector("form");
  const { find, with: part, maker, view, sort } = form.elements;
  const fields = [find, part, maker, view, sort];
  const body = box.querySelector("tbody");
  const rows = [...body.rows];
  const found = box.querySelector("output");
  const reset = box.querySelector(".reset");
  const heads = [...box.querySelectorAll("thead th")];
  // The columns of other views wait outside the page, which is styled sooner.
  const cells = new Map([heads[0].parentElement, ...rows].map((row) => [row, [...row.cells]]));
  const at = heads.findIndex(({ dataset }) => dataset.view); // before it, those of all
  let viewed = "";
  let order = ""; // the name of a column, after a minus if it goes down

  // A number stands beside its text, unless the text is that number, or bytes.
  const keyOf = ({ dataset, textContent }) => {
    if ("value" in dataset) return Number(dataset.value);
    if (textContent === "–") return 0;
    const found = /^([\d,.]+)(?: ?([KMGT]?)i?B)?$/.exec(textContent);
    if (!found) return textContent;
    const unit = 1024 ** " KMGT".indexOf(found[2] || " ");
    return Number(found[1].replaceAll(",", "")) * unit;
  };
  const typeAt = heads.findIndex(({ dataset }) => dataset.name === "type");
  const called = new Map(
    rows.map((row) => {
      const own = [row.cells[0], row.cells[typeAt]].map((cell) => cell.textContent);
      return [row, [...own, row.dataset.maker].join(" ").toLowerCase()];
    }),
  );

  const filter = () => {
    const words = find.value.toLowerCase().split(/\s+/);
    for (const row of rows) {
      const { dataset } = row;
      const fits = words.every((word) => called.get(row).includes(word));
      const has = !part.value || dataset.with.split(" ").includes(part.value);
      row.hidden = !(fits && has && (!maker.value || dataset.maker === maker.value));
    }
    const shown = rows.filter((row) => !row.hidden).length;
    found.textContent = found.dataset.text.replace("{}", shown).replace("{}", rows.length);
    reset.hidden = shown === rows.length;
    const now = view.value || "attention";
    if (now === viewed) return;
    viewed = box.dataset.view = now;
    const own = heads.map(({ dataset }, i) => i < at || dataset.view === now);
    for (const [row, all] of cells) row.replaceChildren(...all.filter((_, i) => own[i]));
  };

  const arrange = () => {
    const down = order.startsWith("-");
    const column = heads.findIndex(({ dataset }) => dataset.name === order.replace("-", ""));
    let sorted = rows;
    if (column >= 0) {
      const keys = new Map(rows.map((row) => [row, keyOf(cells.get(row)[column])]));
      const before = (a, b) =>
        typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(b, "en", { numeric: true });
      sorted = [...rows].sort((a, b) => before(keys.get(a), keys.get(b)));
      if (down) sorted.reverse();
    }
    body.replaceChildren(...sorted);
    box.querySelector(".scroll").scrollTop = 0;
    sort.value = order;
    heads.forEach((head, i) => {
      if (i !== column) head.removeAttribute("aria-sort");
      else head.ariaSort = down ? "descending" : "ascending";
    });
  };

  const remember = () => {
    const page = new URL(location);
    for (const { name, value } of fields) {
      const given = name === "sort" ? order : value;
      if (given) page.searchParams.set(name, given);
      else page.searchParams.delete(name);
    }
    history.replaceState(null, "", page);
  };
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", ({ target }) => {
    if (target === sort) {
      order = sort.value;
      arrange();
    } else filter();
    remember();
  });
  reset.addEventListener("click", () => {
    for (const field of [find, part, maker]) field.value = "";
    filter();
    remember();
  });
  heads.forEach((head, column) => {
    head.querySelector("button")?.addEventListener("click", () => {
      const { name } = head.dataset;
      const numbers = rows.every((row) => typeof keyOf(cells.get(row)[column]) === "number");
      const down = head.ariaSort ? head.ariaSort === "ascending" : numbers;
      order = (down ? "-" : "") + name;
      arrange();
      remember();
    });
  });

  const { searchParams } = new URL(location);
  for (const field of fields) {
    const given = searchParams.get(field.name);
    if (given && field !== sort) field.value = given;
    if (field.selectedIndex === -1) field.selectedIndex = 0; // no such choice
  }
  order = searchParams.get("sort") ?? "";
  if (order) arrange();
  filter();
}
