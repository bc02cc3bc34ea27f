/* The lens: a bar to scale, and its small part pulled to full width by a trapezoid. */
import { chart, el, svg, text } from "./svg.js";

let patterns = 0;

function hatch(g, tone) {
  const id = `hatch-${++patterns}`;
  g.append(el("defs", {}, el("pattern", { id, width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
    [el("rect", { width: 6, height: 6, class: `t-${tone}` }), el("rect", { width: 2, height: 6, class: "stripe" })])));
  return id;
}

function box(g, part, x, y, width, height) {
  const shape = { x, y, width: Math.max(width, .6), height };
  const look = part.hatch ? { fill: `url(#${hatch(g, part.tone)})` } : { class: `t-${part.tone}` };
  g.append(el("rect", { ...shape, ...look }, el("title", {}, `${part.words}: ${part.text}`)));
}

function label(g, part, x, y, width) {
  const words = part.words.length * 6.1 + 14, both = Math.max(words, part.text.length * 5.8 + 14);
  if (width > both) {
    if (part.hatch) g.append(el("rect", { x: x + 4, y: y + 3, width: both - 6, height: 26, rx: 2, class: `t-${part.tone}` }));
    g.append(text(x + 8, y + 14, part.words, { class: "onbar" }), text(x + 8, y + 27, part.text, { class: "onbar thin" }));
  } else if (width > part.text.length * 5.8 + 8 && !part.hatch) {
    g.append(text(x + 5, y + 20, part.text, { class: "onbar thin" }));
  }
}

function wide(g, parts, y, width) {
  const total = parts.reduce((sum, part) => sum + part.value, 0);
  let x = 0;
  for (const part of parts) {
    const w = part.value / total * width;
    box(g, part, x + .5, y, w - 1, 32);
    label(g, part, x, y, w);
    x += w;
  }
}

function draw(data, width) {
  const big = data.parts.find(part => part.big), small = data.parts.filter(part => !part.big);
  const g = svg(width, big && small.length ? 104 : 56, data.title);
  const apart = (data.left.length + data.right.length) * 6 + 12 < width;
  if (apart) g.append(text(0, 11, data.left, { class: "mid" }));
  g.append(text(width, 11, data.right, { class: "mid", "text-anchor": "end" }));
  if (!big || !small.length) { wide(g, data.parts, 20, width); return g; }
  const total = data.parts.reduce((sum, part) => sum + part.value, 0), scale = value => value / total * width;
  const y0 = 18, h0 = 20, y1 = 66;
  let x = 0;
  /* The big part keeps its place among the others, so the trapezoid goes from the outermost small ones. */
  let from = Infinity, to = 0;
  for (const part of data.parts) {
    const w = scale(part.value);
    if (!part.big) { from = Math.min(from, x); to = Math.max(to, x + w); }
    box(g, part, x, y0, w - (part.big ? 1 : 0), h0);
    const words = `${part.words} ${part.text}`;
    if (part.big) {
      const said = w > words.length * 6.2 ? words : part.text;
      if (part.hatch) g.append(el("rect", { x: x + 3, y: y0 + 2, width: said.length * 6.1 + 12, height: 16, rx: 2, class: `t-${part.tone}` }));
      g.append(text(x + 8, y0 + 14, said, { class: "onbar" }));
    }
    x += w;
  }
  g.append(el("path", { d: `M${from} ${y0 + h0 + 1}L0 ${y1 - 2}H${width}L${to} ${y0 + h0 + 1}Z`, class: "inset" }),
    el("path", { d: `M${from} ${y0 + h0 + 1}L0 ${y1 - 2}M${to} ${y0 + h0 + 1}L${width} ${y1 - 2}`, class: "edge" }));
  /* On the side of the small parts: there the words lie inside the trapezoid. */
  const atEnd = from + to > width;
  g.append(text(atEnd ? width - 8 : 8, y1 - 9, data.lens, { class: "mid", "text-anchor": atEnd ? "end" : "start" }));
  wide(g, small, y1, width);
  return g;
}

export function drawLenses(root) {
  for (const host of root.querySelectorAll("[data-lens]")) {
    const data = JSON.parse(host.dataset.lens);
    chart(host, width => draw(data, width));
  }
}
