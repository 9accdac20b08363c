// The page: what was read, the distribution of returns, and a pane for each folder.

const drawHistogram = (canvas, sources, bins, marks, pointed) => {
  const surface = context(canvas);
  if (!surface) return;
  const { c, width, height } = surface;
  const { low, high, counts } = bins, n = counts[0].length, w = width / n;
  const top = Math.max(...counts.flat(), 1), floor = height - 7;
  if (pointed !== null) {
    c.fillStyle = colours.select;
    c.fillRect(pointed * w, 0, w, floor);
  }
  c.fillStyle = colours.line;
  c.fillRect(0, floor, width, 1);
  counts.forEach((row, k) => {
    c.fillStyle = k ? colours.second : colours.accent;
    row.forEach((count, i) => {
      if (!count) return;
      const h = Math.max(2, (count / top) * (floor - 2)), part = (w - 2) / counts.length;
      c.fillRect(i * w + 1 + k * part, floor - h, Math.max(1, part - (counts.length > 1 ? 0.5 : 0)), h);
    });
  });
  marks.forEach((value, k) => {
    if (value === null || value === undefined) return;
    const x = clamp(high > low ? ((value - low) / (high - low)) * width : ((n >> 1) + 0.5) * w, 4, width - 4);
    c.fillStyle = sources.length > 1 && k ? colours.second : colours.ink;
    c.beginPath();
    c.moveTo(x, floor + 1);
    c.lineTo(x - 4, height);
    c.lineTo(x + 4, height);
    c.fill();
  });
};

class Histogram {
  constructor(sources, narrow) {
    this.sources = sources;
    this.marks = sources.map(() => null);
    this.narrow = narrow;
    this.pointed = null;
    // What a part of an episode returned says little of the others.
    const all = sources.map(({ episodes: e }) => e.return.filter((value, i) => value !== null && (e.whole[i] || !e.whole.includes(true))));
    const [low, high] = extent(all), n = clamp(Math.ceil(Math.sqrt(Math.max(...all.map((x) => x.length))) * 2), 8, 40);
    this.bins = { low, high, counts: all.map(() => new Array(n).fill(0)) };
    all.forEach((values, k) => values.forEach((v) => this.bins.counts[k][this.binOf(v)]++));
    this.title = all.some((values) => values.length) ? "Returns" : "No returns";
    this.text = el("span", {}, this.title);
    this.canvas = el("canvas", {
      role: "slider", tabIndex: 0, ariaLabel: `Distribution of returns from ${number(low)} to ${number(high)}; Enter lists the episodes of a bar`,
      ariaValueMin: 0, ariaValueMax: n - 1, ariaValueNow: 0,
      onpointermove: (event) => this.say(this.binAt(event)), onpointerleave: () => this.say(null), onblur: () => this.say(null),
      onclick: (event) => this.take(this.binAt(event)), onkeydown: (event) => this.key(event),
    });
    const key = sources.length > 1 ? el("span", {}, sources.map((_, k) => el("span", { className: "key" }, el("i", { className: k ? "second" : "" }), "AB"[k]))) : null;
    this.node = el("div", { className: "histogram" }, el("div", { className: "title" }, this.text, key), this.canvas,
      el("div", { className: "ends" }, high > low ? [low, high].map((value) => el("span", {}, number(value))) : null));
    new ResizeObserver(() => this.draw()).observe(this.canvas);
  }

  binOf(value) {
    const { low, high, counts } = this.bins, n = counts[0].length;
    return high > low ? Math.min(n - 1, Math.floor(((value - low) / (high - low)) * n)) : n >> 1;
  }

  binAt(event) { return clamp(Math.floor((event.offsetX / this.canvas.clientWidth) * this.bins.counts[0].length), 0, this.bins.counts[0].length - 1); }

  edges(i) {
    const { low, high, counts } = this.bins, n = counts[0].length;
    return high > low ? [low + ((high - low) * i) / n, low + ((high - low) * (i + 1)) / n] : [low, high];
  }

  take(i) {
    const [low, high] = this.edges(i);
    const { low: least, high: most } = this.bins;
    this.narrow({ low, high, holds: (value) => value !== null && value >= least && value <= most && this.binOf(value) === i });
  }

  key(event) {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key], n = this.bins.counts[0].length;
    if (by) this.say(this.pointed === null ? (by > 0 ? 0 : n - 1) : clamp(this.pointed + by, 0, n - 1));
    else if ([" ", "Enter"].includes(event.key) && this.pointed !== null) this.take(this.pointed);
    else if (event.key === "Escape") this.narrow(null);
    else return;
    event.preventDefault();
    event.stopPropagation();  // arrows and space are of the episode elsewhere
  }

  say(i) {
    this.pointed = i;
    this.draw();
    if (i === null) { this.text.textContent = this.title; return; }
    const [a, b] = this.edges(i), counts = this.bins.counts.map((row) => row[i]);
    const words = counts.length > 1 ? counts.map((n, k) => `${"AB"[k]} ${n}`).join(", ") : plural(counts[0], "episode");
    this.text.textContent = `Returns ${number(Number(a.toPrecision(4)))} to ${number(Number(b.toPrecision(4)))}: ${words}`;
    this.canvas.setAttribute("aria-valuenow", String(i));
    this.canvas.setAttribute("aria-valuetext", this.text.textContent);
  }

  mark(k, value) { this.marks[k] = value; this.draw(); }

  draw() { drawHistogram(this.canvas, this.sources, this.bins, this.marks, this.pointed); }
}

class Pane {
  constructor(app, source, place) {
    Object.assign(this, { app, source, place });
    this.list = new EpisodeList(source, (i) => this.choose(i));
    this.body = el("section", { className: "episode", ariaLabel: "Episode" });
    this.view = new EpisodeView(this.body, (t) => app.moved(this, t));
    this.node = el("div", { className: source.policies > 1 || source.agents ? "pane wide" : "pane", onpointerdown: () => { app.active = this; } }, this.list.node, this.body);
  }

  choose(i) {
    const e = this.source.episodes;
    this.list.mark(i);
    this.app.histogram.mark(this.place, e.return[i]);
    const facts = [plural(e.length[i], "step"), `return ${number(e.return[i])}`, e.end[i] || "no end recorded"];
    if (this.source.policies > 1) facts.unshift(`policy ${e.policy[i]}`);
    if (this.source.agents) facts.push(`agent ${e.agent[i]}`);
    if (e.agrees) facts.push(`the policy agrees at ${percent(e.agrees[i])}`);
    const title = `Episode ${e.id[i]}`;
    if (e.key[i] === null) {
      this.view.blank(`${title}, ${facts.join(", ")}, is listed only: its steps aren't in this page. `, "Write one with a larger --embed, or see it with --episode.");
      return;
    }
    const data = readData(e.key[i]);
    this.view.open(data, { title, facts, notes: [...e.notes[i], ...data.notes] });
    this.app.opened();
  }

  first() {
    const e = this.source.episodes;
    const worth = (i) => [e.key[i] !== null, e.whole[i], e.return[i] ?? -Infinity];
    const better = (a, b) => { const k = a.findIndex((x, j) => x !== b[j]); return k >= 0 && a[k] > b[k]; };
    let best = 0;
    for (let i = 1; i < e.key.length; i++) if (better(worth(i), worth(best))) best = i;
    this.choose(best);
  }
}

class App {
  constructor(overview) {
    this.overview = overview;
    const { sources } = overview;
    this.histogram = new Histogram(sources, (range) => this.panes.forEach((pane) => pane.list.within(range)));
    this.panes = sources.map((source, i) => new Pane(this, source, i));
    this.active = this.panes[0];
    document.getElementById("top").append(...this.header());
    const main = document.getElementById("panes");
    main.className = sources.length > 1 ? "two" : "";
    main.append(...this.panes.map((pane) => pane.node));
    document.getElementById("foot").append(...this.help());
    this.fit();
    document.addEventListener("scroll", () => this.fit(), { passive: true });
    new ResizeObserver(() => this.fit()).observe(document.getElementById("top"));
    this.panes.forEach((pane) => pane.first());
    document.addEventListener("keydown", (event) => this.key(event));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      readColours();
      this.histogram.draw();
      this.panes.forEach((pane) => { pane.view.redraw(true); pane.view.films.forEach((film) => film.draw()); });
    });
  }

  // The list ends where the window does, however much of the page's header is above it.
  fit() {
    const above = Math.max(0, document.getElementById("top").getBoundingClientRect().bottom);
    document.documentElement.style.setProperty("--above", `${above}px`);
  }

  header() {
    const { sources, notes } = this.overview, one = sources[0];
    const warn = notes.length ? [el("ul", { className: "notes", ariaLabel: "Notes" }, notes.map((text) => el("li", {}, text)))] : [];
    const beside = this.overview.policy ? [`policy ${this.overview.policy}`] : [];
    if (sources.length > 1) {
      const rows = this.overview.comparison, half = Math.ceil(rows.length / 2);
      const titles = sources.map(({ letter, name }) => el("h1", {}, el("span", { className: "muted" }, `${letter} \u2002`), breakable(name)));
      return [el("div", {}, titles, el("p", { className: "facts" }, beside.join("")),
        el("div", { className: "tables" }, comparisonTable(rows.slice(0, half)), comparisonTable(rows.slice(half)))), this.histogram.node, ...warn];
    }
    const stats = one.stats.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value)));
    return [el("div", {}, el("h1", {}, breakable(one.name)), el("p", { className: "facts" }, [...one.facts, ...beside].join(" · ")), el("dl", { className: "stats" }, stats)), this.histogram.node, ...warn];
  }

  help() {
    const keys = [["← →", "step"], ["shift ← →", "ten steps"], ["home end", "first, last"], ["space", "play"], ["n p", "next, previous episode"], ["+ − 0", "zoom"]];
    return keys.flatMap(([key, text], i) => [i ? " \u2002 " : "", ...key.split(" ").flatMap((one) => [el("kbd", {}, one), " "]), text])
      .concat([" \u2002 drag over a plot to zoom into it, double-click to see all"]);
  }

  // The other pane follows to the same step.
  moved(pane, t) {
    for (const other of this.panes) if (other !== pane && other.view.data) other.view.go(other.view.rowOf(t), true);
  }

  // Two episodes side by side have the same scales.
  opened() {
    if (this.panes.length < 2 || this.panes.some((pane) => !pane.view.data)) return;
    const lanes = this.panes.map((pane) => new Map(pane.view.lanes.map((lane) => [lane.data.series[0].name, lane])));
    for (const [name, lane] of lanes[0]) {
      const other = lanes[1].get(name);
      if (!other || lane.data.kind !== other.data.kind) continue;
      lane.prepare();
      other.prepare();
      lane.range = other.range = [Math.min(lane.own[0], other.own[0]), Math.max(lane.own[1], other.own[1])];
      lane.describe();
      other.describe();
    }
    this.panes.forEach((pane) => pane.view.redraw(true));
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const { tagName, type } = event.target;
    if (tagName === "INPUT" && (type !== "range" || !["n", "p"].includes(event.key))) return;
    if (event.key === " " && ["BUTTON", "SUMMARY"].includes(tagName)) return;
    const episode = { n: 1, j: 1, p: -1, k: -1 }[event.key];
    if (episode) this.active.list.move(episode);
    if (episode || this.active.view.key(event)) event.preventDefault();
  }
}

const comparisonTable = (rows) => el("table", { className: "compared" },
  el("thead", {}, el("tr", {}, ["", "A", "B", "B − A"].map((text) => el("th", { scope: "col" }, text)))),
  el("tbody", {}, rows.map((row) => el("tr", {}, el("th", { scope: "row" }, row[0]), row.slice(1).map((cell) => el("td", {}, cell))))));

readColours();
const app = new App(readData("overview"));
