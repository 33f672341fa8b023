// The sections and names that stood on this page, now on those that it links to.
const asked = location.hash;
const links = document.querySelectorAll("article a:not(.headerlink)");
const link = [...links].find(({ hash }) => `${asked}.`.startsWith(`${hash || "-"}.`));
if (link) location.replace(link.href.replace(link.hash, asked));
