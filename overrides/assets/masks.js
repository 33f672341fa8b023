// A mask of one's own: its grid and the lines of attnref/plain/masks.py that
// make it. The address keeps what was entered.
"use strict";
{
  const form = document.querySelector("form.own-mask");
  const fields = ["T", "S", "left", "right", "window"].map((name) => form.elements[name]);
  const usual = fields.map(({ value }) => value);

  // Each number within what the ones before it allow.
  const entered = () => {
    const most = { T: () => 16, S: () => 16, left: ({ S }) => S, right: ({ S, left }) => S - left, window: () => 16 };
    const least = { T: () => 1, S: ({ T }) => T, left: () => 0, right: () => 0, window: () => 0 };
    const given = {};
    for (const { name, value } of fields)
      given[name] = Math.max(least[name](given), Math.min(most[name](given), Math.trunc(value) || 0));
    return given;
  };
  const mask = ({ T, S, left, right, window }) =>
    Array.from({ length: T }, (_, i) =>
      Array.from({ length: S }, (_, j) => {
        const query = S - T + i; // the queries are the last tokens
        return j <= query && (!window || j > query - window) && j >= left && j < S - right;
      }),
    );
  const code = ({ T, S, left, right, window }) => {
    const first = window ? `window_mask(${T}, ${S}, ${window})` : `causal_mask(${T}, ${S})`;
    if (!left && !right) return `mask = ${first}`;
    const parts = [[left, "False"], [S - left - right, "True"], [right, "False"]];
    const valid = parts.filter(([n]) => n).map(([n, truth]) => `[${truth}] * ${n}`).join(" + ");
    return `valid = torch.tensor([${valid}])\nmask = ${first} & padding_mask(valid)`;
  };
  const show = () => {
    const given = entered(), rows = mask(given);
    const table = form.querySelector("table");
    table.replaceChildren(
      ...rows.map((cells) => {
        const row = document.createElement("tr");
        for (const seen of cells) Object.assign(row.insertCell(), { textContent: Number(seen), className: seen ? "seen" : "" });
        return row;
      }),
    );
    form.elements.lines.value = code(given);
    const blind = rows.filter((cells) => !cells.includes(true)).length;
    form.elements.blind.value = blind ? form.dataset.blind.replace("{}", blind) : "";
    const address = new URL(location);
    fields.forEach(({ name, value }, i) => {
      if (value === usual[i]) address.searchParams.delete(name);
      else address.searchParams.set(name, value);
    });
    history.replaceState(null, "", address);
  };
  const { searchParams } = new URL(location);
  for (const field of fields) field.value = searchParams.get(field.name) ?? field.value;
  form.hidden = false;
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", show);
  show();
}
