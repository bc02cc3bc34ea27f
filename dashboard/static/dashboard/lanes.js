/* Evidence by layer: a filled disc accuses, a ring clears, a diamond is soft, small grey marks are consequences and
   other signs. Numbers tie marks to proof lines. The read-out follows the pointer and the arrow keys. */
import { bars, groups, numbered, SIZE } from "./lanes_layout.js";
import { chart, el, svg, text } from "./svg.js";

const ROW = 26, TOP = 26, FOOT = 22, EDGE = 58, REACH = 22;
const UNITS = [[14400, 3600, "h"], [600, 60, "min"], [0, 1, "s"]];
const read = new Map();

function ticks(low, high, most) {
  const rough = (high - low) / most, scale = 10 ** Math.floor(Math.log10(rough || 1));
  const step = [1, 2, 5, 10].map(f => f * scale).find(s => s >= rough) || scale;
  const found = [];
  for (let t = Math.ceil(low / step) * step; t <= high + 1e-9; t += step) found.push(Math.abs(t) < step / 1e6 ? 0 : t);
  return found;
}

/** The scale: seconds to pixels, with a place at each edge for what lies far away. */
function scale(data, width) {
  const near = data.signs.filter(s => !s.edge);
  const times = [...near.flatMap(s => [s.at, s.until ?? s.at]), ...data.marks.map(m => m.at)];
  const low = Math.min(...times), high = Math.max(...times), pad = Math.max((high - low) * .08, .5);
  const first = width > 480 ? 106 : 96, before = data.signs.some(s => s.edge === "before") ? EDGE : 0;
  const after = data.signs.some(s => s.edge === "after") ? EDGE : 0;
  const left = first + before, right = width - SIZE - after;
  const X = t => left + (t - low + pad) / (high - low + 2 * pad) * (right - left);
  const of = sign => sign.edge === "before" ? first + SIZE / 2 + 4 : sign.edge === "after" ? width - EDGE + SIZE / 2 + 4 : X(sign.at);
  /* Where the last mark of each zone may stand. */
  const zones = [[undefined, right + SIZE / 2], ["before", left - 6 - SIZE / 2], ["after", width - 6 - SIZE / 2]];
  return { X, of, zones, low: low - pad, high: high + pad, first, left, right, before, after };
}

function frame(g, data, width, at, bottom) {
  const [fault, seen] = data.marks;
  if (fault && seen) g.append(el("rect", { x: at.X(fault.at), y: TOP, width: Math.max(at.X(seen.at) - at.X(fault.at), 1), height: bottom - TOP, class: "again" }));
  data.layers.forEach((layer, k) => g.append(
    text(0, TOP + k * ROW + ROW / 2 + 4, layer.words, { class: "mid" }),
    el("line", { x1: at.first, x2: width, y1: TOP + (k + 1) * ROW, y2: TOP + (k + 1) * ROW, class: "grid" })));
  const span = Math.max(Math.abs(at.low), Math.abs(at.high)), [, per, unit] = UNITS.find(u => span >= u[0]);
  for (const t of ticks(at.low / per, at.high / per, at.right - at.left > 360 ? 6 : 3)) g.append(
    text(at.X(t * per), bottom + 18, `${t > 0 ? "+" : ""}${+t.toFixed(3)}${t === 0 ? ` ${unit}` : ""}`, { "text-anchor": "middle" }),
    el("line", { x1: at.X(t * per), x2: at.X(t * per), y1: bottom, y2: bottom + 4, class: "axis" }));
  if (at.before) edge(g, at.first, at.left, "earlier", bottom);
  if (at.after) edge(g, width - EDGE, width, "later", bottom);
  data.marks.forEach((mark, k) => {
    const x = at.X(mark.at), room = width - x > mark.words.length * 6.4 + 4, before = k === 0 || !room;
    g.append(el("line", { x1: x, x2: x, y1: 6, y2: bottom, class: "rule" }),
      text(x + (before ? -4 : 4), k && !room ? 24 : 12, mark.words, { class: "mid", "text-anchor": before ? "end" : "start" }));
  });
}

function edge(g, from, to, words, bottom) {
  g.append(el("rect", { x: from, y: TOP, width: to - from - 6, height: bottom - TOP, class: "inset" }),
    text((from + to - 6) / 2, bottom + 18, words, { class: "mid", "text-anchor": "middle" }));
}

/** What one group looks like, and the words in it: its number, or that of the first and how many more. */
function drawn(group, y) {
  const { x, stance, signs } = group, r = SIZE / 2, many = signs.length > 1;
  const shape = many ? el("rect", { x: x - group.width / 2, y: y - r, width: group.width, height: SIZE, rx: r })
    : stance === "soft" ? el("path", { d: `M${x} ${y - 10}l10 10-10 10-10-10z` }) : el("circle", { cx: x, cy: y, r });
  shape.setAttribute("class", `sign ${stance}`);
  const words = many ? `${signs[0].n} +${signs.length - 1}` : signs[0].n;
  const parts = [shape, text(x, y + 4, words, { class: `signno ${stance}`, "text-anchor": "middle" })];
  if (signs.some(s => s.late)) parts.unshift(el("rect", { x: x - group.width / 2 - 3, y: y - r - 3, width: group.width + 6, height: SIZE + 6, rx: r + 3, class: "late" }));
  return el("g", {}, parts);
}

function lane(g, signs, at, y) {
  const places = [];
  for (const sign of signs) if (sign.until) g.append(el("line", { x1: at.of(sign), x2: at.X(sign.until), y1: y, y2: y, class: `burst ${sign.stance}` }));
  for (const bar of bars(signs, at.of)) {
    g.append(el("rect", { x: bar.from - 3, y: y - 3, width: bar.to - bar.from + 6, height: 6, rx: 3, class: "small" }));
    for (const sign of bar.signs) places.push({ sign, x: at.of(sign), y, width: 8 });
  }
  for (const [zone, right] of at.zones) for (const group of groups(signs.filter(s => s.edge === zone), at.of, right)) {
    g.append(drawn(group, y));
    for (const sign of group.signs) places.push({ sign, x: group.x, y, width: group.width });
  }
  return places;
}

function draw(data, width, host) {
  const bottom = TOP + data.layers.length * ROW, g = svg(width, bottom + FOOT, "");
  g.setAttribute("aria-hidden", "true");
  const at = scale(data, width);
  frame(g, data, width, at, bottom);
  const places = data.layers.flatMap((layer, k) => lane(g, data.signs.filter(s => s.layer === layer.key), at, TOP + k * ROW + ROW / 2));
  const ring = el("rect", { class: "pick", height: SIZE + 8, y: 0, rx: SIZE / 2 + 4, visibility: "hidden" });
  g.append(ring);
  host.places = places.sort((a, b) => a.sign.at - b.sign.at || a.sign.id - b.sign.id);
  host.ring = ring;
  if (read.has(host.id)) show(host, read.get(host.id), false);
  return g;
}

/** Shows the sign of this id in the read-out and marks its line; null: back to what is said at rest. */
function show(host, id, keep) {
  const k = host.places.findIndex(p => p.sign.id === id), place = host.places[k];
  const line = document.getElementById(`${host.id}-read`);
  for (const old of document.querySelectorAll(`[data-of="${host.id}"].here`)) old.classList.remove("here");
  if (keep) { if (place) read.set(host.id, id); else read.delete(host.id); }
  host.ring.setAttribute("visibility", place ? "visible" : "hidden");
  if (!place) { line.textContent = line.dataset.rest; return; }
  host.ring.setAttribute("x", place.x - place.width / 2 - 4);
  host.ring.setAttribute("width", place.width + 8);
  host.ring.setAttribute("y", place.y - SIZE / 2 - 4);
  const name = numbered(place.sign) ? `${place.sign.n}: ` : "";
  line.textContent = `${k + 1} of ${host.places.length}. ${name}${place.sign.said}. ${place.sign.raw}`;
  document.querySelector(`[data-of="${host.id}"][data-sign="${id}"]`)?.classList.add("here");
}

function key(host, event) {
  const by = { ArrowRight: 1, ArrowLeft: -1, PageDown: 10, PageUp: -10, Home: -Infinity, End: Infinity }[event.key];
  if (event.key === "Escape") { show(host, null, true); return; }
  if (by === undefined || !host.places.length) return;
  event.preventDefault();
  const now = host.places.findIndex(p => p.sign.id === read.get(host.id)), last = host.places.length - 1;
  const next = Math.min(Math.max(now < 0 ? (by === Infinity ? last : 0) : now + by, 0), last);
  show(host, host.places[next].sign.id, true);
}

function point(host, event) {
  const box = host.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
  const far = p => Math.max(Math.abs(p.x - x) - p.width / 2, 0) + Math.abs(p.y - y);
  const near = host.places.reduce((best, p) => !best || far(p) < far(best) ? p : best, null);
  if (near && far(near) < REACH) show(host, near.sign.id, false);
  else show(host, read.get(host.id) ?? null, false);
}

export function drawLanes(root) {
  for (const host of root.querySelectorAll("[data-lanes]")) {
    const data = JSON.parse(host.dataset.lanes);
    chart(host, width => draw(data, width, host));
    host.addEventListener("keydown", event => key(host, event));
    host.addEventListener("pointermove", event => point(host, event));
    host.addEventListener("pointerleave", () => show(host, read.get(host.id) ?? null, false));
  }
}
