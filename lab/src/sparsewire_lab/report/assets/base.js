// What all parts of the page share: elements, numbers in words, arrays from base64, copying.

const reduced = matchMedia("(prefers-reduced-motion: reduce)");
// Called when colours change: by the button, by the system, for the printer.
const repaint = new Set();

function make(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) setAttribute(node, key, value);
  node.append(...children.filter((child) => child !== null));
  return node;
}

function draw(name, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) setAttribute(node, key, value);
  node.append(...children);
  return node;
}

function setAttribute(node, key, value) {
  if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
  else if (value !== null && value !== false) node.setAttribute(key, value === true ? "" : value);
}

function readData(name) {
  return JSON.parse(document.getElementById(`data-${name}`).textContent);
}

function unpack({ kind, shape, data }) {
  const text = atob(data);
  const bytes = Uint8Array.from(text, (sign) => sign.charCodeAt(0));
  const kinds = { u1: Uint8Array, u2: Uint16Array, f4: Float32Array };
  return { shape, data: new kinds[kind](bytes.buffer) };
}

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

function clamp(value, low, high) {
  return Math.min(Math.max(value, low), high);
}

function words(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1000) return value.toLocaleString("en", { maximumFractionDigits: 0 });
  if (size < 1e-4) return value.toExponential(1);
  return String(Number(value.toPrecision(3)));
}

function selector(label, names, pick) {
  const select = make("select", { onchange: () => pick(select.selectedIndex) });
  names.forEach((name) => select.append(make("option", {}, name)));
  return make("label", {}, label, select);
}

function choices(label, names, start, pick) {
  const group = make("span", { class: "choices", role: "group", "aria-label": label });
  const buttons = Object.entries(names).map(([key, text]) => {
    const choose = () => {
      buttons.forEach((other) => other.setAttribute("aria-pressed", other === button));
      pick(key);
    };
    const button = make("button", { type: "button", "data-choice": key, onclick: choose }, text);
    button.setAttribute("aria-pressed", key === start);
    return button;
  });
  group.append(...buttons);
  return group;
}

function copyButton(command) {
  const attributes = { type: "button", class: "copy", title: command, "data-command": command };
  return make("button", attributes, "copy command");
}

// A bar that names the shown run and chooses among several, above a stage with the run itself.
// show(stage, run) fills the stage and returns { leave }, which stops what moves there.
function runViewer(box, label, runs, show) {
  const stage = make("div");
  const button = copyButton(runs[0].command);
  let current = null;
  const pick = (number) => {
    if (current) current.leave();
    current = show(stage, runs[number]);
    button.dataset.command = runs[number].command;
    button.title = runs[number].command;
  };
  const names = runs.map((run) => run.name);
  const name = runs.length > 1 ? selector(label, names, pick)
    : make("span", { class: "key" }, names[0]);
  const bar = make("div", { class: "bar" }, name, button);
  box.append(bar, stage);
  pick(0);
  return { bar, current };
}

// A canvas as sharp as the screen: calls paint(context, width, height) in CSS pixels.
// ratio(width) is its height as a share of its width.
function sharpCanvas(label, ratio, paint) {
  const canvas = make("canvas", { role: "img", "aria-label": label });
  const redraw = () => {
    const width = canvas.clientWidth;
    if (!width) return;
    const height = Math.round(ratio(width) * width);
    const scale = Math.min(window.devicePixelRatio || 1, 3);
    const [across, down] = [width, height].map((side) => Math.round(side * scale));
    if (canvas.width !== across || canvas.height !== down) {
      canvas.width = across;
      canvas.height = down;
      canvas.style.height = `${height}px`;
    }
    const context = canvas.getContext("2d");
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, width, height);
    paint(context, width, height);
  };
  new ResizeObserver(redraw).observe(canvas);
  repaint.add(redraw);
  return { canvas, redraw };
}

let saidTimer = 0;

async function copy(command) {
  const area = make("textarea", { readonly: true, rows: Math.min(command.split("\n").length + 1, 6),
    "aria-label": "command" });
  area.value = command;
  const status = make("span");
  const said = document.getElementById("said");
  const back = document.activeElement;
  said.replaceChildren(make("div", { class: "box" }, status, area));
  // Pages from disk may have no clipboard: then a selected text is copied, or left for the reader.
  let done = false;
  try {
    await navigator.clipboard.writeText(command);
    done = true;
  } catch {
    area.select();
    try {
      done = document.execCommand("copy");
    } catch {
      done = false;
    }
  }
  status.textContent = done ? "Copied:" : "Press Ctrl+C (⌘C) to copy:";
  clearTimeout(saidTimer);
  if (done) {
    if (back) back.focus({ preventScroll: true });
    saidTimer = setTimeout(() => said.replaceChildren(), 4000);
  } else {
    area.addEventListener("blur", () => said.replaceChildren(), { once: true });
  }
}

function startCopying() {
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-command]");
    if (button) copy(button.dataset.command);
  });
}

function remembered(value) {
  // Pages from disk may have no storage.
  try {
    if (value !== undefined) localStorage.setItem("sparsewire-theme", value);
    return localStorage.getItem("sparsewire-theme");
  } catch {
    return null;
  }
}

function startTheme() {
  const button = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const root = document.documentElement;
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const show = () => {
    button.textContent = isDark() ? "☀ light" : "☾ dark";
    button.setAttribute("aria-label", isDark() ? "use light colours" : "use dark colours");
    repaint.forEach((redraw) => redraw());
  };
  const theme = remembered();
  if (theme === "dark" || theme === "light") root.dataset.theme = theme;
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    remembered(root.dataset.theme);
    show();
  });
  system.addEventListener("change", show);
  show();
}

function startPrinting() {
  let closed = [];
  addEventListener("beforeprint", () => {
    closed = [...document.querySelectorAll("details:not([open])")];
    closed.forEach((part) => { part.open = true; });
    repaint.forEach((redraw) => redraw());
  });
  addEventListener("afterprint", () => {
    closed.forEach((part) => { part.open = false; });
    repaint.forEach((redraw) => redraw());
  });
}
