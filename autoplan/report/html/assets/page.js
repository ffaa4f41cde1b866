"use strict";
// What is pointed at, or tapped, is told in words under its chart.
for (const chart of document.querySelectorAll(".readable")) {
  const told = chart.querySelector("output");
  const tell = (event) => {
    const mark = event.target.closest("rect, g");
    const title = mark && mark.querySelector("title");
    if (title) told.textContent = title.textContent;
  };
  chart.addEventListener("pointerover", tell);
  chart.addEventListener("click", tell);
}
// The schedule's axis: round numbers of seconds in each stretch that is drawn, about one every 90 pixels.
function ticks(line) {
  const width = line.clientWidth;
  line.replaceChildren();
  const pieces = JSON.parse(line.dataset.pieces);
  for (const [left, right, first, last] of pieces) {
    const room = Math.max(2, Math.floor((right - left) * width / 90));
    let step = 10 ** Math.floor(Math.log10((last - first) / room));
    step *= [1, 2, 5, 10].find((factor) => (last - first) / (step * factor) <= room) || 10;
    for (let number = Math.ceil(first / step - 1e-9); number * step <= last * (1 + 1e-12); number++) {
      const share = left + (number * step - first) / (last - first) * (right - left);
      const tick = document.createElement("i");
      tick.style.left = `${100 * share}%`;
      tick.className = share * width > width - 30 ? "end" : share * width < 20 ? "begin" : "";
      tick.textContent = `${+(number * step).toPrecision(6)}`;
      line.append(tick);
    }
  }
}
const timed = document.querySelectorAll(".ticks.timed");
const refresh = () => timed.forEach(ticks);
addEventListener("resize", refresh);
refresh();
for (const button of document.querySelectorAll("[data-zoom]")) {
  button.addEventListener("click", () => {
    const shown = button.closest("section").querySelector(".window");
    const before = Number(shown.style.getPropertyValue("--zoom") || 1);
    const middle = (shown.scrollLeft + shown.clientWidth / 2) / shown.scrollWidth;
    const factor = Number(button.dataset.zoom);
    const zoom = factor ? Math.min(256, Math.max(1, before * factor)) : 1;
    shown.style.setProperty("--zoom", zoom);
    shown.scrollLeft = middle * shown.scrollWidth - shown.clientWidth / 2;
    refresh();
  });
}
