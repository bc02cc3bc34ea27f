/* Evidence by layer: filled disc accuses, ringed disc clears, diamond is soft; numbers tie marks to proof lines. */
import { chart, el, svg, text } from "./svg.js";

const ROW = 24, TOP = 26, FOOT = 22, SIZE = 17;

function ticks(low, high) {
  const rough = (high - low) / 6, scale = 10 ** Math.floor(Math.log10(rough || 1));
  const step = [1, 2, 5, 10].map(f => f * scale).find(s => s >= rough) || scale;
  const found = [];
  for (let t = Math.ceil(low / step) * step; t <= high + 1e-9; t += step) found.push(Math.abs(t) < step / 1e6 ? 0 : t);
  return found;
}

/** Signs of one layer that would cover each other are moved apart, in the order of time. */
function spread(signs, X) {
  const placed = [];
  for (const sign of [...signs].sort((a, b) => a.at - b.at || a.n - b.n)) {
    const before = placed.filter(p => p.layer === sign.layer).at(-1);
    const x = Math.max(X(sign.at), before ? before.x + SIZE + 2 : -Infinity);
    placed.push({ ...sign, x });
  }
  return placed;
}

function sign(mark, y) {
  const shape = mark.stance === "soft"
    ? el("path", { d: `M${mark.x} ${y - 10}l10 10-10 10-10-10z`, class: "sign soft" })
    : el("circle", { cx: mark.x, cy: y, r: SIZE / 2, class: `sign ${mark.stance}` });
  return el("g", {}, [shape, text(mark.x, y + 4, mark.n, { class: `signno ${mark.stance}`, "text-anchor": "middle" })]);
}

function draw(data, width) {
  const height = TOP + data.layers.length * ROW + FOOT, left = width > 480 ? 106 : 96;
  const g = svg(width, height, `Evidence by layer: ${data.signs.length} signs`);
  const times = [...data.signs.map(s => s.at), ...data.marks.map(m => m.at)];
  const low = Math.min(...times), high = Math.max(...times), pad = Math.max((high - low) * .12, .5);
  const X = t => left + (t - low + pad) / (high - low + 2 * pad) * (width - left - 12);
  const bottom = TOP + data.layers.length * ROW;
  const fault = data.marks.find(m => m.words === "fault"), seen = data.marks.find(m => m.words === "detected");
  if (fault && seen) g.append(el("rect", { x: X(fault.at), y: TOP, width: Math.max(X(seen.at) - X(fault.at), 1), height: bottom - TOP, class: "again" }));
  data.layers.forEach((layer, k) => g.append(
    text(0, TOP + k * ROW + ROW / 2 + 4, layer.words, { class: "mid" }),
    el("line", { x1: left, x2: width, y1: TOP + (k + 1) * ROW, y2: TOP + (k + 1) * ROW, class: "grid" })));
  for (const t of ticks(low - pad, high + pad)) g.append(
    text(X(t), height - 4, `${t > 0 ? "+" : ""}${+t.toFixed(3)}${t === 0 ? " s" : ""}`, { "text-anchor": "middle" }),
    el("line", { x1: X(t), x2: X(t), y1: bottom, y2: bottom + 4, class: "axis" }));
  data.marks.forEach((mark, k) => g.append(
    el("line", { x1: X(mark.at), x2: X(mark.at), y1: 6, y2: bottom, class: "rule" }),
    text(X(mark.at) + (k ? 4 : -4), 14, mark.words, { class: "mid", "text-anchor": k ? "start" : "end" })));
  const rows = new Map(data.layers.map((layer, k) => [layer.key, TOP + k * ROW + ROW / 2]));
  for (const mark of spread(data.signs, X)) g.append(sign(mark, rows.get(mark.layer) ?? TOP));
  return g;
}

export function drawLanes(root) {
  for (const host of root.querySelectorAll("[data-lanes]")) {
    const data = JSON.parse(host.dataset.lanes);
    chart(host, width => draw(data, width));
  }
}
