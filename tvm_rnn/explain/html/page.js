"use strict";
for (const slider of document.querySelectorAll("input.stages")) {
  const stages = document.querySelectorAll(`#${slider.dataset.of} .stage`);
  const show = () => {
    stages.forEach((stage, number) => { stage.hidden = number !== Number(slider.value); });
    const name = stages[slider.value].dataset.name;
    slider.setAttribute("aria-valuetext", name);
    document.getElementById(`${slider.dataset.of}-name`).textContent = name;
  };
  slider.addEventListener("input", show);
  show();
}
for (const button of document.querySelectorAll("button.play")) {
  const chart = document.getElementById(button.dataset.of);
  const marks = [...chart.querySelectorAll(".mark-rect path")];
  button.addEventListener("click", () => {
    const turns = marks.map((mark) => Number(/turn: (\d+)/.exec(mark.getAttribute("aria-label"))?.[1] ?? 0));
    const each = Math.min(0.4, 6 / (Math.max(...turns) + 1));
    marks.forEach((mark, number) => mark.style.setProperty("--turn", `${turns[number] * each}s`));
    chart.classList.remove("playing");
    void chart.getBoundingClientRect();
    chart.classList.add("playing");
  });
}
for (const search of document.querySelectorAll("input.search")) {
  const folds = [...document.querySelectorAll(`#${search.dataset.of} details`)];
  const texts = folds.map((fold) => fold.querySelector("pre").textContent);
  search.addEventListener("input", () => {
    const wanted = search.value.toLowerCase();
    let found = 0;
    folds.forEach((fold, number) => {
      const pre = fold.querySelector("pre");
      pre.textContent = texts[number];
      if (wanted.length < 2) { fold.open = false; return; }
      const lower = texts[number].toLowerCase();
      const pieces = [];
      let at = 0, next, own = 0;
      while ((next = lower.indexOf(wanted, at)) >= 0 && own < 500) {
        pieces.push(document.createTextNode(texts[number].slice(at, next)));
        const mark = document.createElement("mark");
        mark.textContent = texts[number].slice(next, next + wanted.length);
        pieces.push(mark);
        at = next + wanted.length;
        own += 1;
      }
      fold.open = own > 0;
      found += own;
      if (own) {
        pieces.push(document.createTextNode(texts[number].slice(at)));
        pre.replaceChildren(...pieces);
        pre.querySelector("mark").scrollIntoView({ block: "nearest" });
      }
    });
    document.getElementById(`${search.dataset.of}-found`).textContent = wanted.length < 2 ? "" : `${found} places`;
  });
}
