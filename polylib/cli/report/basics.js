// Elements, numbers, arrays. Text from the traces gets into the page as text only, never as markup.

const el = (tag, properties = {}, ...children) => {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name in node && name !== "list") node[name] = value;
    else node.setAttribute(name, value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
};

// Shapes of buttons, drawn so that no font has to have them.
const ICONS = {
  first: "M3 3h2v10H3zM13 3v10L6 8z", back: "M11 3v10L4 8z", play: "M4 2.5v11L13 8z", pause: "M4 3h3v10H4zM9 3h3v10H9z",
  on: "M5 3v10l7-5z", last: "M11 3h2v10h-2zM3 3v10l7-5z", in: "M7 3h2v4h4v2H9v4H7V9H3V7h4z", out: "M3 7h10v2H3z",
};
const icon = (name) => {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", "0 0 16 16");
  svg.setAttribute("aria-hidden", "true");
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  path.setAttribute("d", ICONS[name]);
  svg.append(path);
  return svg;
};

// A path that may break after its slashes.
const breakable = (path) => path.split("/").flatMap((part, i) => (i ? ["/", el("wbr"), part] : [part]));

const MINUS = "−";

const number = (value, digits = 4) => {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : MINUS + "∞";
  const size = Math.abs(value);
  let text;
  if (Number.isInteger(value) && size < 1e7) text = String(size);
  else if (size >= 1e6 || (size < 1e-3 && size > 0)) text = size.toExponential(2).replace("e+", "e");
  else text = String(Number(size.toPrecision(digits)));
  return (value < 0 ? MINUS : "") + text;
};

// Shares that aren't nothing or all aren't called so: an action of 200 that was drawn isn't impossible.
const percent = (share) => {
  if (share === null || share === undefined) return "–";
  const whole = Math.round(100 * share);
  if (whole === 0 && share > 0) return "< 1 %";
  return whole === 100 && share < 1 - 1e-6 ? "> 99 %" : `${whole} %`;
};

const plural = (count, word) => `${number(count)} ${word}${count === 1 ? "" : "s"}`;

const ARRAYS = { f4: Float32Array, f8: Float64Array, i4: Int32Array, u1: Uint8Array };

// {kind: base64 of little-endian numbers} -> typed array.
const unpack = (packed) => {
  const [kind, text] = Object.entries(packed)[0];
  const raw = atob(text);
  const bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  return new ARRAYS[kind](bytes.buffer);
};

const readData = (id) => {
  const node = document.getElementById(id);
  return node ? JSON.parse(node.textContent) : null;
};

const colours = {};
const readColours = () => {
  const style = getComputedStyle(document.documentElement);
  for (const name of ["surface", "ink", "muted", "line", "accent", "second", "warn", "select"]) {
    colours[name] = style.getPropertyValue(`--${name}`).trim();
  }
};

// A canvas' context in CSS pixels, cleared; null while the canvas has no size.
const context = (canvas) => {
  const { clientWidth: width, clientHeight: height } = canvas;
  if (!width || !height) return null;
  const scale = window.devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
  }
  const c = canvas.getContext("2d");
  c.setTransform(scale, 0, 0, scale, 0, 0);
  c.clearRect(0, 0, width, height);
  return { c, width, height };
};

const extent = (arrays) => {
  let low = Infinity, high = -Infinity;
  for (const values of arrays) {
    for (let i = 0; i < values.length; i++) {
      const v = values[i];
      if (v < low && v > -Infinity) low = v;
      if (v > high && v < Infinity) high = v;
    }
  }
  return low <= high ? [low, high] : [0, 0];
};

const clamp = (value, low, high) => Math.min(high, Math.max(low, value));
