// Shows the values of one step of a chart, at the pointer and for the arrow keys. The names and values are those of the chart's
// table, so the server alone knows series, units and time zone. Without this script, the chart and its table stay.
"use strict";
(() => {
  let chart = null, step = 0, at = null;

  function hide() {
    if (chart) chart.querySelector(".reading").hidden = true;
    for (const band of chart?.querySelectorAll(".band") ?? []) band.removeAttribute("width");
    chart = at = null;
  }

  // Shows a step of a chart, at a position on the page or else above the step.
  function show(figure, index, position) {
    if (chart !== figure) hide();
    const ends = figure.dataset.ends.split(" ").map(Number);
    const row = figure.querySelector("tbody").rows[index];
    if (!row) return hide();
    [chart, step, at] = [figure, index, position];
    const names = [...figure.querySelectorAll("thead th")].slice(1).map((name) => name.textContent);
    const values = [...row.cells].slice(1).map((cell) => cell.textContent);
    for (const band of figure.querySelectorAll(".band")) {
      band.setAttribute("x", ends[index]);
      band.setAttribute("width", ends[index + 1] - ends[index]);
    }
    const cursor = figure.querySelector(".cursor");
    cursor.value = index;
    cursor.setAttribute("aria-valuetext", `${row.dataset.step}: ${names.map((name, n) => `${name} ${values[n]}`).join(", ")}`);
    const title = document.createElement("strong");
    title.textContent = row.dataset.step;
    const samples = figure.querySelectorAll(".legend .sample");
    const lines = names.map((name, n) => {
      const line = document.createElement("span");
      const value = document.createElement("b");
      value.textContent = values[n];
      line.append(samples[n].cloneNode(true), name, value);
      return line;
    });
    const reading = figure.querySelector(".reading");
    reading.replaceChildren(title, ...lines);
    reading.hidden = false;
    // Beside the position, on the side that has room.
    const box = figure.getBoundingClientRect(), plot = figure.querySelector(".plot").getBoundingClientRect();
    const middle = (ends[index] + ends[index + 1]) / 2 / ends[ends.length - 1];
    const x = (position?.x ?? plot.left + plot.width * middle) - box.left, y = (position?.y ?? plot.top) - box.top;
    const width = reading.offsetWidth, gap = 14;
    const left = x + gap + width <= box.width ? x + gap : x - gap - width;
    reading.style.left = `${Math.max(4, Math.min(left, box.width - width - 4))}px`;
    reading.style.top = `${y + gap}px`;
  }

  function point(event) {
    const plot = event.target.closest?.(".plot");
    const figure = plot?.closest(".chart");
    if (!figure) {
      if (chart && !chart.contains(document.activeElement)) hide();
      return;
    }
    const box = plot.getBoundingClientRect();
    const ends = figure.dataset.ends.split(" ").map(Number);
    const share = (event.clientX - box.left) / box.width * ends[ends.length - 1];
    const next = ends.findIndex((end) => end > share);
    show(figure, next < 0 ? ends.length - 2 : Math.max(0, next - 1), { x: event.clientX, y: event.clientY });
  }
  document.addEventListener("pointermove", point);
  document.addEventListener("pointerdown", point);
  document.documentElement.addEventListener("pointerleave", point);
  // From where the pointer was, the keys go on.
  document.addEventListener("click", (event) => event.target.closest?.(".plot")?.closest(".chart").querySelector(".cursor").focus({ preventScroll: true }));

  const cursor = (event) => event.target.closest?.(".cursor");
  for (const kind of ["focusin", "input"]) document.addEventListener(kind, (event) => {
    const figure = cursor(event)?.closest(".chart");
    if (figure) show(figure, Number(event.target.value), chart === figure && kind === "focusin" ? at : null);
  });
  document.addEventListener("focusout", (event) => { if (cursor(event)) hide(); });
  // The page has new values, and the place of the pointer is the same.
  document.addEventListener("refreshed", () => { if (chart?.isConnected) show(chart, step, at); else chart = at = null; });
})();
