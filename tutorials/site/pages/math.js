"use strict";
// Without a font for mathematics a browser leaves indices on the line: then the style sheet moves them.
const base = document.querySelector("msub > :first-child");
if (base && base.nextElementSibling.getBoundingClientRect().bottom - base.getBoundingClientRect().bottom < 1) {
  document.documentElement.classList.add("no-math-font");
}
