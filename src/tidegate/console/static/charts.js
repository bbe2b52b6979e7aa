// Lines and stacked areas over the last 15 minutes, as SVG. One figure per chart; nothing is fetched.
import { word, seconds } from "./words.js";

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 600, HEIGHT = 170, LEFT = 46, BOTTOM = 18, TOP = 8;
const MARKS = "abcde";

function make(name, attributes, parent) {
  const one = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) one.setAttribute(key, value);
  parent?.append(one);
  return one;
}

// A round number at or above `value` that divides well by two.
function roundUp(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 4, 5, 6, 8, 10].map((step) => step * power).find((step) => step >= value * 0.999);
}

export class Chart {
  // columns: [{name, word}]; format: value → text; limit: seconds or null; top: fixed end of the axis, least: its lowest end.
  constructor(parent, title, columns, format, { stack = false, limit = null, top = null, least = 1 } = {}) {
    Object.assign(this, { title, columns, format, stack, limit, top, least, at: null });
    this.figure = document.createElement("figure");
    this.caption = document.createElement("figcaption");
    this.svg = make("svg", { class: "plot", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", tabindex: "0" });
    this.said = document.createElement("output");
    this.figure.append(this.caption, this.svg);
    parent.append(this.figure);
    this.svg.addEventListener("pointermove", (event) => this.point(event));
    this.svg.addEventListener("pointerleave", () => this.look(null));
    this.svg.addEventListener("blur", () => this.look(null));
    this.svg.addEventListener("keydown", (event) => this.key(event));
  }

  words() {
    this.caption.replaceChildren(Object.assign(document.createElement("b"), { textContent: word(this.title) }));
    this.columns.forEach((column, number) => {
      const key = Object.assign(document.createElement("span"), { className: "key" });
      key.append(Object.assign(document.createElement("i"), { className: "series-" + MARKS[number] }), word(column.word));
      this.caption.append(key);
    });
    this.caption.append(this.said);
  }

  // `history` by column, `points` kept at most, `beat` seconds between points.
  draw(history, points, beat) {
    Object.assign(this, { history, points, beat });
    const series = this.columns.map((column) => history[column.name]);
    this.size = series[0].length;
    const sums = this.stack ? stacked(series) : series;
    let most = this.limit ?? 0;
    for (const column of sums) for (const value of column) if (value > most) most = value;
    const top = this.top ?? roundUp(Math.max(most * 1.05, this.least));
    this.y = (value) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - Math.min(value, top) / top);
    this.x = (number) => WIDTH - (WIDTH - LEFT) * (this.size - 1 - number) / (points - 1);
    this.svg.replaceChildren();
    this.axes(top);
    if (this.stack) for (let number = sums.length - 1; number >= 0; number--) this.area(sums[number], number);
    else sums.forEach((column, number) => make("path", { class: `line series-${MARKS[number]}`, d: this.path(column), "vector-effect": "non-scaling-stroke" }, this.svg));
    if (this.limit !== null) make("line", { class: "limit", x1: LEFT, x2: WIDTH, y1: this.y(this.limit), y2: this.y(this.limit), "vector-effect": "non-scaling-stroke" }, this.svg);
    this.cross = make("line", { class: "cross", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" }, this.svg);
    this.svg.setAttribute("aria-label", word("chart", word(this.title), this.read(this.size - 1)));
    if (this.at !== null) this.look(this.at);
  }

  axes(top) {
    const scale = WIDTH / Math.max(this.svg.clientWidth, 1);
    for (const part of [0, 0.5, 1]) {
      const y = this.y(top * part);
      make("line", { class: "grid", x1: LEFT, x2: WIDTH, y1: y, y2: y, "vector-effect": "non-scaling-stroke" }, this.svg);
      this.label(LEFT - 6 * scale, y + 4, this.format(top * part), "end", scale);
    }
    const minutes = Math.round(this.points * this.beat / 60);
    for (const ago of [minutes, 2 * minutes / 3, minutes / 3, 0]) {
      this.label(WIDTH - (WIDTH - LEFT) * ago / minutes, HEIGHT - 3, ago ? `−${ago} min` : "0", ago === minutes ? "start" : ago ? "middle" : "end", scale);
    }
  }

  // The picture is stretched to its place; letters are not.
  label(x, y, text, anchor, scale) {
    make("text", { transform: `translate(${x} ${y}) scale(${scale} 1)`, "text-anchor": anchor }, this.svg).textContent = text;
  }

  path(column) {
    let path = "", open = false;
    column.forEach((value, number) => {
      if (value === null) { open = false; return; }
      path += `${open ? "L" : "M"}${this.x(number).toFixed(1)} ${this.y(value).toFixed(1)}`;
      open = true;
    });
    return path;
  }

  area(column, number) {
    if (!column.length) return;
    const points = column.map((value, index) => `${this.x(index).toFixed(1)} ${this.y(value).toFixed(1)}`).join("L");
    make("path", { class: `area series-${MARKS[number]}`, d: `M${this.x(0).toFixed(1)} ${this.y(0)}L${points}L${WIDTH} ${this.y(0)}Z` }, this.svg);
  }

  read(number) {
    return this.columns.map((column) => `${word(column.word)} ${this.format(this.history[column.name][number] ?? null)}`).join(", ");
  }

  look(number) {
    this.at = number;
    if (!this.cross) return;
    this.cross.setAttribute("visibility", number === null ? "hidden" : "visible");
    if (number === null) { this.said.textContent = ""; return; }
    this.cross.setAttribute("x1", this.x(number));
    this.cross.setAttribute("x2", this.x(number));
    const ago = (this.size - 1 - number) * this.beat;
    this.said.textContent = `${word("seconds_ago", ago >= 60 ? Math.round(ago / 60) + " min" : seconds(ago))}: ${this.read(number)}`;
  }

  point(event) {
    const box = this.svg.getBoundingClientRect();
    const x = (event.clientX - box.left) / box.width * WIDTH;
    const number = Math.round(this.size - 1 - (WIDTH - x) / (WIDTH - LEFT) * (this.points - 1));
    this.look(number >= 0 && number < this.size ? number : null);
  }

  key(event) {
    const step = { ArrowLeft: -10, ArrowRight: 10, Home: -1e6, End: 1e6 }[event.key];
    if (event.key === "Escape") this.look(null);
    if (!step || !this.size) return;
    event.preventDefault();
    this.look(Math.max(0, Math.min(this.size - 1, (this.at ?? this.size - 1) + step)));
  }
}

function stacked(series) {
  const sums = [];
  series.forEach((column, number) => sums.push(column.map((value, index) => (value ?? 0) + (number ? sums[number - 1][index] : 0))));
  return sums;
}
