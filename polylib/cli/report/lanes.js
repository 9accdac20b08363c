// A lane: a name, the values at the cursor, a plot over time, and the range of its values.

class Lane {
  // data: {name, kind: "line" | "steps" | "area" | "choices" | "flags", series: [{name, values}], ...}
  constructor(data, rows) {
    this.data = data;
    this.rows = rows;
    this.canvas = el("canvas", { role: "img" });
    this.plot = el("div", { className: "plot" }, this.canvas);
    this.ends = el("div", { className: "ends", ariaHidden: "true" });
    this.label = el("div", { className: "label" });
    this.node = el("div", { className: "lane" }, this.label, this.plot, this.ends);
    this.node.style.minHeight = this.plot.style.minHeight = `${this.height}px`;
    this.ready = false;
    this.now = [];
  }

  get height() {
    const { kind, count } = this.data;
    if (kind === "choices") return clamp(count * (count > 12 ? 7 : 17), 34, 260) + 1;
    return { area: 62, flags: 22 }[kind] || (this.data.tall ? 72 : 46);
  }

  // Decodes on first sight: an episode can have hundreds of lanes.
  prepare() {
    if (this.ready) return;
    this.ready = true;
    const { data } = this;
    for (const one of data.series) one.array = unpack(one.values);
    if (data.kind === "choices") {
      this.shades = unpack(data.shades);
      data.series[0].show = (i) => this.choiceText(i);
    }
    this.own = data.kind === "choices" || data.kind === "flags" ? [0, 0] : extent(data.series.map((one) => one.array));
    if (data.kind === "area") this.own = [Math.min(0, this.own[0]), Math.max(0, this.own[1])];
    this.range = this.range || this.own;
    this.label.replaceChildren(...data.series.map((one, k) => this.labelOf(one, k)));
    this.describe();
  }

  labelOf(one, k) {
    const now = el("span", { className: "now" });
    this.now[k] = now;
    const marked = this.data.series.length > 1 || this.data.colour === "second" || this.data.kind === "flags";
    return el("div", { className: "series" },
      marked ? el("i", { className: k || this.data.colour === "second" || this.data.kind === "flags" ? "second" : "" }) : null,
      el("span", { className: "name", title: one.name }, one.name), now);
  }

  describe() {
    const { data } = this, [low, high] = this.range;
    const flat = data.kind === "choices" || data.kind === "flags";
    this.ends.replaceChildren(...(flat ? [] : [el("span", {}, number(high, 3)), el("span", {}, low === high ? "" : number(low, 3))]));
    if (data.kind === "choices" && data.count <= 12) {
      this.ends.replaceChildren(...Array.from({ length: data.count }, (_, k) => el("span", {}, number(k + data.first))));
      this.ends.style.justifyContent = "space-around";
    } else if (data.kind === "choices") {
      this.ends.replaceChildren(...[0, data.count - 1].map((k) => el("span", {}, number(k + data.first))));
    }
    const names = data.series.map((one) => one.name).join(" and ");
    const about = flat ? "" : `, from ${number(this.own[0])} to ${number(this.own[1])}`;
    this.canvas.setAttribute("aria-label", `${names} over ${plural(this.rows, "step")}${about}`);
  }

  choiceText(i) {
    const { count, first, scores } = this.data, taken = this.data.series[0].array[i];
    const value = this.shades[i * count + taken];
    return `${number(taken + first)} (${scores ? number(value, 3) : percent(value)})`;
  }

  draw(view) {
    const { clientWidth, clientHeight } = this.canvas, { drawn } = this;
    if (drawn && drawn.view === view && drawn.width === clientWidth && drawn.height === clientHeight) return;
    this.drawn = { view, width: clientWidth, height: clientHeight };
    this.prepare();
    const { data } = this;
    if (data.kind === "choices") {
      drawChoices(this.canvas, this.shades, data.count, data.series[0].array, view, data.scores, data.colour || "accent");
    } else if (data.kind === "flags") {
      drawFlags(this.canvas, data.series[0].array, view);
    } else {
      const series = data.series.map((one, k) => ({ values: one.array, colour: k ? "second" : data.colour || "accent" }));
      drawLines(this.canvas, series.reverse(), view, this.range, data.kind);
    }
  }

  read(i) {
    this.prepare();
    this.data.series.forEach((one, k) => {
      const text = one.show ? one.show(i) : this.data.kind === "flags" ? (one.array[i] ? "yes" : "no") : number(one.array[i]);
      if (this.now[k].textContent !== text) this.now[k].textContent = text;
    });
  }
}
