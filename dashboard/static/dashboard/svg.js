/* Pictures are drawn at their real pixel width, so that text never scales with them. */
const NS = "http://www.w3.org/2000/svg";

export function el(name, attributes = {}, children = []) {
  const made = document.createElementNS(NS, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  for (const child of [].concat(children)) made.append(child);
  return made;
}

export function text(x, y, words, attributes = {}) { return el("text", { x, y, ...attributes }, String(words)); }

export function svg(width, height, title) {
  return el("svg", { class: "c", viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": title });
}

/** Draws now and again whenever the host's width changes. */
export function chart(host, draw) {
  let last = 0;
  const go = () => {
    const width = Math.floor(host.clientWidth);
    if (width < 40 || width === last) return;
    last = width;
    host.replaceChildren(draw(width));
  };
  go();
  new ResizeObserver(go).observe(host);
}

export const number = (value, digits = 0) =>
  value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
