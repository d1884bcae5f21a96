"use strict";
const MARKED = 500; // places in a file, at most: more make a browser slow
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
// Graphs of all stages: buttons, or the wheel with Ctrl, zoom; dragging moves what is seen.
for (const tools of document.querySelectorAll(".zoom")) {
  const frames = [...document.querySelectorAll(`#${tools.dataset.of} .graph.wide`)];
  const pictures = frames.map((frame) => frame.querySelector("svg"));
  let scale = 0;
  const zoom = (by) => {
    const shown = pictures.find((svg) => svg.getBoundingClientRect().width);
    const now = scale || shown.getBoundingClientRect().width / shown.viewBox.baseVal.width;
    scale = by && Math.min(4, Math.max(0.2, now * by));
    pictures.forEach((svg) => {
      const width = `${scale * svg.viewBox.baseVal.width}px`;
      svg.setAttribute("style", scale ? `width: ${width}; min-width: ${width}` : "width: 100%");
    });
  };
  for (const button of tools.querySelectorAll("button")) {
    button.addEventListener("click", () => zoom(Number(button.dataset.by)));
  }
  for (const frame of frames) {
    frame.addEventListener("wheel", (event) => {
      if (!event.ctrlKey) { return; }
      event.preventDefault();
      zoom(event.deltaY < 0 ? 1.1 : 0.9);
    }, { passive: false });
    frame.addEventListener("pointermove", (event) => {
      if (event.buttons !== 1 || event.pointerType !== "mouse") { return; }
      frame.scrollBy(-event.movementX, -event.movementY);
      event.preventDefault();
    });
  }
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
    let found = 0, some = false;
    folds.forEach((fold, number) => {
      const pre = fold.querySelector("pre");
      pre.textContent = texts[number];
      if (wanted.length < 2) { fold.open = false; return; }
      const lower = texts[number].toLowerCase();
      const pieces = [];
      let at = 0, own = 0;
      for (let next = 0; (next = lower.indexOf(wanted, next)) >= 0; next += wanted.length) {
        own += 1;
        if (own > MARKED) { continue; }
        pieces.push(document.createTextNode(texts[number].slice(at, next)));
        const mark = document.createElement("mark");
        mark.textContent = texts[number].slice(next, next + wanted.length);
        pieces.push(mark);
        at = next + wanted.length;
      }
      some ||= own > MARKED;
      fold.open = own > 0;
      found += own;
      if (own) {
        pieces.push(document.createTextNode(texts[number].slice(at)));
        pre.replaceChildren(...pieces);
        pre.querySelector("mark").scrollIntoView({ block: "nearest" });
      }
    });
    const said = `${found} places${some ? `, of which ${MARKED} of a file are marked` : ""}`;
    document.getElementById(`${search.dataset.of}-found`).textContent = wanted.length < 2 ? "" : said;
  });
}
