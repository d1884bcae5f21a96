"use strict";
// Without a font for mathematics a browser leaves indices on the line: then the style sheet moves them.
const base = document.querySelector("msub > :first-child");
if (base && base.nextElementSibling.getBoundingClientRect().bottom - base.getBoundingClientRect().bottom < 1) {
  document.documentElement.classList.add("no-math-font");
}

// The theme leaves its search dialog without a name.
document.querySelector(".md-search")?.setAttribute("aria-label", "Search");
// What is wider than the page scrolls by keys too: tables, equations, charts.
function reach() {
  for (const part of document.querySelectorAll(".md-content div")) {
    if (part.scrollWidth > part.clientWidth && getComputedStyle(part).overflowX !== "visible") part.tabIndex = 0;
  }
}
window.addEventListener("load", reach);
window.addEventListener("resize", reach);
