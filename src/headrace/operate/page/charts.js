// Charts on one time axis: lines, or stacked areas, with restarts and rollbacks as marks across all of them.

import { bytes, clock, count, el, millis, svg } from "./words.js";

const HEIGHT = 96;
const LEFT = 52;
const RIGHT = 10;
const PARTS = ["flush", "changes", "changelog", "store", "snapshot"];

const CHARTS = [
  {
    title: "messages per second",
    say: count,
    lines: [["in", "in", (p) => p.in], ["out", "out", (p) => p.out]],
  },
  {
    title: "latency, from the arrival of a message",
    say: millis,
    lines: [
      ["p50", "half sent", (p) => p.p50],
      ["p99", "99 % sent", (p) => p.p99],
      ["committed", "99 % committed", (p) => p.committed],
    ],
  },
  {
    title: "a checkpoint takes",
    say: millis,
    stacked: true,
    lines: PARTS.map((part) => [part, part, (p) => p.parts?.[part]]),
  },
  {
    title: "state on disk",
    say: bytes,
    lines: [["state", "state", (p) => p.state], ["early", "early frames", (p) => p.early]],
  },
];
const SPANS = [["5 min", 300e3], ["15 min", 900e3], ["1 h", 3600e3]];

export class Charts {
  constructor(place, nav) {
    this.points = [];
    this.span = SPANS[0][1];
    this.at = null;
    this.charts = CHARTS.map((chart) => {
      const legend = el("p", { class: "values" });
      const drawing = svg("svg", { height: HEIGHT + 18, role: "img", "aria-label": chart.title });
      place.append(el("figure", {}, el("figcaption", {}, chart.title), legend, drawing));
      drawing.addEventListener("pointermove", (event) => this.point(event, drawing));
      drawing.addEventListener("pointerleave", () => this.point(null, drawing));
      return { ...chart, legend, drawing };
    });
    for (const [words, span] of SPANS) {
      const button = el("button", { type: "button", "aria-pressed": span === this.span }, words);
      button.addEventListener("click", () => {
        this.span = span;
        for (const other of nav.children) other.setAttribute("aria-pressed", other === button);
        this.draw();
      });
      button.setAttribute("aria-pressed", span === this.span);
      nav.append(button);
    }
    addEventListener("resize", () => this.draw());
  }

  replace(points) {
    this.points = points;
    this.draw();
  }

  add(point) {
    if (!point || (this.points.length && point.t <= this.points.at(-1).t)) return;
    this.points.push(point);
    const oldest = point.t - 3600e3;
    while (this.points.length && this.points[0].t < oldest) this.points.shift();
    this.draw();
  }

  point(event, drawing) {
    if (event === null) this.at = null;
    else {
      const x = event.clientX - drawing.getBoundingClientRect().left;
      this.at = this.from + ((x - LEFT) / Math.max(1, this.width - LEFT - RIGHT)) * (this.to - this.from);
    }
    this.draw();
  }

  draw() {
    this.to = this.points.at(-1)?.t ?? Date.now();
    this.from = Math.max(this.to - this.span, Math.min(this.points[0]?.t ?? this.to, this.to - 60e3));
    // One more point on the left, so that lines reach the edge.
    const first = Math.max(0, this.points.findIndex((p) => p.t >= this.from) - 1);
    const shown = this.points.slice(first);
    let chosen = shown.at(-1);
    if (this.at !== null && shown.length) {
      chosen = shown.reduce((best, p) => (Math.abs(p.t - this.at) < Math.abs(best.t - this.at) ? p : best));
    }
    for (const chart of this.charts) this.drawOne(chart, shown, chosen);
  }

  drawOne(chart, shown, chosen) {
    this.width = chart.drawing.clientWidth || chart.drawing.getBoundingClientRect().width;
    if (!this.width) return;
    const x = (t) => LEFT + (Math.max(0, t - this.from) / (this.to - this.from || 1)) * (this.width - LEFT - RIGHT);
    const tops = shown.map((p) => {
      const values = chart.lines.map(([, , of]) => of(p) ?? 0);
      return chart.stacked ? values.reduce((a, b) => a + b, 0) : Math.max(...values);
    });
    const top = nice(Math.max(...tops, 0), chart.say === bytes);
    const y = (value) => HEIGHT - (value / top) * (HEIGHT - 8);
    const marks = [];
    for (const value of [0, top / 2, top]) {
      marks.push(svg("line", { class: "grid", x1: LEFT, x2: this.width - RIGHT, y1: y(value), y2: y(value) }));
      marks.push(svg("text", { class: "axis", x: LEFT - 6, y: y(value) + 3.5, "text-anchor": "end" }, chart.say(value)));
    }
    for (let part = 0; part <= 2; part += 1) {
      const t = this.from + ((this.to - this.from) * part) / 2;
      const place = ["start", "middle", "end"][part];
      marks.push(svg("text", { class: "axis", x: x(t), y: HEIGHT + 14, "text-anchor": place }, clock(t)));
    }
    marks.push(...(chart.stacked ? this.areas(chart, shown, x, y) : this.lines(chart, shown, x, y)));
    for (const p of shown) {
      if (p.t < this.from) continue;
      for (const kind of ["restarts", "rollbacks"]) {
        if (p[kind]) {
          const line = svg("line", { class: `mark ${kind}`, x1: x(p.t), x2: x(p.t), y1: 0, y2: HEIGHT });
          line.append(svg("title", {}, `${p[kind]} ${kind} at ${clock(p.t)}`));
          marks.push(line);
        }
      }
    }
    if (this.at !== null && chosen) {
      marks.push(svg("line", { class: "cross", x1: x(chosen.t), x2: x(chosen.t), y1: 0, y2: HEIGHT }));
    }
    chart.drawing.replaceChildren(...marks);
    const values = chart.lines
      .filter(([, , of]) => shown.some((p) => of(p) !== undefined))
      .map(([id, words, of]) =>
        el("span", {}, el("span", { class: `swatch ${id}` }), `${words} `, el("b", {}, chosen ? chart.say(of(chosen)) : "–")),
      );
    if (this.at !== null && chosen) values.push(el("span", { class: "when" }, clock(chosen.t)));
    const events = ["restarts", "rollbacks"].filter((kind) => shown.some((p) => p[kind] && p.t >= this.from));
    values.push(...events.map((kind) => el("span", {}, el("span", { class: `swatch ${kind}` }), kind)));
    chart.legend.replaceChildren(...values);
  }

  lines(chart, shown, x, y) {
    return chart.lines.map(([id, , of]) => {
      let d = "";
      let before = null;
      for (const p of shown) {
        const value = of(p);
        if (value === undefined) {
          before = null;
          continue;
        }
        // A gap is where nothing was measured: not across it.
        d += `${before !== null && p.t - before < 30e3 ? "L" : "M"}${x(p.t).toFixed(1)} ${y(value).toFixed(1)}`;
        before = p.t;
      }
      return svg("path", { class: `line ${id}`, d });
    });
  }

  areas(chart, shown, x, y) {
    const sums = shown.map(() => 0);
    return chart.lines.map(([id, , of]) => {
      const low = shown.map((p, n) => `${x(p.t).toFixed(1)} ${y(sums[n]).toFixed(1)}`).reverse();
      shown.forEach((p, n) => {
        sums[n] += of(p) ?? 0;
      });
      const high = shown.map((p, n) => `${x(p.t).toFixed(1)} ${y(sums[n]).toFixed(1)}`);
      return svg("path", { class: `area ${id}`, d: shown.length ? `M${[...high, ...low].join("L")}Z` : "" });
    });
  }
}

// The next round number.
const nice = (value, binary) => {
  if (!(value > 0)) return binary ? 1024 : 1;
  if (binary) return 2 ** Math.ceil(Math.log2(value));
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 4, 5, 10].find((step) => step * power >= value) * power;
};
