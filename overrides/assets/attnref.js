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

// An answer of "Find your bug" that one opens gives the page its address, which
// opens it again: the browser unfolds what is around, and the theme the answer.
document.addEventListener("click", ({ target }) => {
  const answer = target.closest(".answer > summary")?.querySelector("[id]");
  if (answer && !answer.closest("details").open)
    history.replaceState(null, "", `#${answer.id}`);
});

// So does a choice in a picture, by a key too: the theme writes the address of
// a tab only where its words are clicked.
document.addEventListener("change", ({ target }) => {
  if (target.matches(".explorer > .tabbed-set > input"))
    history.replaceState(null, "", `#${target.id}`);
});

// A list is narrowed to the entries with all words that one types, be it in what
// else they or the headings above them are called. Below headings without an
// entry nothing is shown. (The theme takes ?q= for itself.)
for (const field of document.querySelectorAll(".filter input")) {
  const called = JSON.parse(document.querySelector(".filter script").textContent);
  const parts = [...document.querySelectorAll(".filter ~ :is(h2, h3, h4, h5, p, ul)")];
  const texts = new Map(); // an entry, and the words by which it is found
  let above = [];
  for (const part of parts) {
    const said = [part.textContent, called[part.id]].join(" ");
    const level = Number(part.tagName[1]); // of a heading
    if (level) above = [...above.slice(0, level - 2), said];
    for (const entry of part.querySelectorAll(":scope > li")) {
      const { hash } = entry.querySelector("a");
      const own = [entry.textContent, hash, called[hash.slice(1)]];
      texts.set(entry, [...above, ...own].join(" ").toLowerCase());
    }
  }
  const entries = [...texts.keys()];
  parts.reverse();
  const narrow = () => {
    const words = field.value.toLowerCase().split(/\s+/);
    for (const [entry, text] of texts)
      entry.hidden = !words.every((word) => text.includes(word));
    const shown = entries.filter((entry) => !entry.hidden).length;
    const below = { H2: 0, H3: 0, H4: 0, H5: 0 }; // entries since the last of them
    for (const part of parts) {
      const own = part.querySelectorAll(":scope > li:not([hidden])").length;
      for (const level in below) below[level] += own;
      part.hidden = !(below[part.tagName] ?? (own || (part.matches("p") && !field.value)));
      for (const level in below) if (level >= part.tagName) below[level] = 0;
    }
    field.closest("p").querySelector("output").value = `${shown} / ${entries.length}`;
    const address = new URL(location);
    if (field.value) address.searchParams.set("filter", field.value);
    else address.searchParams.delete("filter");
    history.replaceState(null, "", address);
  };
  field.closest("p").hidden = false;
  field.value = new URL(location).searchParams.get("filter") ?? "";
  field.addEventListener("input", narrow);
  narrow();
}

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
