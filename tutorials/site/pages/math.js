"use strict";
// Without a font for mathematics a browser leaves indices on the line: then the style sheet moves them.
const base = document.querySelector("msub > :first-child");
if (base && base.nextElementSibling.getBoundingClientRect().bottom - base.getBoundingClientRect().bottom < 1) {
  document.documentElement.classList.add("no-math-font");
}

// The theme leaves its search dialog without a name.
document.querySelector(".md-search")?.setAttribute("aria-label", "Search");
// Tables that are wider than the page scroll by keys too.
for (const wide of document.querySelectorAll(".md-typeset__scrollwrap")) wide.tabIndex = 0;
