/* What the theme leaves undone for keyboards and screen readers. */

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

// The theme wraps each copy button in a navigation landmark of its own.
new MutationObserver(() => {
  for (const nav of document.querySelectorAll("nav.md-code__nav:not([role])"))
    nav.setAttribute("role", "presentation");
}).observe(document.body, { childList: true, subtree: true });
