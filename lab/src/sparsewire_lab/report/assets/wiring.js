// The wires of a matrix in training, and the matrix that they represent.

function wiringViewer(box, runs) {
  const matrices = make("span");
  const { bar, current } = runViewer(box, "run", runs,
    (stage, run) => wiringStage(stage, run, matrices));
  bar.append(matrices);
  if (!reduced.matches) current.moving.play();
}

function wiringStage(stage, run, matrices) {
  const wiring = { ...run, means: unpack(run.means).data, variances: unpack(run.variances).data,
    values: unpack(run.values).data, spots: unpack(run.spots).data, starts: [0] };
  run.counts.forEach((count) => wiring.starts.push(wiring.starts.at(-1) + count));
  wiring.wires = wiring.values.length / run.step.length;
  let position = 0;
  let kind = "pass";
  const [rows, cols] = run.shape;
  const ratio = () => clamp(rows / cols, 0.3, 1.5);
  const left = sharpCanvas("wires in index space", ratio,
    (context, width, height) => paintWires(context, width, height, wiring, position));
  const right = sharpCanvas("the matrix", ratio,
    (context, width, height) => paintMatrix(context, width, height, wiring, position, kind));
  const moving = player({
    label: "training step", count: run.step.length, seconds: clamp(run.step.length / 8, 3, 12),
    describe: (frame) => wiringWords(run, frame),
    show: (to) => {
      position = to;
      left.redraw();
      right.redraw();
      const words = wiringWords(run, Math.round(to));
      left.canvas.setAttribute("aria-label", `wires in index space, ${words}`);
    },
  });
  keysFor(left.canvas, moving);
  const kinds = { pass: "matrix of one pass", rounded: "rounded matrix" };
  matrices.replaceChildren(choices("which matrix", kinds, kind, (to) => {
    kind = to;
    right.redraw();
  }));
  stage.replaceChildren(
    make("div", { class: "pair twin" },
      panel("wires (out ↓ in →)", left.canvas),
      panel("weights (out ↓ in →)", right.canvas)),
    moving.root,
    signs(),
  );
  moving.go(0);
  const leave = () => {
    moving.stop();
    repaint.delete(left.redraw);
    repaint.delete(right.redraw);
  };
  return { moving, leave };
}

function panel(caption, canvas) {
  return make("figure", { class: "panel" }, make("figcaption", {}, caption), canvas);
}

function wiringWords(run, frame) {
  const error = run.error[frame];
  const step = `step ${run.step[frame].toLocaleString("en")}`;
  return error === null ? step : `${step}, error ${words(error)}`;
}

function signs() {
  const sign = (shape, text) => make("span", { class: "key" },
    draw("svg", { width: 22, height: 22, "aria-hidden": "true" }, shape), text);
  return make("div", { class: "bar signs" },
    sign(draw("circle", { cx: 11, cy: 11, r: 4.5, fill: "var(--wire)" }), "a wire: its mean"),
    sign(draw("circle", { cx: 11, cy: 11, r: 10, fill: "var(--wire)", opacity: 0.3 }),
      "one standard deviation"),
    sign(draw("path", { d: "M11,5l6,6l-6,6l-6,-6z", fill: "var(--sample)" }),
      "integer tuples sampled in one pass"));
}

// Between two frames, wires are interpolated linearly.
function wireAt(wiring, position, wire) {
  const { first, next, share } = between(position, wiring.step.length);
  const mix = (data, width, axis) => {
    const at = (frame) => data[(frame * wiring.wires + wire) * width + axis];
    return at(first) * (1 - share) + at(next) * share;
  };
  return {
    mean: [mix(wiring.means, 2, 0), mix(wiring.means, 2, 1)],
    variance: [mix(wiring.variances, 2, 0), mix(wiring.variances, 2, 1)],
    value: mix(wiring.values, 1, 0),
  };
}

function paintWires(context, width, height, wiring, position) {
  const [rows, cols] = wiring.shape;
  const [right, down] = [width / cols, height / rows];
  const cell = Math.min(right, down);
  const x = (column) => (column + 0.5) * right;
  const y = (row) => (row + 0.5) * down;
  context.fillStyle = colour("page");
  context.fillRect(0, 0, width, height);
  const frame = Math.round(position);
  context.fillStyle = colour("sample");
  const half = clamp(0.32 * cell, 1, 6);
  for (let i = wiring.starts[frame]; i < wiring.starts[frame + 1]; i += 1) {
    const [px, py] = [x(wiring.spots[2 * i + 1]), y(wiring.spots[2 * i])];
    context.beginPath();
    context.moveTo(px, py - half);
    context.lineTo(px + half, py);
    context.lineTo(px, py + half);
    context.lineTo(px - half, py);
    context.fill();
  }
  context.fillStyle = colour("wire");
  for (let wire = 0; wire < wiring.wires; wire += 1) {
    const { mean, variance } = wireAt(wiring, position, wire);
    const [px, py] = [x(mean[1]), y(mean[0])];
    context.globalAlpha = 0.16;
    context.beginPath();
    context.ellipse(px, py, Math.sqrt(variance[1]) * right, Math.sqrt(variance[0]) * down, 0, 0, 7);
    context.fill();
    context.globalAlpha = 1;
    context.beginPath();
    context.arc(px, py, clamp(0.34 * cell, 1.6, 6.5), 0, 7);
    context.fill();
  }
}

// Each wire's value at its nearest index.
function roundedWeights(wiring, position) {
  const [rows, cols] = wiring.shape;
  const weights = new Float32Array(rows * cols);
  for (let wire = 0; wire < wiring.wires; wire += 1) {
    const { mean, value } = wireAt(wiring, position, wire);
    const row = clamp(Math.round(mean[0]), 0, rows - 1);
    weights[row * cols + clamp(Math.round(mean[1]), 0, cols - 1)] += value;
  }
  return weights;
}

// Each wire's value spread over the integer tuples of one pass, in proportion to its density.
function passWeights(wiring, position) {
  const [rows, cols] = wiring.shape;
  const weights = new Float32Array(rows * cols);
  const frame = Math.round(position);
  const from = wiring.starts[frame];
  const count = wiring.starts[frame + 1] - from;
  const shares = new Float64Array(count);
  for (let wire = 0; wire < wiring.wires; wire += 1) {
    const { mean, variance, value } = wireAt(wiring, position, wire);
    let most = -Infinity;
    for (let i = 0; i < count; i += 1) {
      const down = wiring.spots[2 * (from + i)] - mean[0];
      const right = wiring.spots[2 * (from + i) + 1] - mean[1];
      shares[i] = -0.5 * (down * down / variance[0] + right * right / variance[1]);
      most = Math.max(most, shares[i]);
    }
    let sum = 0;
    for (let i = 0; i < count; i += 1) sum += shares[i] = Math.exp(shares[i] - most);
    for (let i = 0; i < count; i += 1) {
      const place = wiring.spots[2 * (from + i)] * cols + wiring.spots[2 * (from + i) + 1];
      weights[place] += (value * shares[i]) / sum;
    }
  }
  return weights;
}

function paintMatrix(context, width, height, wiring, position, kind) {
  const [rows, cols] = wiring.shape;
  const weights = (kind === "rounded" ? roundedWeights : passWeights)(wiring, position);
  const [right, down] = [width / cols, height / rows];
  context.fillStyle = colour("page");
  context.fillRect(0, 0, width, height);
  if (Math.min(right, down) > 5) paintGrid(context, width, height, rows, cols);
  const [plus, minus] = [colour("cell"), colour("cell-minus")];
  weights.forEach((weight, place) => {
    if (Math.abs(weight) < 0.004) return;
    context.fillStyle = weight > 0 ? plus : minus;
    context.globalAlpha = clamp(Math.abs(weight), 0.06, 1);
    context.fillRect((place % cols) * right, Math.floor(place / cols) * down, right, down);
  });
  context.globalAlpha = 1;
}

function paintGrid(context, width, height, rows, cols) {
  context.strokeStyle = colour("grid");
  context.lineWidth = 1;
  context.beginPath();
  for (let row = 1; row < rows; row += 1) {
    context.moveTo(0, (row * height) / rows);
    context.lineTo(width, (row * height) / rows);
  }
  for (let col = 1; col < cols; col += 1) {
    context.moveTo((col * width) / cols, 0);
    context.lineTo((col * width) / cols, height);
  }
  context.stroke();
}
