// A slider with a play button, over frames that are shown one after the other.

// show(position) draws; positions between two whole numbers are between two frames.
function player({ label, count, describe, show, seconds, start = 0 }) {
  let position = start;
  let playing = false;
  let before = 0;
  const slider = make("input", { type: "range", min: 0, max: Math.max(count - 1, 0), step: 1,
    "aria-label": label });
  const button = make("button", { type: "button", class: "play", onclick: () => toggle() });
  const output = make("output", {});
  const root = make("div", { class: "player" }, button, slider, output);

  const go = (to) => {
    position = clamp(to, 0, count - 1);
    const frame = Math.round(position);
    slider.value = frame;
    slider.setAttribute("aria-valuetext", describe(frame));
    output.textContent = describe(frame);
    show(position);
  };
  const stop = () => {
    playing = false;
    button.textContent = "▶ play";
  };
  const play = () => {
    if (count < 2) return;
    if (position >= count - 1) position = 0;
    playing = true;
    before = performance.now();
    button.textContent = "❚❚ pause";
    requestAnimationFrame(tick);
  };
  const toggle = () => (playing ? stop() : play());
  const tick = (now) => {
    if (!playing) return;
    const passed = ((now - before) / 1000) * ((count - 1) / seconds);
    // Those who wish for less motion see frames, and nothing between them.
    if (!reduced.matches || passed >= 1) {
      before = now;
      go(reduced.matches ? Math.round(position) + 1 : position + passed);
    }
    if (position >= count - 1) stop();
    else requestAnimationFrame(tick);
  };

  slider.addEventListener("input", () => {
    stop();
    go(Number(slider.value));
  });
  slider.addEventListener("keydown", (event) => {
    if (event.key !== " ") return;
    event.preventDefault();
    toggle();
  });
  stop();
  root.hidden = count < 2;
  return { root, go, play, stop, toggle, now: () => position };
}

// Keys on the picture itself: arrows move, space plays.
function keysFor(node, moving) {
  node.tabIndex = 0;
  node.addEventListener("keydown", (event) => {
    if (event.target !== node) return;
    const moves = { ArrowLeft: -1, ArrowRight: 1, ArrowDown: -1, ArrowUp: 1 };
    if (event.key in moves) moving.go(Math.round(moving.now()) + moves[event.key]);
    else if (event.key === " ") moving.toggle();
    else return;
    if (event.key !== " ") moving.stop();
    event.preventDefault();
  });
}

// The two frames around a position, and how far it is between them.
function between(position, count) {
  const first = clamp(Math.floor(position), 0, count - 1);
  return { first, next: Math.min(first + 1, count - 1), share: position - first };
}
