// Galleries of glimpses: images, boxes that move in training, pixels that were read.

// Those of Okabe and Ito's colours that are visible on black, and a grey; dashes differ too.
const BOX_COLOURS = ["#E69F00", "#56B4E9", "#009E73", "#F0E442", "#CC79A7", "#D55E00", "#3a9bdc",
  "#A8A8A8"];
const TENTHS = 10;

const glimpsesViewer = (box, runs) => runViewer(box, "model", runs, glimpsesStage);

function glimpsesStage(stage, run) {
  const boxes = unpack(run.boxes);
  const last = unpack(run.last);
  const sampled = unpack(run.sampled);
  const count = boxes.shape[2];
  const cards = run.cards.map((card, number) => {
    const overlay = glimpseOverlay(run, sampled, number, count);
    const node = glimpseCard(card, overlay, count);
    enlarge(node.querySelector(".zoom"), run, boxesOf(last, number));
    return { overlay, node };
  });
  const show = (position) => cards.forEach(({ overlay }, number) => {
    const corners = number < run.tracked ? boxesAt(boxes, position, number)
      : boxesOf(last, number);
    overlay.boxes.forEach((outline, glimpse) => outline.setAttribute("points", corners[glimpse]));
  });
  const moving = player({
    label: "training step", count: run.step.length, seconds: clamp(run.step.length / 4, 3, 8),
    start: run.step.length - 1, show,
    describe: (frame) => {
      const error = run.error[frame];
      const step = `boxes at step ${run.step[frame].toLocaleString("en")}`;
      return error === null ? step : `${step}, error ${words(100 * error)} %`;
    },
  });
  stage.replaceChildren(moving.root, make("div", { class: "cards" },
    ...cards.map((card) => card.node)));
  moving.go(run.step.length - 1);
  return { leave: moving.stop };
}

function glimpseCard(card, overlay, count) {
  const wrong = card.truth !== card.answer;
  const caption = wrong ? `✗ mistake: a ${card.truth}, read as ${card.answer}`
    : `a ${card.truth}, read as ${card.answer}`;
  const alt = `canvas with a ${card.truth} among pieces of other digits`;
  const image = make("img", { src: card.image, alt });
  const seen = make("div", { class: "seen" }, make("div", { class: "zoom" }, image, overlay.svg));
  const read = make("div", { class: count > 1 ? "read many" : "read" });
  card.glimpses.forEach((glimpse, i) => {
    const part = make("img", { src: glimpse, alt: `glimpse ${i + 1}: what is read in the box` });
    part.style.borderColor = BOX_COLOURS[i % BOX_COLOURS.length];
    part.style.borderStyle = i < 4 ? "solid" : "dashed";
    read.append(part);
  });
  return make("figure", { class: wrong ? "card wrong" : "card", tabindex: 0, role: "group",
    "aria-label": `${caption}. Focus shows the pixels that were read.` },
  seen, read, make("figcaption", {}, caption));
}

// Where boxes are small, dots would merge: the focused image is enlarged around them.
function enlarge(node, run, outlines) {
  const points = outlines.flatMap((line) => line.split(" "))
    .map((pair) => pair.split(",").map(Number));
  const ends = [0, 1].map((axis) => {
    const all = points.map((point) => point[axis]);
    return [Math.min(...all), Math.max(...all)];
  });
  const [height, width] = run.size;
  const share = Math.max((ends[0][1] - ends[0][0]) / width, (ends[1][1] - ends[1][0]) / height);
  if (share <= 0 || share > 0.25) return;
  const zoom = Math.min(0.6 / share, 8);
  // The boxes to the middle, as far as the image reaches.
  const move = (axis, size) => {
    const middle = (ends[axis][0] + ends[axis][1]) / 2 / size;
    return `${(100 * clamp(0.5 - zoom * middle, 1 - zoom, 0)).toFixed(1)}%`;
  };
  node.style.setProperty("--zoom", zoom.toFixed(2));
  node.style.setProperty("--right", move(0, width));
  node.style.setProperty("--down", move(1, height));
}

function glimpseOverlay(run, sampled, number, count) {
  const [height, width] = run.size;
  const svg = draw("svg", { viewBox: `-0.5 -0.5 ${width} ${height}`, "aria-hidden": "true" });
  const dots = draw("g", { class: "dots" });
  const boxes = [];
  const each = sampled.shape[2];
  for (let glimpse = 0; glimpse < count; glimpse += 1) {
    const hue = BOX_COLOURS[glimpse % BOX_COLOURS.length];
    const from = (number * count + glimpse) * each * 2;
    let d = "";
    for (let i = 0; i < each; i += 1) {
      const row = sampled.data[from + 2 * i] / TENTHS;
      d += `M${sampled.data[from + 2 * i + 1] / TENTHS},${row}h0`;
    }
    dots.append(draw("path", { d, stroke: hue, "stroke-width": 0.7,
      "stroke-linecap": "round", "stroke-opacity": 0.75 }));
    boxes.push(draw("polygon", { fill: "none", stroke: hue,
      "vector-effect": "non-scaling-stroke", "stroke-dasharray": glimpse < 4 ? null : "4 2" }));
  }
  svg.append(dots, ...boxes);
  return { svg, boxes };
}

// Four corners (down, right) as points (right, down), around the box.
function outline(value) {
  return [0, 1, 3, 2].map((corner) => {
    const point = [1, 0].map((axis) => value(2 * corner + axis).toFixed(1));
    return point.join(",");
  }).join(" ");
}

function boxesAt({ shape, data }, position, number) {
  const [frames, tracked, count] = shape;
  const { first, next, share } = between(position, frames);
  return Array.from({ length: count }, (_, glimpse) => outline((place) => {
    const at = (frame) => data[((frame * tracked + number) * count + glimpse) * 8 + place];
    return at(first) * (1 - share) + at(next) * share;
  }));
}

function boxesOf({ shape, data }, number) {
  const count = shape[1];
  return Array.from({ length: count }, (_, glimpse) =>
    outline((place) => data[(number * count + glimpse) * 8 + place]));
}
