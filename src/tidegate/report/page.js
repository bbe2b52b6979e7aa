// Draws the charts in the palette that the style sheet gives, again when the palette or the medium changes.
"use strict";
(function () {
  const charts = JSON.parse(document.getElementById("charts").textContent);
  const roles = ["before", "after", "good", "held", "bad", "gone", "slo", "shade", "rule"];

  function palette() {
    const style = getComputedStyle(document.documentElement);
    const colours = {};
    for (const name of roles.concat(["ink", "soft", "card"])) {
      colours[name] = style.getPropertyValue("--" + name).trim();
    }
    return colours;
  }

  // Only these keys hold roles: a phase may be called "after" and must keep its name.
  function coloured(value, colours, key) {
    if (typeof value === "string") {
      return ["color", "fillcolor"].includes(key) && roles.includes(value) ? colours[value] : value;
    }
    if (Array.isArray(value)) { return value.map((each) => coloured(each, colours)); }
    if (value === null || typeof value !== "object") { return value; }
    const copy = {};
    for (const [name, each] of Object.entries(value)) { copy[name] = coloured(each, colours, name); }
    return copy;
  }

  // 1, 2, 5 of every decade from 0.1 ms to 1,000 s, written as people read times.
  function timeTicks() {
    const values = [];
    for (let power = -1; power <= 6; power++) {
      for (const digit of [1, 2, 5]) { values.push(digit * Math.pow(10, power)); }
    }
    const text = values.map((ms) => (ms < 1000 ? +ms.toPrecision(1) + " ms" : ms / 1000 + " s"));
    return { type: "log", tickmode: "array", tickvals: values, ticktext: text };
  }

  function axis(own, colours) {
    const common = { gridcolor: colours.rule, linecolor: colours.rule, zeroline: false, automargin: true, tickfont: { color: colours.soft } };
    return Object.assign(common, own.type === "log" ? timeTicks() : {}, own);
  }

  function layoutOf(spec, colours) {
    const layout = coloured(spec.layout, colours);
    for (const note of layout.annotations || []) {
      if (note.log === "x") { note.x = Math.log10(note.x); }
      if (note.log === "y") { note.y = Math.log10(note.y); }
      delete note.log;
    }
    return Object.assign({}, layout, {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: "system-ui, sans-serif", size: 12.5, color: colours.ink },
      margin: { l: 8, r: 12, t: 26, b: 8 },
      legend: { orientation: "h", x: 0, y: -0.13, yanchor: "top" },
      hoverlabel: { bgcolor: colours.card, bordercolor: colours.rule, font: { color: colours.ink } },
      xaxis: axis(layout.xaxis || {}, colours), yaxis: axis(layout.yaxis || {}, colours),
    });
  }

  function draw() {
    const colours = palette();
    for (const [key, spec] of Object.entries(charts)) {
      Plotly.react("plot-" + key, coloured(spec.data, colours), layoutOf(spec, colours), { responsive: true, displaylogo: false, displayModeBar: false });
    }
  }

  draw();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  addEventListener("beforeprint", draw);
  addEventListener("afterprint", draw);
})();
