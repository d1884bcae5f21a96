"use strict";
// The theme leaves its search dialog without a name.
document.querySelector(".md-search")?.setAttribute("aria-label", "Search");
// What is wider than the page scrolls by keys too: tables, equations, charts, code. Blocks of code are landmarks of the
// theme's, which have no names.
function reach() {
  for (const part of document.querySelectorAll(".md-content :is(div, code)")) {
    const longer = part.scrollWidth > part.clientWidth || part.scrollHeight > part.clientHeight;
    if (longer && getComputedStyle(part).overflowX !== "visible") part.tabIndex = 0;
  }
  document.querySelectorAll(".md-code__nav").forEach((part, number) => part.setAttribute("aria-label", `Code ${number + 1}`));
}
for (const when of ["load", "resize"]) window.addEventListener(when, () => { reach(); setTimeout(reach, 500); });
