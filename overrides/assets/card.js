// The card of a model: its rows are in the page, and a slider and three fields
// choose among them. The address says what was chosen.
for (const card of document.querySelectorAll(".card")) {
  const rows = JSON.parse(card.querySelector("script").textContent);
  const form = card.querySelector("form");
  const { tokens, weights, device, ranks } = form.elements;
  const fields = [...form.elements];
  const usual = Object.fromEntries(fields.map(({ name, value }) => [name, value]));
  const show = () => {
    const at = Number(tokens.value);
    const chosen = weights && `${weights.value} ${device.value} ${ranks.value}`;
    const fits = rows.fits[chosen] ?? []; // where there is no entry, none fits
    for (const place of card.querySelectorAll("output"))
      place.value = (place.dataset.of === "fits" ? fits[at] ?? 0 : rows[place.dataset.of][at]).toLocaleString("en");
    card.querySelector("[data-part=cache]").style.setProperty("--of", rows.part[at]);
    tokens.ariaValueText = rows.tokens[at];
  };
  const told = (name, value) => (name === "tokens" ? rows.tokens[value].replaceAll(",", "") : value);
  form.addEventListener("input", () => {
    show();
    const address = new URL(location);
    for (const { name, value } of fields)
      if (value === usual[name]) address.searchParams.delete(name);
      else address.searchParams.set(name, told(name, value));
    history.replaceState(null, "", address);
  });
  const { searchParams } = new URL(location);
  for (const field of fields) {
    const given = searchParams.get(field.name);
    if (given === null) continue;
    const values = field.options ?? rows.tokens.map((_, i) => ({ value: String(i) }));
    const known = [...values].find(({ value }) => told(field.name, value) === given);
    if (known) field.value = known.value;
  }
  show();
}
