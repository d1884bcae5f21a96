
// Draw each chart of the page from the specification beside it.
document.addEventListener("DOMContentLoaded", () => {
  for (const data of document.querySelectorAll("script[data-for]")) {
    const place = document.getElementById(data.dataset.for);
    vegaEmbed(place, JSON.parse(data.textContent), { renderer: "svg", actions: false, bind: `#${data.dataset.for}-filters` });
  }
});
