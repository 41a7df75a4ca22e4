// What a reader does with a chart: hover, drag, turn the wheel, use the keyboard.

function startPointer(chart) {
  const { svg, state } = chart;
  let from = null;
  // A page that scrolls under the pointer must not zoom: only a pointer that was moved does.
  let armed = false;
  let chosen = null;

  const place = (event) => {
    const box = svg.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  const over = () => svg.querySelector(".over");
  const mark = (point) => {
    chosen = point;
    showNear(chart, over(), point);
  };

  svg.addEventListener("pointerdown", (event) => {
    const here = place(event);
    if (event.button || !inside(chart, here)) return;
    // A finger that drags scrolls the page; where it taps, it asks for a value.
    if (event.pointerType === "touch") {
      mark(nearest(chart, here));
      return;
    }
    from = here;
    svg.setPointerCapture(event.pointerId);
  });
  svg.addEventListener("pointermove", (event) => {
    armed = true;
    const here = place(event);
    if (from) showBand(chart, over(), from, here);
    else mark(inside(chart, here) ? nearest(chart, here) : null);
  });
  svg.addEventListener("pointerup", (event) => {
    if (!from) return;
    const start = from;
    from = null;
    zoomTo(chart, start, place(event));
  });
  svg.addEventListener("pointerleave", (event) => {
    if (!from && event.pointerType !== "touch") mark(null);
  });
  svg.addEventListener("dblclick", () => zoom(chart, null));
  addEventListener("scroll", () => { armed = false; }, { passive: true });
  svg.addEventListener("wheel", (event) => {
    const out = event.deltaY > 0;
    if (!armed || !inside(chart, place(event)) || (out && state.view === null)) return;
    event.preventDefault();
    zoomBy(chart, place(event), Math.exp(clamp(event.deltaY, -240, 240) * 0.002));
  }, { passive: false });
  svg.addEventListener("keydown", (event) => {
    const middle = chosen && inside(chart, [chosen.px, chosen.py]) ? [chosen.px, chosen.py]
      : centre(chart);
    const actions = {
      ArrowRight: () => mark(walk(chart, chosen, 1)),
      ArrowLeft: () => mark(walk(chart, chosen, -1)),
      ArrowDown: () => mark(change(chart, chosen, 1)),
      ArrowUp: () => mark(change(chart, chosen, -1)),
      "+": () => zoomBy(chart, middle, 0.7),
      "=": () => zoomBy(chart, middle, 0.7),
      "-": () => zoomBy(chart, middle, 1.4),
      0: () => zoom(chart, null),
      Escape: () => mark(null),
    };
    if (!(event.key in actions) || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    actions[event.key]();
  });
}

function inside(chart, [x, y]) {
  const { left, top, width, height } = chart.plot.inner;
  return x >= left && x <= left + width && y >= top && y <= top + height;
}

function centre(chart) {
  const { left, top, width, height } = chart.plot.inner;
  return [left + width / 2, top + height / 2];
}

function nearest(chart, [x, y]) {
  let best = null;
  let least = Infinity;
  for (const point of chart.points) {
    const far = Math.hypot(point.px - x, point.py - y);
    if (far < least && inside(chart, [point.px, point.py])) [best, least] = [point, far];
  }
  return best;
}

function walk(chart, chosen, by) {
  if (!chosen) return chart.points[0] ?? null;
  const same = chart.points.filter((point) => point.run === chosen.run);
  const now = same.findIndex((point) => point.point.i === chosen.point.i);
  return same[clamp(now + by, 0, same.length - 1)] ?? null;
}

function change(chart, chosen, by) {
  if (!chosen) return chart.points[0] ?? null;
  const runs = [...new Set(chart.points.map((point) => point.run))];
  const next = runs[(runs.indexOf(chosen.run) + by + runs.length) % runs.length];
  const same = chart.points.filter((point) => point.run === next);
  const far = (point) => Math.abs(point.px - chosen.px);
  return same.reduce((best, point) => (far(point) < far(best) ? point : best), same[0]);
}

function zoom(chart, view) {
  chart.state.view = view;
  chart.render();
}

// From a place in the picture to the units of the axes.
function unitsAt(chart, [x, y]) {
  const { inner, view } = chart.plot;
  const right = (x - inner.left) / inner.width;
  const up = 1 - (y - inner.top) / inner.height;
  return [view.x[0] + right * (view.x[1] - view.x[0]), view.y[0] + up * (view.y[1] - view.y[0])];
}

function zoomTo(chart, a, b) {
  const { left, top, width, height } = chart.plot.inner;
  const [from, to] = [a, b].map(([x, y]) => unitsAt(chart,
    [clamp(x, left, left + width), clamp(y, top, top + height)]));
  const wide = Math.abs(a[0] - b[0]) > 8;
  const high = Math.abs(a[1] - b[1]) > 8;
  const range = (i) => [Math.min(from[i], to[i]), Math.max(from[i], to[i])];
  const { view } = chart.plot;
  if (wide || high) zoom(chart, { x: wide ? range(0) : view.x, y: high ? range(1) : view.y });
  else chart.render();
}

function zoomBy(chart, place, factor) {
  const [x, y] = unitsAt(chart, place);
  const { view, scales } = chart.plot;
  const grow = ([low, high], at, [least, most]) => [
    Math.max(at + (low - at) * factor, least), Math.min(at + (high - at) * factor, most)];
  const next = { x: grow(view.x, x, scales.x.full), y: grow(view.y, y, scales.y.full) };
  const whole = ["x", "y"].every((axis) => next[axis].every((end, i) =>
    Math.abs(end - scales[axis].full[i]) < 1e-9));
  zoom(chart, whole ? null : next);
}

function showBand(chart, layer, a, b) {
  const { left, top, width, height } = chart.plot.inner;
  const xs = [a[0], b[0]].map((x) => clamp(x, left, left + width)).sort((p, q) => p - q);
  const ys = [a[1], b[1]].map((y) => clamp(y, top, top + height)).sort((p, q) => p - q);
  layer.replaceChildren(draw("rect", { class: "band", x: xs[0], y: ys[0],
    width: xs[1] - xs[0], height: ys[1] - ys[0] }));
}

function showNear(chart, layer, point) {
  if (!layer) return;
  if (!point) {
    layer.replaceChildren();
    chart.live.textContent = "";
    return;
  }
  const { data, state } = chart;
  const { run, line } = point;
  const xName = state.x === "seconds" ? `${words(run.seconds[point.i])} s` : null;
  const step = run.step ? `step ${run.step[point.i].toLocaleString("en")}` : null;
  const size = run.n ? `n = ${run.n[point.i].toLocaleString("en")}` : null;
  const texts = [
    `${words(point.y)}  ${data.y[state.y]}`,
    [size, step, xName].filter(Boolean).join(", "),
    line.name + (run.seed === null ? "" : `, seed ${run.seed}`),
  ];
  chart.live.textContent = `${texts[2]}; ${texts[1]}: ${texts[0]}`;
  layer.replaceChildren(draw("circle", { class: "near", cx: point.px, cy: point.py, r: 6 }),
    tip(chart, point, texts));
}

function tip(chart, point, texts) {
  const total = MARGIN.left + chart.plot.inner.width + MARGIN.right;
  const most = Math.floor((total - 24) / 6.6);
  const shown = texts.map((text) => (text.length > most ? `${text.slice(0, most - 1)}…` : text));
  const width = Math.min(6.6 * Math.max(...shown.map((text) => text.length)) + 18, total - 4);
  const x = clamp(point.px + 12, 2, total - width - 2);
  const above = point.py > 90;
  const y = above ? point.py - 76 : point.py + 12;
  return draw("g", { class: "tip", transform: `translate(${x} ${y})`, "pointer-events": "none" },
    draw("rect", { width, height: 64, rx: 6 }),
    ...shown.map((text, i) => draw("text", { x: 9, y: 19 + 18 * i }, text)));
}
