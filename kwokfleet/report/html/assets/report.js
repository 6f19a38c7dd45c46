// The pointer's values. Everything is drawn without this script; it reads the numbers back from the lines.
"use strict";
(() => {
  const figures = [...document.querySelectorAll("figure[data-kind]")];
  const read = (path) => {
    const steps = path.includes("V"), points = [];
    let x = 0;
    for (const part of path.replace(/h0/g, "").replace(/M/g, " ").replace(/([HV])/g, " $1").trim().split(/\s+/)) {
      if (part[0] === "H") x = +part.slice(1);
      else if (part[0] === "V") points.push([x, +part.slice(1)]);
      else if (!steps) points.push(part.split(",").map(Number));
    }
    return points;
  };
  const place = (points, x) => {
    let low = 0, high = points.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (points[middle][0] <= x) low = middle + 1; else high = middle;
    }
    return low - 1;
  };
  const digits = (value) => value.toLocaleString("en", { maximumSignificantDigits: value < 1000 ? 3 : 9 });
  const duration = (seconds) => seconds < 1 ? `${digits(seconds * 1000)} ms` : `${digits(seconds)} s`;
  const clock = (seconds) => {
    const whole = Math.round(seconds), two = (value) => String(value).padStart(2, "0");
    if (whole < 60) return `${whole} s`;
    const hours = Math.floor(whole / 3600), minutes = Math.floor(whole / 60) % 60;
    return hours ? `${hours}:${two(minutes)}:${two(whole % 60)}` : `${minutes}:${two(whole % 60)} min`;
  };
  const plots = figures.map((figure) => {
    const svg = figure.querySelector("svg"), area = figure.querySelector(".area");
    const hair = area.appendChild(document.createElement("i")), tip = area.appendChild(document.createElement("div"));
    hair.className = "hair"; tip.className = "tip"; hair.hidden = tip.hidden = true;
    return { figure, svg, area, hair, tip, kind: figure.dataset.kind, group: figure.dataset.group, lines: null };
  });
  const value = (plot, line, x) => {
    const at = place(line.points, x);
    if (plot.kind === "cdf") return at < 0 ? "0 %" : `${digits(line.points[at][1])} %`;
    const near = [line.points[at], line.points[at + 1]].filter(Boolean)
      .sort((a, b) => Math.abs(a[0] - x) - Math.abs(b[0] - x))[0];
    if (!near || Math.abs(near[0] - x) > line.step * 1.5) return "no data";
    return digits(near[1]) + ({ rate: "/s", share: " %" }[plot.kind] ?? "");
  };
  const show = (plot, x, share, own) => {
    plot.lines ||= [...plot.svg.querySelectorAll("path.line")].map((path) => {
      const points = read(path.getAttribute("d"));
      let step = Infinity;
      for (let i = 1; i < points.length; i++) step = Math.min(step, points[i][0] - points[i - 1][0] || Infinity);
      return { title: path.dataset.title, style: path.getAttribute("class").replace("line ", ""), points, step };
    });
    plot.hair.hidden = false; plot.hair.style.left = `${share * 100}%`;
    plot.tip.hidden = !own;
    if (!own) return;
    plot.tip.replaceChildren(Object.assign(document.createElement("b"),
      { textContent: plot.kind === "cdf" ? `took at most ${duration(x)}` : `after ${clock(x)}` }));
    for (const line of plot.lines) {
      const row = plot.tip.appendChild(document.createElement("span"));
      row.className = line.style;
      row.append(line.title, Object.assign(document.createElement("em"), { textContent: value(plot, line, x) }));
    }
    plot.tip.style.left = share < 0.5 ? `${share * 100}%` : "auto";
    plot.tip.style.right = share < 0.5 ? "auto" : `${(1 - share) * 100}%`;
  };
  for (const plot of plots) {
    plot.area.addEventListener("pointermove", (event) => {
      const box = plot.area.getBoundingClientRect();
      const share = Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
      const x = share * plot.svg.viewBox.baseVal.width;
      for (const other of plots) if (other === plot || (plot.group && other.group === plot.group))
        show(other, x, share, other === plot);
    });
    plot.area.addEventListener("pointerleave", () => {
      for (const other of plots) other.hair.hidden = other.tip.hidden = true;
    });
  }
})();
