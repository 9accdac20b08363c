// One episode: transport, film strips, lanes, infos. All of it shows the same step and the same window of steps.

class EpisodeView {
  constructor(node, told) {
    this.node = node;
    this.told = told;  // is called with the step's number when the cursor moves
    this.lanes = [];
    this.inSight = new Set();
    this.watch = new IntersectionObserver((entries) => {
      for (const { target, isIntersecting } of entries) {
        if (isIntersecting) this.inSight.add(target.lane); else this.inSight.delete(target.lane);
      }
      this.redraw();
    }, { rootMargin: "120px" });
    new ResizeObserver(() => this.redraw()).observe(node);
  }

  open(data, about) {
    this.stop();
    this.watch.disconnect();
    this.inSight.clear();
    this.data = data;
    this.rows = data.rows;
    this.times = data.t ? unpack(data.t) : null;
    // Rows before which steps are missing.
    this.gaps = this.times ? Array.from(this.times.keys()).filter((i) => i && this.times[i] !== this.times[i - 1] + 1) : [];
    this.view = { from: 0, to: this.rows, gaps: this.gaps };
    this.at = 0;
    this.films = data.images.map((image) => new Film(image, (i) => this.go(i), (i) => this.t(i)));
    this.lanes = data.groups.flatMap((group) => group.lanes.map((lane) => new Lane(lane, this.rows)));
    this.node.replaceChildren(this.about(about), this.transport(), ...this.films.map((film) => film.node), ...this.groups(), ...this.infos());
    for (const lane of this.lanes) {
      lane.node.lane = lane;
      this.watch.observe(lane.node);
      this.listen(lane.plot);
    }
    this.go(0);
  }

  blank(...text) {
    this.stop();
    this.watch.disconnect();
    this.inSight.clear();
    this.data = null;
    this.lanes = this.films = [];
    this.node.replaceChildren(el("p", { className: "blank" }, ...text));
  }

  t(i) { return this.times ? this.times[clamp(i, 0, this.rows - 1)] : this.data.start + i; }

  rowOf(t) {
    if (!this.times) return clamp(t - this.data.start, 0, this.rows - 1);
    let low = 0, high = this.rows - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.times[middle] < t) low = middle + 1; else high = middle;
    }
    return low;
  }

  about({ title, facts, notes }) {
    return el("div", { className: "about" }, el("h2", {}, title), el("p", {}, facts.join(" · ")),
      notes.length ? el("p", { className: "amiss" }, notes.join(" · ")) : null);
  }

  transport() {
    const button = (shape, label, act) => el("button", { type: "button", ariaLabel: label, title: label, onclick: act }, ICONS[shape] ? icon(shape) : shape);
    this.playing = button("play", "Play", () => this.play());
    this.slider = el("input", { type: "range", className: "steps", min: 0, max: Math.max(0, this.rows - 1), value: 0, ariaLabel: "Step", oninput: () => this.go(Number(this.slider.value)) });
    this.output = el("output");
    this.windowText = el("span", { className: "window" });
    this.axis = el("canvas", { ariaHidden: "true" });
    return el("div", { className: "transport" },
      el("div", { className: "controls" },
        button("first", "First step", () => this.go(0)), button("back", "One step back", () => this.go(this.at - 1)),
        this.playing, button("on", "One step on", () => this.go(this.at + 1)), button("last", "Last step", () => this.go(this.rows - 1)),
        el("span", { className: "gap" }),
        button("in", "Zoom in", () => this.zoom(0.5)), button("out", "Zoom out", () => this.zoom(2)), button("all", "Show all steps", () => this.zoom(Infinity)),
        this.output, this.windowText),
      el("div", { className: "slide" }, this.slider, this.axis));
  }

  groups() {
    let k = 0;
    return this.data.groups.map((group) => {
      const lanes = group.lanes.map(() => this.lanes[k++].node);
      if (!group.folded) return el("section", { className: "group" }, el("h3", {}, group.name), lanes);
      return el("details", { className: "group" }, el("summary", {}, `${group.name} (${lanes.length})`), lanes);
    });
  }

  infos() {
    const found = this.data.infos;
    if (!found) return [];
    this.infoIndex = unpack(found.index);
    this.info = el("pre", { className: "info", tabIndex: 0 });
    this.infoTitle = el("h3", {}, "infos");
    return [el("section", { className: "group" }, this.infoTitle, this.info, found.note ? el("p", { className: "muted" }, found.note) : null)];
  }

  // --- where it stands

  go(i, quiet) {
    if (!this.data) return;
    this.at = clamp(Math.round(i), 0, this.rows - 1);
    const size = this.view.to - this.view.from;
    if (this.at < this.view.from || this.at >= this.view.to) {
      const from = clamp(Math.round(this.at - size / 2), 0, this.rows - size);
      this.view = { from, to: from + size, gaps: this.gaps };
      this.redraw();
    }
    this.slider.value = this.at;
    this.slider.setAttribute("aria-valuetext", `step ${this.t(this.at)}`);
    this.output.replaceChildren("t = ", el("b", {}, number(this.t(this.at))), el("span", { className: "muted" }, ` · step ${this.at + 1} of ${this.rows}`));
    this.place();
    if (!quiet) this.told(this.t(this.at));
  }

  place() {
    cancelAnimationFrame(this.placing);
    this.placing = requestAnimationFrame(() => {
      const plot = this.lanes.length ? this.lanes[0].plot.clientWidth : 0;
      const x = ((this.at - this.view.from + 0.5) / (this.view.to - this.view.from)) * plot;
      for (const lane of this.inSight) {
        lane.plot.style.setProperty("--x", `${x.toFixed(1)}px`);
        lane.read(this.at);
      }
      for (const film of this.films) film.show(this.at);
      this.showInfo();
    });
  }

  showInfo() {
    if (!this.data || !this.data.infos) return;
    const which = this.infoIndex[this.at], text = which < 0 ? "not in this page" : this.data.infos.values[which];
    this.infoTitle.textContent = `infos at t = ${number(this.t(this.at))}`;
    if (this.shownInfo === text) return;
    this.shownInfo = text;
    this.info.textContent = which < 0 ? text : JSON.stringify(JSON.parse(text), null, 2);
  }

  // Draws what is in sight and isn't drawn yet; with `anew` all of it.
  redraw(anew) {
    if (anew) this.lanes.forEach((lane) => { lane.drawn = null; });
    cancelAnimationFrame(this.drawing);
    this.drawing = requestAnimationFrame(() => {
      if (!this.data) return;
      for (const lane of this.inSight) lane.draw(this.view);
      drawAxis(this.axis, this.view, (i) => this.t(i));
      const { from, to } = this.view;
      this.windowText.textContent = to - from < this.rows ? `showing t = ${number(this.t(from))} to ${number(this.t(to - 1))}` : "";
      this.place();
    });
  }

  look(from, to) {
    const size = clamp(Math.round(to - from), Math.min(8, this.rows), this.rows);
    const start = clamp(Math.round(from), 0, this.rows - size);
    this.view = { from: start, to: start + size, gaps: this.gaps };
    if (this.at < start || this.at >= start + size) this.go(clamp(this.at, start, start + size - 1));
    this.redraw();
  }

  zoom(by, around = this.at) {
    if (!this.data) return;
    const size = Math.min((this.view.to - this.view.from) * by, this.rows);
    const part = (around - this.view.from) / (this.view.to - this.view.from);
    this.look(around - part * size, around - part * size + size);
  }

  // --- mouse and time

  listen(plot) {
    const row = (event) => {
      const box = plot.getBoundingClientRect();
      return clamp(Math.floor(this.view.from + ((event.clientX - box.left) / box.width) * (this.view.to - this.view.from)), 0, this.rows - 1);
    };
    let start = null, shade = null;
    plot.addEventListener("pointerdown", (event) => {
      if (event.button) return;
      start = { row: row(event), x: event.offsetX };
      plot.setPointerCapture(event.pointerId);
      this.stop();
      this.go(start.row);
    });
    plot.addEventListener("pointermove", (event) => {
      if (this.timer && start === null) return;
      this.go(row(event));
      if (start === null || Math.abs(event.offsetX - start.x) < 5) return;
      if (!shade) plot.append((shade = el("div", { className: "drag" })));
      shade.style.left = `${Math.min(event.offsetX, start.x)}px`;
      shade.style.width = `${Math.abs(event.offsetX - start.x)}px`;
    });
    const end = (event) => {
      if (start !== null && shade && event.type === "pointerup") {
        const [a, b] = [start.row, row(event)].sort((p, q) => p - q);
        this.look(a, b + 1);
      }
      if (shade) shade.remove();
      start = shade = null;
    };
    plot.addEventListener("pointerup", end);
    plot.addEventListener("pointercancel", end);
    plot.addEventListener("dblclick", () => this.zoom(Infinity));
    plot.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      this.zoom(event.deltaY > 0 ? 1.25 : 0.8, row(event));
    }, { passive: false });
  }

  play() {
    if (this.timer) { this.stop(); return; }
    if (this.at >= this.rows - 1) this.go(0);
    this.playing.replaceChildren(icon("pause"));
    this.playing.setAttribute("aria-label", "Pause");
    this.timer = setInterval(() => {
      if (this.at >= this.rows - 1) this.stop(); else this.go(this.at + 1);
    }, 50);
  }

  stop() {
    if (!this.timer) return;
    clearInterval(this.timer);
    this.timer = null;
    this.playing.replaceChildren(icon("play"));
    this.playing.setAttribute("aria-label", "Play");
  }

  key(event) {
    if (!this.data) return false;
    const by = event.shiftKey ? 10 : 1;
    const act = {
      ArrowRight: () => this.go(this.at + by), ArrowLeft: () => this.go(this.at - by),
      Home: () => this.go(0), End: () => this.go(this.rows - 1), " ": () => this.play(),
      "+": () => this.zoom(0.5), "=": () => this.zoom(0.5), "-": () => this.zoom(2), 0: () => this.zoom(Infinity),
    }[event.key];
    if (act) act();
    return Boolean(act);
  }
}
