
// Draw each chart of the page from the specification beside it.
const NARROW = 600;

// On a phone names of points and the legend leave room for the points.
function fit(spec) {
  for (const layer of spec.layer ?? [spec]) {
    const { x, y, color } = layer.encoding ?? {};
    if (x?.title) x.title = x.title.split(/(?<=:) /); // a line for each part
    if (y?.axis) y.axis = { ...y.axis, labelLimit: 120, labelFontSize: 9 };
    if (color?.legend) color.legend = { ...color.legend, columns: y?.axis ? 1 : 2, symbolSize: 60 };
  }
  return spec;
}

document.addEventListener("DOMContentLoaded", () => {
  for (const data of document.querySelectorAll("script[data-for]")) {
    const place = document.getElementById(data.dataset.for);
    const spec = JSON.parse(data.textContent);
    const options = { renderer: "svg", actions: false, bind: `#${data.dataset.for}-filters` };
    vegaEmbed(place, window.innerWidth < NARROW ? fit(spec) : spec, options);
  }
});
