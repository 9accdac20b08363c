// Image observations: the frame of this step, and a strip of those around it. Frames are decoded as they are shown.

class Film {
  // data: {name, frames: [uri], index: packed, every, width, height, tiles}; the index is of steps 0, every, 2 * every, ...
  // t: the number of a step, as the other plots count.
  constructor(data, go, t) {
    this.data = data;
    this.go = go;
    this.t = t;
    this.index = unpack(data.index);
    this.images = new Map();
    this.step = 0;
    const { width, height, tiles } = data;
    const zoom = Math.max(1, Math.floor(Math.min(176 / height, 400 / (width * tiles))));
    this.now = el("canvas", { className: "now", width: width * tiles, height, role: "img" });
    this.now.style.width = `${width * tiles * zoom}px`;
    this.now.style.aspectRatio = `${width * tiles} / ${height}`;
    this.thumb = [Math.max(24, Math.round((64 * width) / height)), 64];
    this.strip = el("canvas", { className: "strip", role: "img", ariaLabel: `Frames of ${data.name} around this step`, onclick: (event) => this.pick(event) });
    this.strip.style.height = `${this.thumb[1] + 18}px`;
    this.slider = el("input", {
      type: "range", className: "slider", min: 0, max: this.index.length - 1, value: 0, ariaLabel: `Frame of ${data.name}`,
      oninput: () => this.go(Number(this.slider.value) * data.every),
    });
    const notes = [];
    if (tiles > 1) notes.push(`${tiles} channels beside each other; the strip shows the last one.`);
    if (data.every > 1) notes.push(`Every ${data.every}th frame is in this page.`);
    if (data.shrunk) notes.push(`Shrunk from ${data.shrunk[0]} × ${data.shrunk[1]}.`);
    this.node = el("section", { className: "group" }, el("h3", {}, data.name),
      el("div", { className: "film" }, this.now, el("div", {}, this.strip, this.slider), el("p", {}, notes.join(" "))));
  }

  image(place) {
    const which = this.index[place];
    let image = this.images.get(which);
    if (!image) {
      if (this.images.size > 256) this.images.clear();
      image = new Image();
      image.addEventListener("load", () => this.draw());
      image.src = this.data.frames[which];
      this.images.set(which, image);
    }
    return image.complete && image.naturalWidth ? image : null;
  }

  show(step) {
    this.step = step;
    this.draw();
  }

  draw() {
    const { data } = this, place = clamp(Math.round(this.step / data.every), 0, this.index.length - 1);
    this.slider.value = place;
    this.slider.setAttribute("aria-valuetext", `frame ${place + 1} of ${this.index.length}`);
    const image = this.image(place);
    if (image) {
      const c = this.now.getContext("2d");
      c.imageSmoothingEnabled = false;
      c.clearRect(0, 0, this.now.width, this.now.height);
      c.drawImage(image, 0, 0);
      this.now.setAttribute("aria-label", `${data.name} at t = ${number(this.t(place * data.every))}`);
    }
    const surface = context(this.strip);
    if (!surface) return;
    const { c, width } = surface, [w, h] = this.thumb, pitch = w + 3;
    const around = Math.max(1, Math.floor(width / pitch));
    this.first = clamp(place - Math.floor(around / 2), 0, Math.max(0, this.index.length - around));
    this.pitch = pitch;
    c.imageSmoothingEnabled = w < data.width;
    c.font = "11px system-ui, sans-serif";
    c.textAlign = "center";
    c.textBaseline = "top";
    for (let k = 0; k < around && this.first + k < this.index.length; k++) {
      const frame = this.image(this.first + k);
      if (frame) c.drawImage(frame, data.width * (data.tiles - 1), 0, data.width, data.height, k * pitch, 2, w, h);
      if (this.first + k === place) {
        c.strokeStyle = colours.accent;
        c.lineWidth = 2;
        c.strokeRect(k * pitch + 1, 1, w - 2, h + 2);
      }
      const text = number(this.t((this.first + k) * data.every));
      if (c.measureText(text).width > w) continue;
      c.fillStyle = this.first + k === place ? colours.ink : colours.muted;
      c.fillText(text, k * pitch + w / 2, h + 6);
    }
  }

  pick(event) {
    const place = this.first + Math.floor(event.offsetX / this.pitch);
    if (place < this.index.length) this.go(place * this.data.every);
  }
}
