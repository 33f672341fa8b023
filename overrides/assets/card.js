// The card of a model: what it shows is in the page, and a slider and four
// fields choose among it. The address says what was chosen; `take` shows
// another model.
"use strict";
const cards = [...document.querySelectorAll(".card")].map((box) => {
  const form = box.querySelector("form");
  const { tokens, ranks, device, weights, dtype } = form.elements;
  const fields = [ranks, device, weights, dtype];
  let data = JSON.parse(box.querySelector("script").textContent);
  let usual = {}; // what the card chooses by itself
  const given = new Map(new URL(location).searchParams); // and its reader

  const said = ({ name, value }) => (name === "tokens" ? String(data.tokens[value]) : value);
  const choose = () => {
    const at = data.tokens.map(String).indexOf(given.get("tokens"));
    if (at >= 0) tokens.value = at;
    for (const field of fields)
      if ([...field.options].some(({ value }) => value === given.get(field.name)))
        field.value = given.get(field.name);
  };
  const show = () => {
    const at = Number(tokens.value);
    const rows = { ...data.factors, ...data.by[dtype.value], tokens: data.tokens, context: data.context };
    const way = fields.map(({ value }) => value).join(" ");
    if (data.fits) rows.fits = data.fits[way] ?? data.tokens.map(() => 0);
    for (const part of box.querySelectorAll("[data-part]")) part.hidden = !rows[part.dataset.part];
    for (const { parentElement } of [ranks, device, weights]) parentElement.hidden = !data.fits;
    for (const place of box.querySelectorAll("output")) {
      const row = rows[place.dataset.of] ?? "";
      place.value = (Array.isArray(row) ? row[at] : row).toLocaleString("en");
    }
    box.querySelector("[data-part=cache] i").style.setProperty("--of", rows.part?.[at] ?? 0);
    tokens.ariaValueText = data.tokens[at].toLocaleString("en");
  };
  const take = (other, title) => {
    data = other;
    if (title) box.querySelector(".sizes span").textContent = title;
    tokens.max = data.tokens.length - 1;
    tokens.parentElement.hidden = data.tokens.length < 2; // nothing to choose
    tokens.value = data.at;
    data.way.split(" ").forEach((value, i) => (fields[i].value = value));
    usual = Object.fromEntries([tokens, ...fields].map((field) => [field.name, said(field)]));
    choose();
    show();
  };
  const keep = (page) => {
    for (const field of [tokens, ...fields])
      if (said(field) === usual[field.name]) page.searchParams.delete(field.name);
      else page.searchParams.set(field.name, said(field));
  };

  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", ({ target }) => {
    given.set(target.name, said(target));
    show();
    const page = new URL(location);
    keep(page);
    history.replaceState(null, "", page);
  });
  take(data);
  return { box, form, take, keep, tokens: () => data.tokens[tokens.value] };
});
