// Curves: a colour and dashes for each method, a marker for each seed.

const DASHES = ["", "7 3", "2 3", "9 3 2 3", "1 2.5", "12 4", "4 2 1 2", "5 5"];
const MARKS = [
  (x, y) => `M${x - 3},${y}a3,3 0 1,0 6,0a3,3 0 1,0 -6,0z`,
  (x, y) => `M${x - 3},${y - 3}h6v6h-6z`,
  (x, y) => `M${x},${y - 4}l4,7h-8z`,
  (x, y) => `M${x},${y - 4}l4,4l-4,4l-4,-4z`,
];
const MARGIN = { left: 68, right: 14, top: 12, bottom: 48 };
let charts = 0;

function chartViewer(box, data) {
  charts += 1;
  const state = { task: data.start, x: Object.keys(data.x)[0], y: Object.keys(data.y)[0],
    log: data.log.y, lines: new Set(), seeds: new Set(), view: null };
  const chart = { data, state, clip: `clip-${charts}`, points: [], plot: null };
  chart.svg = draw("svg", { class: "plot", role: "application", tabindex: 0 });
  chart.legend = make("fieldset", { class: "legend" });
  chart.seedLegend = make("fieldset", { class: "legend" });
  chart.live = make("p", { class: "hint near-words", "aria-live": "polite" });
  chart.render = () => renderChart(chart, box.dataset.words);
  const change = (part) => {
    Object.assign(state, part, { view: null });
    chart.render();
  };
  const pickTask = (task) => {
    Object.assign(state, { task, lines: new Set(), seeds: new Set() });
    fillLegends(chart);
    change({});
  };
  const bar = make("div", { class: "bar" });
  if (data.tasks.length > 1) {
    const select = selector("show", data.tasks.map((task) => task.name), pickTask);
    select.querySelector("select").selectedIndex = data.start;
    bar.append(select);
  }
  bar.append(choices("vertical axis", shortNames(data.y), state.y, (y) => change({ y })));
  if (Object.keys(data.x).length > 1) {
    const names = { step: "by steps", seconds: "by seconds" };
    bar.append(choices("horizontal axis", names, state.x, (x) => change({ x })));
  }
  const scales = { log: "log", linear: "linear" };
  const start = state.log ? "log" : "linear";
  bar.append(choices("scale", scales, start, (kind) => change({ log: kind === "log" })));
  chart.reset = make("button", { type: "button", class: "reset", disabled: true,
    onclick: () => change({}) }, "reset zoom");
  bar.append(chart.reset);
  box.append(bar, chart.svg, chart.live, chart.legend, chart.seedLegend);
  fillLegends(chart);
  startPointer(chart);
  new ResizeObserver(chart.render).observe(chart.svg);
}

// Buttons have room for the first word or two.
function shortNames(names) {
  const short = { error: "error", loss: "loss", time: "time", memory: "memory" };
  return Object.fromEntries(Object.keys(names).map((key) => [key, short[key] ?? key]));
}

function fillLegends(chart) {
  const { state } = chart;
  const { lines } = chart.data.tasks[state.task];
  const toggles = (set, key) => (event) => {
    if (event.target.checked) set().delete(key);
    else set().add(key);
    chart.render();
  };
  chart.legend.replaceChildren(make("legend", {}, "methods"), ...lines.map((line, number) => {
    const check = make("input", { type: "checkbox", checked: true, "data-line": number,
      onchange: toggles(() => state.lines, number) });
    return make("label", {}, check, lineSample(number), line.name);
  }));
  const seeds = seedsOf(lines);
  chart.seedLegend.hidden = seeds.length < 2;
  chart.seedLegend.replaceChildren(make("legend", {}, "seeds"), ...seeds.map((seed, number) => {
    const check = make("input", { type: "checkbox", checked: true, "data-seed": seed,
      onchange: toggles(() => state.seeds, seed) });
    return make("label", {}, check, markSample(number), `seed ${seed}`);
  }));
}

function seedsOf(lines) {
  const seeds = lines.flatMap((line) => line.runs.map((run) => run.seed));
  return [...new Set(seeds)].filter((seed) => seed !== null).sort((a, b) => a - b);
}

function stroke(number) {
  // When colours begin anew, dashes are others.
  const dash = DASHES[(number + 3 * Math.floor(number / 8)) % DASHES.length];
  return { stroke: `var(--c${number % 8})`, "stroke-dasharray": dash };
}

function lineSample(number) {
  const path = draw("path", { d: "M1,7H33", "stroke-width": 2.4, fill: "none", ...stroke(number) });
  return draw("svg", { width: 34, height: 14, "aria-hidden": "true" }, path);
}

function markSample(number) {
  const mark = MARKS[number % MARKS.length](7, 7);
  const path = draw("path", { d: mark, fill: "currentColor" });
  return draw("svg", { width: 14, height: 14, "aria-hidden": "true" }, path);
}

// Every point that is shown, in the units of its axes' scales.
function visiblePoints(chart) {
  const { state, data } = chart;
  const { lines } = data.tasks[state.task];
  const seeds = seedsOf(lines);
  const series = [];
  lines.forEach((line, number) => line.runs.forEach((run) => {
    if (state.lines.has(number) || state.seeds.has(run.seed)) return;
    const points = run[state.y].map((y, i) => ({ x: run[state.x][i], y, i }))
      .filter((point) => point.y !== null && point.x !== null);
    const mark = seeds.length ? seeds.indexOf(run.seed) : number;
    if (points.length) series.push({ line, number, run, mark, points });
  }));
  return series;
}

function renderChart(chart, label) {
  const { svg, state, data } = chart;
  const width = svg.clientWidth || 600;
  const height = clamp(0.5 * width, 260, 430);
  const series = visiblePoints(chart);
  const all = series.flatMap((one) => one.points);
  const scales = {
    x: scaleOf(all.map((point) => point.x), data.log.x),
    y: scaleOf(all.map((point) => point.y), state.log),
  };
  const view = state.view ?? { x: scales.x.full, y: scales.y.full };
  const inner = { left: MARGIN.left, top: MARGIN.top, width: width - MARGIN.left - MARGIN.right,
    height: height - MARGIN.top - MARGIN.bottom };
  const share = (range, value) => (value - range[0]) / (range[1] - range[0]);
  const px = (u) => inner.left + share(view.x, u) * inner.width;
  const py = (u) => inner.top + (1 - share(view.y, u)) * inner.height;
  chart.plot = { inner, view, scales };
  chart.points = series.flatMap((one) => one.points.map((point) => ({ ...point, ...one, point,
    px: px(scales.x.to(point.x)), py: py(scales.y.to(point.y)) })));
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("height", height);
  svg.setAttribute("aria-label", `${label}: ${data.y[state.y]} against ${data.x[state.x]}, ` +
    `${series.length} lines. Arrow keys walk along the points.`);
  svg.replaceChildren(...axes(chart, px, py, width, height), curves(chart, series, px, py),
    draw("g", { class: "over" }));
  if (!series.length) svg.append(draw("text", { x: width / 2, y: height / 2,
    "text-anchor": "middle" }, "nothing to show"));
  chart.reset.disabled = state.view === null;
}

function axes(chart, px, py, width, height) {
  const { data, state } = chart;
  const { inner, view, scales } = chart.plot;
  const bottom = inner.top + inner.height;
  const parts = [draw("clipPath", { id: chart.clip }, draw("rect", { x: inner.left, y: inner.top,
    width: inner.width, height: inner.height }))];
  let free = -Infinity;
  for (const tick of scales.x.ticks(...view.x)) {
    const x = px(tick.at);
    parts.push(draw("path", { class: "grid", d: `M${x},${inner.top}V${bottom}` }));
    const half = 3.7 * tick.text.length;
    if (x - half < free) continue;
    free = x + half + 6;
    parts.push(draw("text", { x: Math.min(x, width - half), y: bottom + 17,
      "text-anchor": "middle" }, tick.text));
  }
  for (const tick of scales.y.ticks(...view.y)) {
    const y = py(tick.at);
    const across = `M${inner.left},${y}H${inner.left + inner.width}`;
    parts.push(draw("path", { class: "grid", d: across }),
      draw("text", { x: inner.left - 7, y: y + 4, "text-anchor": "end" }, tick.text));
  }
  parts.push(draw("rect", { class: "frame", x: inner.left, y: inner.top, width: inner.width,
    height: inner.height }));
  const middle = inner.top + inner.height / 2;
  const log = (on) => (on ? " (log scale)" : "");
  parts.push(draw("text", { class: "axis-name", x: inner.left + inner.width / 2, y: height - 8,
    "text-anchor": "middle" }, data.x[state.x] + log(data.log.x)));
  parts.push(draw("text", { class: "axis-name", x: 14, y: middle, "text-anchor": "middle",
    transform: `rotate(-90 14 ${middle})` }, data.y[state.y] + log(state.log)));
  return parts;
}

function curves(chart, series, px, py) {
  const { scales } = chart.plot;
  const group = draw("g", { "clip-path": `url(#${chart.clip})` });
  for (const { number, run, mark, points } of series) {
    const at = points.map((point) => [px(scales.x.to(point.x)), py(scales.y.to(point.y))]);
    const d = at.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)},${y.toFixed(1)}`).join("");
    const marks = spaced(at).map(([x, y]) => MARKS[Math.max(mark, 0) % MARKS.length](x, y));
    group.append(
      draw("path", { class: "line", d, ...stroke(number), "data-line": number,
        "data-seed": run.seed }),
      draw("path", { d: marks.join(""), fill: `var(--c${number % 8})`, "data-marks": number }),
    );
  }
  return group;
}

// Markers keep a distance, or they would hide the line.
function spaced(at) {
  const apart = [];
  for (const point of at) {
    const last = apart[apart.length - 1];
    if (!last || Math.hypot(point[0] - last[0], point[1] - last[1]) > 42) apart.push(point);
  }
  return apart;
}
