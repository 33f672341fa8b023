/* What the theme leaves undone, or does at too great a cost. */

// A box that scrolls can be reached with the keyboard while it scrolls. (All
// sizes are read before anything is written: one layout, not one a box. A frame
// later, since the theme takes this from code where no pointer hovers.)
const watch = new ResizeObserver((entries) =>
  requestAnimationFrame(() => {
    const boxes = entries.map(({ target }) => target);
    const scrolls = boxes.map((box) => box.scrollWidth > box.clientWidth);
    boxes.forEach((box, i) => {
      if (scrolls[i]) box.tabIndex = 0;
      else if (box.hasAttribute("tabindex")) box.removeAttribute("tabindex");
    });
  }),
);
document.querySelectorAll(".scroll, pre > code").forEach((box) => watch.observe(box));

// The theme opens the drawer by a label, for a pointer. Here it is a button, which
// a key reaches, and so are the labels that lead to another list of an open
// drawer. It is closed by Escape, and once the focus is elsewhere.
{
  const [drawer, label, side] = ["#__drawer", ".md-header__button[for]", ".md-sidebar--primary"].map(
    (which) => document.querySelector(which),
  );
  const button = document.createElement("button");
  button.type = "button";
  button.className = `${label.className} drawer`;
  button.ariaLabel = side.querySelector("nav").ariaLabel;
  button.ariaExpanded = "false";
  button.append(...label.childNodes);
  label.replaceWith(button);
  button.addEventListener("click", () => drawer.click());
  const labels = side.querySelectorAll(":is(.md-nav__title, .md-nav__link)[for]:not([for=__drawer])");
  const enter = () =>
    [...side.querySelectorAll("a, label[tabindex]")]
      .find((link) => link.checkVisibility({ visibilityProperty: true }))
      .focus({ preventScroll: true });
  drawer.addEventListener("change", () => {
    button.ariaExpanded = String(drawer.checked);
    for (const label of labels) label.tabIndex = 0;
    if (drawer.checked) enter();
  });
  side.addEventListener("change", ({ target: { checked, id } }) => {
    if (checked) enter();
    else side.querySelector(`.md-nav__link[for=${id}]`).focus();
  });
  addEventListener("keydown", (event) => {
    const { key, target } = event;
    if (key === " " && target.matches("label")) {
      event.preventDefault();
      target.click();
    } else if (key === "Escape" && drawer.checked) {
      drawer.click();
      button.focus();
    }
  });
  side.addEventListener("focusout", ({ relatedTarget }) => {
    if (drawer.checked && relatedTarget && !side.contains(relatedTarget)) drawer.click();
  });
}

// The dialog of the search has no name for a screen reader, but its field has.
// A reader who turns to it will need its entries, which assets/search.js loads.
{
  const dialog = document.querySelector("[data-md-component=search]");
  const field = dialog.querySelector("input");
  const { textContent } = document.querySelector("#__config");
  const worker = new URL(JSON.parse(textContent).search, location);
  const link = document.createElement("link");
  link.rel = "prefetch";
  dialog.ariaLabel = field.ariaLabel;
  field.addEventListener(
    "focus",
    () => {
      link.href = new URL("../search/entries.js", worker);
      document.head.append(link);
    },
    { once: true },
  );
  // The theme waits for a key that comes up. None does after a paste from a
  // menu, a drag or dictation.
  field.addEventListener("input", () => field.dispatchEvent(new Event("keyup")));
}

// The other language shows the same section and state: ids and queries are the
// same. Without this, the link leads to the beginning of the page.
{
  const [link] = document.querySelectorAll("a.language");
  const follow = () => {
    link.search = location.search;
    link.hash = location.hash;
  };
  for (const way of ["click", "auxclick", "contextmenu"])
    link.addEventListener(way, follow);
}

// What one would run: an example without its prompts and answers, and of the
// lines of a mistake the right ones.
const textOf = (code) => {
  const { classList } = code.closest(".highlight");
  const lines = code.textContent.split("\n");
  if (classList.contains("language-pycon"))
    return lines
      .filter((line) => /^(>>>|\.\.\.)( |$)/.test(line))
      .map((line) => line.slice(4))
      .join("\n");
  if (classList.contains("language-diff"))
    return lines
      .filter((line) => line[0] !== "-")
      .map((line) => line.slice(1))
      .join("\n");
  return code.textContent;
};

// One listener for all copy buttons; what is copied is the code itself, or the
// whole file that stands beside the button.
const copied = {
  async copy(button) {
    const code = button.parentElement.querySelector("code");
    try {
      await navigator.clipboard.writeText(textOf(code));
    } catch {
      // No clipboard (a plain http address): the reader copies the selection.
      getSelection().selectAllChildren(code);
      return false;
    }
    return true;
  },
  async take(button) {
    const link = button.parentElement.querySelector("a.download");
    try {
      // A promise, since Safari lets only the click itself write.
      const text = fetch(link.href).then(async (answer) => {
        if (!answer.ok) throw new Error(answer.status);
        return new Blob([await answer.text()], { type: "text/plain" });
      });
      await navigator.clipboard.write([new ClipboardItem({ "text/plain": text })]);
    } catch {
      link.click(); // the reader gets the file itself
      return false;
    }
    return true;
  },
  // The address of a page that keeps its state there, or of a part of it.
  async link({ dataset: { to } }) {
    const own = to && location.protocol !== "file:";
    try {
      await navigator.clipboard.writeText(own ? new URL(to, location).href : location.href);
    } catch {
      return false; // it stands in the bar of the browser
    }
    return true;
  },
};
document.addEventListener("click", async ({ target }) => {
  const way = Object.keys(copied).find((name) => target.matches(`button.${name}`));
  if (!way) return;
  const { ariaLabel, dataset } = target;
  if (!(await copied[way](target)) || ariaLabel === dataset.done) return;
  target.ariaLabel = dataset.done;
  setTimeout(() => (target.ariaLabel = ariaLabel), 2000);
});

// A fold that a reader opens gives the page its address, which opens it again: the
// browser unfolds what is around, and the theme an answer.
document.addEventListener("click", ({ target }) => {
  const fold = target.closest("summary")?.parentElement;
  const inside = fold?.querySelector("[id]");
  if (inside && !fold.open) history.replaceState(null, "", `#${inside.id}`);
});

// A result of the search opens the fold that it found, where what stands open in
// its section does not hold the words; the theme then marks them.
const sought = new URL(location).searchParams.get("h")?.toLowerCase().split(" ");
if (sought) {
  const holds = (text) => sought.every((word) => text.toLowerCase().includes(word));
  const parts = [];
  let part = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  while ((part = part?.nextElementSibling) && !part.matches("h1, h2, h3, h4")) parts.push(part);
  const found = parts.find((each) => each.matches("details") && holds(each.textContent));
  if (found && !holds(parts.map((each) => each.innerText).join(" ")))
    for (const fold of [found, ...found.querySelectorAll("details")])
      fold.open = holds(fold.textContent);
}

// So does a choice in a picture, by a key too: the theme writes the address of
// a tab only where its words are clicked.
document.addEventListener("change", ({ target }) => {
  if (target.matches(".explorer > .tabbed-set > input"))
    history.replaceState(null, "", `#${target.id}`);
});

// Where a pointer rests on a shape such as (B, H, T, D), its title says what the
// letters mean, in the words of the card at the foot of the page.
document.addEventListener("pointerover", ({ target }) => {
  const code = ".highlight .c1, .highlight .sd, code:not(.highlight *)";
  const shapes = target.matches(code) && target.textContent.match(/[([].*?[)\]]/g);
  if (!shapes || target.title) return;
  target.title = [...document.querySelectorAll(".legend div:has(dt code)")]
    .map((row) => [row.firstChild.textContent, row.lastChild.textContent])
    .filter(([letter]) => RegExp(`\\b${letter}\\b`).test(shapes))
    .map((row) => row.join(": "))
    .join("\n");
});

// A box of a data flow and the lines of code that compute it light up together;
// a click on the box leads to them, and leaves them lit.
for (const flow of document.querySelectorAll("svg.flow")) {
  const file = `attnref/plain/${flow.dataset.file}.py`;
  const code = [...document.querySelectorAll(".highlight:has(.filename)")]
    .find((block) => block.firstElementChild.textContent.trim() === file)
    ?.querySelector("code");
  if (!code) continue;
  flow.classList.add("linked");
  let kept = [];
  const linesOf = ({ dataset }) => dataset.lines.split(" ").map(Number);
  const below = ({ target }) => target.closest("[data-lines]");
  const topOf = (line) => {
    const { lineHeight, paddingTop } = getComputedStyle(code);
    return parseFloat(paddingTop) + (line - 1) * parseFloat(lineHeight);
  };
  const light = (lines) => {
    for (const box of flow.querySelectorAll("[data-lines]"))
      box.classList.toggle("lit", linesOf(box).some((n) => lines.includes(n)));
    const color = "linear-gradient(var(--md-typeset-mark-color) 0 0)";
    code.style.backgroundImage = lines.map(() => color).join();
    code.style.backgroundPosition = lines.map((n) => `0 ${topOf(n)}px`).join();
  };
  flow.addEventListener("pointerover", (event) => {
    const box = below(event);
    light(box ? linesOf(box) : kept);
  });
  flow.addEventListener("click", (event) => {
    const box = below(event);
    kept = box ? linesOf(box) : [];
    light(kept);
    if (box) scrollBy(0, code.getBoundingClientRect().top + topOf(kept[0]) - innerHeight / 3);
  });
  code.addEventListener("pointermove", ({ clientY }) => {
    const down = clientY - code.getBoundingClientRect().top - topOf(1);
    light([1 + Math.floor(down / (topOf(2) - topOf(1)))]);
  });
  for (const part of [flow, code]) part.addEventListener("pointerleave", () => light(kept));
}

// A reader of the course who wants it (learn/course) finds the plain form folded,
// behind the exercise that asks for it.
{
  let title = "";
  try {
    title = JSON.parse(localStorage.getItem("attnref.fold")) || "";
  } catch {}
  const [plain, exercise] = ["plain", "exercise"].map((id) => document.querySelector(`h2#${id}`));
  if (title && plain && exercise) {
    const section = [plain];
    while (section.at(-1).nextElementSibling?.matches(":not(h2)")) section.push(section.at(-1).nextElementSibling);
    let last = exercise;
    while (last.nextElementSibling?.matches(":not(h2)")) last = last.nextElementSibling;
    const fold = document.createElement("details");
    fold.className = "note";
    fold.append(Object.assign(document.createElement("summary"), { textContent: title }), ...section);
    if (location.hash === "#plain") fold.open = true;
    last.after(fold);
  }
}
