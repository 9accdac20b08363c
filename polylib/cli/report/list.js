// The list of episodes: sortable, and only the rows that are in sight are in the page.

const ROW = 28;

class EpisodeList {
  // source: {name, episodes: {id, policy, agent, length, return, end, notes, agrees, key}}; key: of its data, or null.
  constructor(source, choose) {
    this.source = source;
    this.choose = choose;
    this.chosen = -1;
    this.range = null;
    this.text = "";
    const e = source.episodes;
    this.columns = [
      ["id", "episode", (i) => e.id[i], (a, b) => compareIds(e.id[a], e.id[b])],
      ["return", "return", (i) => number(e.return[i]), (a, b) => (e.return[a] ?? -Infinity) - (e.return[b] ?? -Infinity)],
      ["length", "length", (i) => number(e.length[i]), (a, b) => e.length[a] - e.length[b]],
    ];
    if (source.agents) this.columns.splice(1, 0, ["agent", "agent", (i) => number(e.agent[i]), (a, b) => e.agent[a] - e.agent[b]]);
    if (source.policies > 1) this.columns.splice(1, 0, ["policy", "policy", (i) => e.policy[i], (a, b) => compareIds(e.policy[a], e.policy[b])]);
    if (e.agrees) {
      this.columns.push(["agrees", "agrees", (i) => percent(e.agrees[i]), (a, b) => (e.agrees[a] ?? -1) - (e.agrees[b] ?? -1)]);
    }
    this.sorting = { name: null, descending: false };
    this.order = e.id.map((_, i) => i);
    this.build();
    this.sort(null);
  }

  build() {
    const heads = this.columns.map(([name, text]) =>
      el("th", { scope: "col" }, el("button", { type: "button", title: `Sort by ${text}`, onclick: () => this.sort(name) }, text)));
    this.heads = Object.fromEntries(this.columns.map(([name], i) => [name, heads[i]]));
    const wide = { id: "", policy: "66px", agent: "54px", return: "92px", length: "66px", agrees: "66px" };
    this.body = el("tbody");
    this.table = el("table", { role: "grid", tabIndex: 0, onkeydown: (event) => this.key(event) },
      el("caption", { className: "vh" }, `Episodes of ${this.source.name}`),
      el("colgroup", {}, this.columns.map(([name]) => { const col = el("col"); col.style.width = wide[name]; return col; }), noteColumn()),
      el("thead", {}, el("tr", {}, heads, el("th", { scope: "col" }, el("span", { className: "vh" }, "notes")))),
      this.body);
    this.rows = el("div", { className: "rows", onscroll: () => this.show() }, this.table);
    this.count = el("h2");
    this.filter = el("button", { type: "button", className: "chip", hidden: true, title: "Show all episodes", onclick: () => this.within(null) });
    const search = el("input", {
      type: "search", placeholder: "Find an id", ariaLabel: "Find an episode by its id",
      oninput: () => { this.text = search.value.trim(); this.select(); },
    });
    this.node = el("section", { className: "list", ariaLabel: "Episodes" },
      el("div", { className: "tools" }, this.count, this.filter, search), this.rows);
    new ResizeObserver(() => this.show()).observe(this.rows);
  }

  sort(name) {
    const was = this.sorting;
    if (name !== null) this.sorting = { name, descending: was.name === name ? !was.descending : !["id", "policy", "agent"].includes(name) };
    for (const [key, head] of Object.entries(this.heads)) {
      if (key === this.sorting.name) head.setAttribute("aria-sort", this.sorting.descending ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    }
    this.rows.scrollTop = 0;
    this.select();
  }

  // range: {low, high, holds(return)}, or null for all.
  within(range) {
    this.range = range;
    this.filter.hidden = range === null;
    if (range) this.filter.textContent = `return ${number(range.low)} to ${number(range.high)} ✕`;
    this.select();
  }

  select() {
    const e = this.source.episodes, found = [];
    for (let i = 0; i < e.id.length; i++) {
      if (this.text && !e.id[i].includes(this.text)) continue;
      if (this.range && !this.range.holds(e.return[i])) continue;
      found.push(i);
    }
    const column = this.columns.find(([name]) => name === this.sorting.name);
    if (column) found.sort((a, b) => (this.sorting.descending ? column[3](b, a) : column[3](a, b)) || a - b);
    this.order = found;
    const letter = this.source.letter ? `${this.source.letter} · ` : "";
    this.count.textContent = letter + (found.length === e.id.length ? plural(found.length, "episode") : `${found.length} of ${plural(e.id.length, "episode")}`);
    this.show(true);
  }

  show(force) {
    const top = Math.max(0, Math.floor(this.rows.scrollTop / ROW) - 8);
    const bottom = Math.min(this.order.length, top + Math.ceil((this.rows.clientHeight || 600) / ROW) + 16);
    if (!force && top === this.top && bottom === this.bottom) return;
    this.top = top;
    this.bottom = bottom;
    const spare = (rows) => { const row = el("tr", { ariaHidden: "true" }); row.style.height = `${rows * ROW}px`; return row; };
    const rows = this.order.slice(top, bottom).map((i, k) => this.row(i, top + k));
    if (!this.order.length) rows.push(el("tr", { className: "empty" }, el("td", { colSpan: this.columns.length + 1 }, "No episode like that.")));
    this.body.replaceChildren(spare(top), ...rows, spare(this.order.length - bottom));
    this.table.setAttribute("aria-rowcount", String(this.order.length));
  }

  row(i, place) {
    const e = this.source.episodes, notes = e.notes[i];
    const row = el("tr", { className: e.key[i] === null ? "row thin" : "row", onclick: () => this.choose(i) },
      this.columns.map(([name, , text], k) => el("td", { title: k ? "" : text(i) }, text(i))),
      el("td", { className: "note", title: notes.join("; ") }, notes.length ? "!" : "", notes.length ? el("span", { className: "vh" }, notes.join("; ")) : null));
    row.setAttribute("aria-rowindex", String(place + 1));
    row.setAttribute("aria-selected", String(i === this.chosen));
    row.dataset.id = e.id[i];
    return row;
  }

  mark(i) {
    this.chosen = i;
    const place = this.order.indexOf(i), head = 30;
    if (place >= 0) {
      const room = Math.max(1, Math.floor((this.rows.clientHeight - head) / ROW)), first = Math.ceil(this.rows.scrollTop / ROW);
      if (place < first) this.rows.scrollTop = place * ROW;
      else if (place >= first + room) this.rows.scrollTop = (place + 1 - room) * ROW;
    }
    this.show(true);
  }

  // The episode `by` places further down; the same at the ends.
  move(by) {
    const place = this.order.indexOf(this.chosen);
    const next = this.order[clamp(place < 0 ? 0 : place + by, 0, this.order.length - 1)];
    if (next !== undefined && next !== this.chosen) this.choose(next);
  }

  key(event) {
    const by = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10 }[event.key];
    if (!by) return;
    event.preventDefault();
    this.move(by);
  }
}

const noteColumn = () => { const col = el("col"); col.style.width = "26px"; return col; };

const compareIds = (a, b) => {
  const one = a.split("~"), other = b.split("~");
  const [x, y] = [one[0], other[0]];
  if (/^-?\d+$/.test(x) && /^-?\d+$/.test(y)) {
    const [p, q] = [BigInt(x), BigInt(y)];
    if (p !== q) return p < q ? -1 : 1;
  } else if (x !== y) return x < y ? -1 : 1;
  return Number(one[1] || 1) - Number(other[1] || 1);
};
