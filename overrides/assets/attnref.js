/* What the theme leaves undone for keyboards and screen readers. */

// A box that scrolls can be reached with the keyboard while it scrolls.
const watch = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    if (target.scrollWidth > target.clientWidth) target.tabIndex = 0;
    else target.removeAttribute("tabindex");
  }
});
document.querySelectorAll(".scroll").forEach((box) => watch.observe(box));

// The theme wraps each copy button in a navigation landmark of its own.
new MutationObserver(() => {
  for (const nav of document.querySelectorAll("nav.md-code__nav:not([role])"))
    nav.setAttribute("role", "presentation");
}).observe(document.body, { childList: true, subtree: true });
