// The course: a tick per step, which this browser keeps for both languages, and
// whether all pages fold their plain form behind the exercise (attnref.js).
"use strict";
{
  const form = document.querySelector("form.course");
  const table = document.querySelector("article table");
  const read = (key, other) => {
    try {
      return JSON.parse(localStorage.getItem(key)) ?? other;
    } catch {
      return other; // a browser that keeps nothing, or another's text
    }
  };
  const write = (key, value) => {
    try {
      localStorage.setItem(key, JSON.stringify(value));
    } catch {
      // The ticks stay until the page is left.
    }
  };
  // A step goes by the address of its first page: their numbers may change.
  const steps = [...table.tBodies[0].rows].map((row) => {
    const name = new URL(row.querySelector("a").href).pathname.replace(/(index)?(\.html)?$/, "").split("/").filter(Boolean).at(-1);
    const box = Object.assign(document.createElement("input"), { type: "checkbox", name });
    const label = document.createElement("label");
    label.append(box, ` ${row.cells[0].textContent}`);
    row.cells[0].replaceChildren(label);
    return box;
  });
  const saved = read("attnref.course", []);
  const done = new Set(Array.isArray(saved) ? saved : []);
  for (const box of steps) box.checked = done.has(box.name);
  form.elements.fold.checked = Boolean(read("attnref.fold", ""));
  const show = () => {
    const all = [steps.filter((box) => box.checked).length, steps.length];
    form.querySelector("output").value = form.dataset.done.replace(/\{\}/g, () => all.shift());
  };
  table.addEventListener("change", () => {
    write("attnref.course", steps.filter((box) => box.checked).map((box) => box.name));
    show();
  });
  form.addEventListener("change", ({ target }) => write("attnref.fold", target.checked ? form.dataset.fold : ""));
  form.addEventListener("submit", (event) => event.preventDefault());
  form.hidden = false;
  show();
}
