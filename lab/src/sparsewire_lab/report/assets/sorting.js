// The sorting strip: pictures of numbers as they move through the levels of quicksort, and keys.

const sortingViewer = (box, runs) => runViewer(box, "run", runs, sortingStage);

function sortingStage(stage, run) {
  const keys = unpack(run.keys);
  const sort = run.levels ? loadSort(run, keys) : null;
  let level = 0;
  let frame = run.step.length - 1;
  const canvases = [];
  const scatter = sharpCanvas("keys against true values", () => 0.78,
    (context, width, height) => paintKeys(context, width, height, run, keys, frame));
  const strip = sort && sharpCanvas("numbers moving through the levels",
    (width) => stripRatio(sort, width),
    (context, width, height) => paintStrip(context, width, height, sort, frame, level));
  canvases.push(scatter, ...(strip ? [strip] : []));
  const redraw = () => canvases.forEach((canvas) => canvas.redraw());
  const steps = player({
    label: "training step", count: run.step.length, seconds: clamp(run.step.length / 4, 3, 8),
    describe: (number) => trainingWords(run, number),
    show: (to) => {
      frame = Math.round(to);
      redraw();
    },
  });
  const levels = sort && player({
    label: "level of the sort", count: run.levels + 1, seconds: 1.6 * run.levels,
    describe: (number) => levelWords(number, run.levels),
    show: (to) => {
      level = to;
      strip.redraw();
      strip.canvas.setAttribute("aria-label", `numbers moving through the levels of quicksort: ` +
        levelWords(Math.round(to), run.levels));
    },
  });
  if (sort) {
    keysFor(strip.canvas, levels);
    Promise.all(sort.images.map((image) => image.decode())).then(redraw, () => {});
  }
  const named = (name, { root }) => make("div", {}, make("strong", { class: "hint" }, name), root);
  const caption = "the set, top to bottom; orange: where it is cut" +
    (sort && isStacked(sort, Infinity) ? "; the digits of a number are below each other" : "");
  stage.replaceChildren(
    ...(sort ? [stripBox(sort,
      panel(caption, strip.canvas),
      named("level of the sort", levels))] : []),
    make("div", { class: "narrow" }, named("step of training", steps),
      panel("key that the network gives ↑, true value →", scatter.canvas)),
  );
  steps.go(run.step.length - 1);
  if (levels) levels.go(run.levels);
  const leave = () => {
    steps.stop();
    if (levels) levels.stop();
    canvases.forEach((canvas) => repaint.delete(canvas.redraw));
  };
  return { leave };
}

const LABEL = 78; // pixels for the names of rows
const MOST_ABREAST = 24; // digits
const SMALLEST = 18; // pixels of a digit

// Whether the digits of a number are below each other in a strip of this width: there are many,
// or they would be too small side by side.
function isStacked(sort, width) {
  const digits = sort.count * sort.run.places;
  return sort.run.places > 1 && (digits > MOST_ABREAST || width / digits < SMALLEST);
}

// As wide as digits need to be read well, and not more.
function stripBox(sort, ...children) {
  const box = make("div", { class: "wide" }, ...children);
  const below = isStacked(sort, Infinity);
  const digits = sort.count * (below ? 1 : sort.run.places);
  box.style.maxWidth = `${LABEL + digits * (below || sort.run.places === 1 ? 44 : 54)}px`;
  box.style.minWidth = "min(100%, 30rem)";
  return box;
}

function trainingWords(run, frame) {
  const step = `step ${run.step[frame].toLocaleString("en")}`;
  const rank = run.spearman[frame];
  const parts = [step];
  if (run.misplaced) parts.push(`${run.misplaced[frame]} of this set misplaced`);
  if (rank !== null) parts.push(`rank correlation ${rank.toFixed(3)}`);
  return parts.join(", ");
}

function levelWords(level, levels) {
  if (level === 0) return "as it came";
  return level === levels ? "sorted" : `${2 ** level} buckets`;
}

function loadSort(run, keys) {
  const halves = unpack(run.halves);
  const images = run.images.map((source) => {
    const image = new Image();
    image.src = source;
    return image;
  });
  const count = images.length;
  const values = run.values.slice(0, count);
  return { run, halves, images, count, values, keys, levels: run.levels,
    right: [...values].sort((a, b) => a - b), mixtures: new Map() };
}

// How much of each element is at each place after a level: products of half-permutations.
function mixture(sort, frame, level) {
  const key = `${frame}/${level}`;
  if (sort.mixtures.has(key)) return sort.mixtures.get(key);
  const n = sort.count;
  let mixed;
  if (level === 0) {
    const row = (i) => Array.from({ length: n }, (_, j) => Number(i === j));
    mixed = Array.from({ length: n }, (_, i) => row(i));
  } else {
    const before = mixture(sort, frame, level - 1);
    mixed = Array.from({ length: n }, (_, i) => before[0].map((__, j) => {
      let sum = 0;
      for (let k = 0; k < n; k += 1) sum += half(sort, frame, level - 1, i, k) * before[k][j];
      return sum;
    }));
  }
  sort.mixtures.set(key, mixed);
  return mixed;
}

function half(sort, frame, level, to, from) {
  const n = sort.count;
  return sort.halves.data[((frame * sort.levels + level) * n + to) * n + from] / 255;
}

// The layout in pixels: names at the left, numbers at the foot, room between rows to move.
function stripLayout(sort, width) {
  const label = Math.min(LABEL, 0.24 * width);
  const tile = (width - label) / sort.count;
  const [image] = sort.images;
  const digit = image.naturalWidth ? (sort.run.places * image.naturalHeight) / image.naturalWidth : 1;
  const below = isStacked(sort, width - label);
  const high = digit * tile * (below ? sort.run.places : 1 / sort.run.places);
  return { label, tile, high, below, pitch: high + clamp(0.6 * high, 12, 30), foot: 44 };
}

function stripRatio(sort, width) {
  const { pitch, foot } = stripLayout(sort, width);
  return ((sort.levels + 1) * pitch + foot) / width;
}

function paintStrip(context, width, height, sort, frame, position) {
  const { label, tile, high, below, pitch, foot } = stripLayout(sort, width);
  const x = (place) => label + place * tile;
  const y = (level) => level * pitch + 4;
  const { first, share } = between(position, sort.levels + 1);
  const row = blankRow(sort, tile, high, below);
  for (let level = 0; level <= sort.levels; level += 1) {
    if (level > position + 1e-6) {
      context.fillStyle = colour("grid");
      context.fillRect(x(0), y(level), sort.count * tile, high);
    } else {
      row.clear();
      mixture(sort, frame, level).forEach((parts, place) =>
        parts.forEach((part, element) => row.put(element, place, part)));
      context.drawImage(row.canvas, x(0), y(level), sort.count * tile, high);
    }
    paintGaps(context, sort, x, y(level), high);
  }
  if (share > 1e-6) {
    const smooth = share * share * (3 - 2 * share);
    row.clear();
    moves(sort, frame, first, smooth, row.put);
    context.drawImage(row.canvas, x(0), y(first + smooth), sort.count * tile, high);
  }
  paintCuts(context, sort, position, x, y, high);
  paintNames(context, sort, frame, position, { label, tile, x, y, high, height, foot });
}

// A row of pictures on black, where light adds up, as in a mixture of pictures.
function blankRow(sort, tile, high, below) {
  const scale = Math.min(window.devicePixelRatio || 1, 2);
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(Math.round(sort.count * tile * scale), 1);
  canvas.height = Math.max(Math.round(high * scale), 1);
  const context = canvas.getContext("2d");
  const wide = canvas.width / sort.count;
  const clear = () => {
    context.globalCompositeOperation = "source-over";
    context.globalAlpha = 1;
    context.fillStyle = "#000000";
    context.fillRect(0, 0, canvas.width, canvas.height);
    context.globalCompositeOperation = "lighter";
  };
  const put = (element, place, share) => {
    if (share < 0.003) return;
    context.globalAlpha = Math.min(share, 1);
    const image = sort.images[element];
    const parts = below ? sort.run.places : 1;
    const [from, to] = [image.naturalWidth / parts, canvas.height / parts];
    for (let part = 0; part < parts; part += 1) {
      context.drawImage(image, part * from, 0, from, image.naturalHeight,
        place * wide + 1, part * to, wide - 2, to);
    }
  };
  return { canvas, clear, put };
}

// Between two levels: every part of a picture on its way to its next place.
function moves(sort, frame, first, smooth, put) {
  const before = mixture(sort, frame, first);
  for (let to = 0; to < sort.count; to += 1) {
    for (let from = 0; from < sort.count; from += 1) {
      const moved = half(sort, frame, first, to, from);
      const place = from + (to - from) * smooth;
      before[from].forEach((part, element) => put(element, place, part * moved));
    }
  }
}

// A gap separates the digits of one number from those of the next.
function paintGaps(context, sort, x, top, high) {
  context.fillStyle = colour("line");
  for (let place = 1; place < sort.count; place += 1) {
    context.fillRect(x(place) - 1.5, top, 3, high);
  }
}

function paintCuts(context, sort, position, x, y, high) {
  context.fillStyle = "#e69f00";
  for (let level = 0; level <= Math.floor(position + 1e-6); level += 1) {
    const bucket = 2 ** (sort.levels - level);
    for (let cut = bucket; bucket > 1 && cut < sort.count; cut += bucket) {
      context.fillRect(x(cut) - 2, y(level) - 3, 4, high + 6);
    }
  }
}

function paintNames(context, sort, frame, position, { label, tile, x, y, high, height, foot }) {
  context.font = "13px system-ui, sans-serif";
  context.textBaseline = "middle";
  context.textAlign = "left";
  for (let level = 0; level <= sort.levels; level += 1) {
    context.fillStyle = colour(level <= position + 1e-6 ? "ink" : "soft");
    context.fillText(levelWords(level, sort.levels), 0, y(level) + high / 2, label - 6);
  }
  if (position < sort.levels - 0.5) return;
  const key = (element) => sort.keys.data[frame * sort.keys.shape[1] + element];
  const order = sort.values.map((_, i) => i).sort((a, b) => key(a) - key(b));
  context.fillStyle = colour("soft");
  context.fillText("by key", 0, height - foot + 12, label - 6);
  context.fillText("true order", 0, height - foot + 32, label - 6);
  context.textAlign = "center";
  order.forEach((element, place) => {
    const wrong = sort.values[element] !== sort.right[place];
    const text = String(sort.values[element]).padStart(sort.run.places, "0");
    context.fillStyle = colour(wrong ? "bad" : "ink");
    context.font = `${wrong ? "bold " : ""}13px system-ui, sans-serif`;
    const middle = x(place) + tile / 2;
    context.fillText((wrong ? "✗" : "") + text, middle, height - foot + 12, tile - 2);
    context.font = "13px system-ui, sans-serif";
    context.fillStyle = colour("ink");
    const right = String(sort.right[place]).padStart(sort.run.places, "0");
    context.fillText(right, middle, height - foot + 32, tile - 2);
  });
}

function paintKeys(context, width, height, run, keys, frame) {
  const count = keys.shape[1];
  const here = keys.data.subarray(frame * count, (frame + 1) * count);
  const room = { left: 52, right: 12, top: 10, bottom: 40 };
  const xScale = linearScale(run.values);
  const [low, high] = [Math.min(...here), Math.max(...here)];
  const span = high - low || 1;
  const range = [low - 0.05 * span, high + 0.05 * span];
  const px = (value) => room.left + ((value - xScale.full[0]) / (xScale.full[1] - xScale.full[0]))
    * (width - room.left - room.right);
  const py = (key) => height - room.bottom - ((key - range[0]) / (range[1] - range[0]))
    * (height - room.top - room.bottom);
  context.fillStyle = colour("page");
  context.fillRect(0, 0, width, height);
  paintKeyAxes(context, width, height, room, px, py, xScale, range);
  here.forEach((key, i) => {
    const inSet = run.levels > 0 && i < run.images.length;
    context.fillStyle = colour(inSet ? "c1" : "c0");
    context.globalAlpha = inSet ? 1 : 0.55;
    context.beginPath();
    if (inSet) context.rect(px(run.values[i]) - 4, py(key) - 4, 8, 8);
    else context.arc(px(run.values[i]), py(key), 3.2, 0, 7);
    context.fill();
  });
  context.globalAlpha = 1;
}

function paintKeyAxes(context, width, height, room, px, py, xScale, range) {
  context.font = "12px system-ui, sans-serif";
  context.strokeStyle = colour("grid");
  context.fillStyle = colour("soft");
  context.textAlign = "center";
  context.textBaseline = "top";
  context.beginPath();
  for (const tick of xScale.ticks(...xScale.full)) {
    context.moveTo(px(tick.at), room.top);
    context.lineTo(px(tick.at), height - room.bottom);
    context.fillText(tick.text, px(tick.at), height - room.bottom + 5);
  }
  context.textAlign = "right";
  context.textBaseline = "middle";
  for (const tick of linearTicks(...range)) {
    context.moveTo(room.left, py(tick.at));
    context.lineTo(width - room.right, py(tick.at));
    context.fillText(tick.text, room.left - 6, py(tick.at));
  }
  context.stroke();
  context.textAlign = "center";
  context.textBaseline = "bottom";
  context.fillStyle = colour("ink");
  context.fillText("true value of held-out numbers (squares: the set)",
    room.left + (width - room.left - room.right) / 2, height - 3, width - room.left);
}
