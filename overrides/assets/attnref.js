/* What the theme leaves undone, or does at too great a cost. */

// A box that scrolls can be reached with the keyboard while it scrolls.
// (All sizes are read before anything is written: one layout, not one a box.)
const watch = new ResizeObserver((entries) => {
  const boxes = entries.map(({ target }) => target);
  const scrolls = boxes.map((box) => box.scrollWidth > box.clientWidth);
  boxes.forEach((box, i) => {
    if (scrolls[i]) box.tabIndex = 0;
    else if (box.hasAttribute("tabindex")) box.removeAttribute("tabindex");
  });
});
document.querySelectorAll(".scroll").forEach((box) => watch.observe(box));

// One listener for all copy buttons; what is copied is the code itself.
document.addEventListener("click", async ({ target }) => {
  if (!target.matches("button.copy")) return;
  const code = target.parentElement.querySelector("code");
  try {
    await navigator.clipboard.writeText(code.textContent);
  } catch {
    // No clipboard (a plain http address): the reader copies the selection.
    getSelection().selectAllChildren(code);
    return;
  }
  const { ariaLabel, dataset } = target;
  if (ariaLabel === dataset.done) return;
  target.ariaLabel = dataset.done;
  setTimeout(() => (target.ariaLabel = ariaLabel), 2000);
});
