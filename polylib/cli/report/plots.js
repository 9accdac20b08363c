// Plots of one episode on canvas. `view` is the window of steps that is shown: {from, to}, `to` not included.
// Where there are more steps than pixels, each pixel's column shows the smallest, the largest and the mean of its steps.

const cellOf = (view, width) => width / (view.to - view.from);

// Calls draw(x, low, high, hasNaN, mean) for every pixel's column.
const columnsOf = (values, view, width, draw) => {
  const per = (view.to - view.from) / width;
  for (let x = 0; x < width; x++) {
    const end = Math.min(view.to, Math.max(Math.floor(view.from + (x + 1) * per), view.from + 1));
    let low = Infinity, high = -Infinity, sum = 0, n = 0, bad = false;
    for (let i = Math.floor(view.from + x * per); i < end; i++) {
      const v = values[i];
      if (!(Math.abs(v) < Infinity)) { bad = true; continue; }
      if (v < low) low = v;
      if (v > high) high = v;
      sum += v;
      n++;
    }
    draw(x, low, high, bad, sum / n);
  }
};

// Lines over time. series: [{values, colour}], style "line", "steps" or "area" (from zero).
const drawLines = (canvas, series, view, range, style) => {
  const surface = context(canvas);
  if (!surface) return;
  const { c, width, height } = surface;
  const [low, high] = range;
  const pad = 4, span = high - low;
  const y = (v) => (span > 0 ? pad + (1 - (v - low) / span) * (height - 2 * pad) : height / 2);
  if (low < 0 && high > 0) {
    c.fillStyle = colours.line;
    c.fillRect(0, Math.round(y(0)), width, 1);
  }
  for (const { values, colour } of series) drawSeries(c, values, view, width, height, y, colours[colour], style);
  drawGaps(c, view, width, height);
};

// A broken line where steps are missing.
const drawGaps = (c, view, width, height) => {
  c.fillStyle = colours.warn;
  for (const row of view.gaps || []) {
    if (row <= view.from || row >= view.to) continue;
    const x = Math.round((row - view.from) * cellOf(view, width));
    for (let y = 1; y < height; y += 5) c.fillRect(x, y, 1, 3);
  }
};

const drawSeries = (c, values, view, width, height, y, colour, style) => {
  c.strokeStyle = colour;
  c.fillStyle = colour;
  c.lineWidth = 1.25;
  c.lineJoin = "round";
  const cell = cellOf(view, width);
  const zero = clamp(y(0), 0, height);
  const bad = [];
  c.beginPath();
  if (cell < 0.5) {
    const band = new Path2D(), area = style === "area";
    let open = false;
    columnsOf(values, view, Math.floor(width), (x, low, high, nan, mean) => {
      if (nan) bad.push(x);
      if (low > high) { open = false; return; }
      const top = area ? Math.min(y(high), zero) : y(high), bottom = area ? Math.max(y(low), zero) : y(low);
      band.rect(x, top, 1, Math.max(bottom - top, 1));
      if (area) return;
      if (open) c.lineTo(x + 0.5, y(mean)); else c.moveTo(x + 0.5, y(mean));
      open = true;
    });
    c.globalAlpha = area ? 0.75 : 0.4;  // one fill for all: hundreds of them would take ten times as long
    c.fill(band);
    c.globalAlpha = 1;
  } else {
    let open = false;
    const from = Math.max(0, Math.floor(view.from) - 1), to = Math.min(values.length, Math.ceil(view.to) + 1);
    for (let i = from; i < to; i++) {
      const v = values[i], left = (i - view.from) * cell, x = left + cell / 2;
      if (!(Math.abs(v) < Infinity)) { bad.push(x); open = false; continue; }
      if (style === "line") {
        if (open) c.lineTo(x, y(v)); else c.moveTo(x, y(v));
      } else {
        if (style === "area") {
          c.globalAlpha = 0.2;
          const start = Math.round(left);  // whole pixels: neighbours would show a seam
          c.fillRect(start, Math.min(y(v), zero), Math.round((i + 1 - view.from) * cell) - start, Math.abs(zero - y(v)));
          c.globalAlpha = 1;
        }
        if (open) c.lineTo(left, y(v)); else c.moveTo(left, y(v));
        c.lineTo(left + cell, y(v));
      }
      open = true;
    }
  }
  c.stroke();
  if (cell >= 7 && style === "line") {
    for (let i = Math.floor(view.from); i < Math.min(values.length, Math.ceil(view.to)); i++) {
      c.beginPath();
      c.arc((i - view.from + 0.5) * cell, y(values[i]), 1.9, 0, 7);
      c.fill();
    }
  }
  c.fillStyle = colours.warn;
  for (const x of bad) c.fillRect(Math.floor(x) - 1, height - 5, 2, 5);
};

// Shades from 0 to 1 as a canvas with a pixel for each.
const shadeImage = (shades, cells, count, colour) => {
  const canvas = new OffscreenCanvas(cells, count), c = canvas.getContext("2d");
  const image = c.createImageData(cells, count);
  const [r, g, b] = [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16));
  for (let x = 0; x < cells; x++) {
    for (let k = 0; k < count; k++) image.data.set([r, g, b, 255 * (0.04 + 0.78 * shades[x * count + k])], 4 * (k * cells + x));
  }
  c.putImageData(image, 0, 0);
  return canvas;
};

// A row for each choice; the darker, the more probable. `taken` is marked.
const drawChoices = (canvas, values, count, taken, view, scores, colour) => {
  const surface = context(canvas);
  if (!surface) return;
  const { c, width, height } = surface;
  const steps = view.to - view.from, cells = Math.max(1, Math.min(Math.ceil(steps), Math.floor(width)));
  const shades = new Float32Array(cells * count), marks = new Float32Array(cells * count);
  const whole = steps <= width;  // a cell a step
  const first = whole ? Math.floor(view.from) : view.from;
  const per = whole ? 1 : steps / cells;
  for (let x = 0; x < cells; x++) {
    const start = Math.floor(first + x * per), end = Math.max(start + 1, Math.floor(first + (x + 1) * per));
    const n = Math.min(end, taken.length) - start;
    for (let i = start; i < start + n; i++) {
      let low = 0, span = 1;
      if (scores) {
        low = Infinity;
        let high = -Infinity;
        for (let k = 0; k < count; k++) {
          const v = values[i * count + k];
          if (v > -1e8 && v < low) low = v;
          if (v > high) high = v;
        }
        span = high - low || 1;
      }
      for (let k = 0; k < count; k++) shades[x * count + k] += clamp((values[i * count + k] - low) / span, 0, 1) / n;
      marks[x * count + taken[i]] += 1 / n;
    }
  }
  const w = width / cells, h = height / count;
  c.imageSmoothingEnabled = false;
  c.drawImage(shadeImage(shades, cells, count, colours[colour]), 0, 0, width, height);
  c.fillStyle = colours.surface;
  for (let k = 1; k < count; k++) c.fillRect(0, k * h - 1, width, 1);
  if (w >= 4) for (let x = 1; x < cells; x++) c.fillRect(x * w - 0.5, 0, 0.5, height);
  c.fillStyle = colours.ink;
  for (let x = 0; x < cells; x++) {
    for (let k = 0; k < count; k++) {
      const mark = marks[x * count + k];
      if (!mark) continue;
      if (w >= 5 && h >= 8) {
        c.globalAlpha = 1;
        c.beginPath();
        c.arc((x + 0.5) * w, (k + 0.5) * h - 0.5, Math.min(3, w / 3.2), 0, 7);
        c.fill();
        c.strokeStyle = colours.surface;
        c.lineWidth = 1;
        c.stroke();
      } else {
        c.globalAlpha = 0.25 + 0.75 * mark;
        const thick = Math.max(1, Math.min(3, h / 4));
        c.fillRect(x * w, (k + 0.5) * h - thick / 2 - 0.5, Math.max(w, 1), thick);
      }
    }
  }
  c.globalAlpha = 1;
  drawGaps(c, view, width, height);
};

// A tick where a flag is 0: the steps at which a policy would do something else.
const drawFlags = (canvas, flags, view) => {
  const surface = context(canvas);
  if (!surface) return;
  const { c, width, height } = surface;
  const cell = cellOf(view, width);
  c.fillStyle = colours.second;
  if (cell >= 1) {
    for (let i = Math.floor(view.from); i < Math.min(flags.length, view.to); i++) {
      if (!flags[i]) c.fillRect((i - view.from) * cell, 3, Math.max(1, cell - 1), height - 6);
    }
    return;
  }
  const per = 1 / cell;
  for (let x = 0; x < width; x++) {
    let off = 0, n = 0;
    for (let i = Math.floor(view.from + x * per); i < Math.min(flags.length, view.from + (x + 1) * per); i++, n++) off += !flags[i];
    c.globalAlpha = off ? 0.2 + 0.8 * (off / n) : 0;
    c.fillRect(x, 3, 1, height - 6);
  }
  c.globalAlpha = 1;
};

// Numbers of steps under the slider; `t` gives the number of a row.
const drawAxis = (canvas, view, t) => {
  const surface = context(canvas);
  if (!surface) return;
  const { c, width, height } = surface;
  const steps = view.to - view.from, cell = width / steps;
  const rough = (steps * 90) / width, power = 10 ** Math.floor(Math.log10(Math.max(rough, 1)));
  const every = Math.max(1, [1, 2, 5, 10].map((k) => k * power).find((k) => k >= rough));
  c.font = "11px system-ui, sans-serif";
  c.textBaseline = "top";
  const start = t(Math.floor(view.from));
  // Steps that follow each other are counted, others looked through.
  const even = !(view.gaps && view.gaps.length), first = Math.floor(view.from);
  let free = -Infinity;
  for (let i = even ? first + (((-start % every) + every) % every) : first; i < view.to; i += even ? every : 1) {
    if (t(i) % every) continue;
    const x = (i - view.from + 0.5) * cell, text = number(t(i)), wide = c.measureText(text).width;
    c.fillStyle = colours.line;
    c.fillRect(Math.round(x), 0, 1, 5);
    const left = clamp(x - wide / 2, 0, width - wide);
    if (left < free) continue;
    c.fillStyle = colours.muted;
    c.fillText(text, left, 7);
    free = left + wide + 12;
  }
  c.fillStyle = colours.line;
  c.fillRect(0, 0, width, 1);
};
