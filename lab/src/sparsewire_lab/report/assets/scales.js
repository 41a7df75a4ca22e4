// Axes: from values to shares of an axis and back, and round numbers along it.

// A scale works in its own units u: the value itself, or its logarithm to base ten. On a
// logarithmic one zero has a place of its own, a little below the smallest value.
function scaleOf(values, logarithmic) {
  const known = values.filter((value) => value !== null && Number.isFinite(value));
  if (!logarithmic) return linearScale(known);
  const positive = known.filter((value) => value > 0);
  if (!positive.length) return linearScale(known);
  const [low, high] = extent(positive).map(Math.log10);
  const span = Math.max(high - low, 0.3);
  const zero = positive.length < known.length ? low - 0.12 * span - 0.1 : null;
  const floor = zero === null ? low - 0.05 * span : zero - 0.05 * span;
  return {
    to: (value) => (value > 0 ? Math.log10(value) : zero ?? floor),
    full: [floor, high + 0.06 * span],
    ticks: (from, to) => logTicks(from, to, zero),
  };
}

// Not Math.min(...values): there may be more values than a call takes arguments.
function extent(values) {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) [low, high] = [Math.min(low, value), Math.max(high, value)];
  return [low, high];
}

function linearScale(known) {
  const [least, high] = known.length ? extent(known) : [0, 1];
  const low = Math.min(0, least);
  const span = high - low || 1;
  return {
    to: (value) => value,
    full: [low === 0 ? -0.015 * span : low - 0.05 * span, high + 0.04 * span],
    ticks: (from, to) => linearTicks(from, to),
  };
}

function linearTicks(from, to, count = 6) {
  const rough = (to - from) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((part) => part * power).find((part) => part >= rough);
  const ticks = [];
  for (let i = Math.ceil(from / step); i <= Math.floor(to / step + 1e-9); i += 1) {
    ticks.push({ at: i * step, text: words(Number((i * step).toPrecision(10))) });
  }
  return ticks;
}

function logTicks(from, to, zero) {
  const span = to - from;
  const every = Math.max(1, Math.ceil(span / 8));
  const digits = span > 3.2 ? [1] : span > 1.2 ? [1, 2, 5] : [1, 1.5, 2, 3, 4, 5, 6, 8];
  const ticks = zero !== null && zero >= from && zero <= to ? [{ at: zero, text: "0" }] : [];
  for (let power = Math.floor(from); power <= Math.ceil(to); power += 1) {
    if (power % every) continue;
    for (const digit of digits) {
      const at = power + Math.log10(digit);
      const clear = zero === null || at > zero + 0.04 * span;
      if (at >= from && at <= to && clear) ticks.push({ at, text: words(digit * 10 ** power) });
    }
  }
  // Zoomed in so far that no round number is left: as on a straight axis.
  if (ticks.length < 2 && span > 0) {
    return linearTicks(10 ** from, 10 ** to, 4)
      .filter((tick) => tick.at > 0)
      .map((tick) => ({ at: Math.log10(tick.at), text: tick.text }));
  }
  return ticks;
}
