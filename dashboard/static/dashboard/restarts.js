/* Each restart close up: the abandoned tail as a thread inside the repeated steps, so that agreement is visible. */
import { duration } from "./ages.js";
import { chart, el, number, svg, text } from "./svg.js";

let drawn = "";

const of = attempt => (attempt - 1) % 6 + 1;

function node(name, className, words) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (words !== undefined) made.textContent = words;
  return made;
}

function price(mark) {
  const parts = [];
  if (mark.repeated !== null) parts.push(`${number(mark.repeated)} step${mark.repeated === 1 ? "" : "s"} repeated`);
  if (mark.gpu_hours !== null) parts.push(`${number(mark.gpu_hours, mark.gpu_hours >= 1 ? 1 : 3)} GPU-hours`);
  if (mark.to_new_step_s !== null) parts.push(`${mark.to_new_step_s < 60 ? `${number(mark.to_new_step_s, 1)} s` : duration(mark.to_new_step_s)} to a new step`);
  return parts.join(", ") || "cost not known yet";
}

function path(points, X, Y) { return points.map(([s, y], k) => `${k ? "L" : "M"}${X(s).toFixed(1)} ${Y(y).toFixed(1)}`).join(""); }

function draw(part, width) {
  const height = 104, foot = 18, top = 4;
  const g = svg(width, height, `Attempt ${part.attempt} repeats steps ${number(part.at)} to ${number(part.fault)}`);
  const all = [...part.old, ...part.new].map(p => p[1]);
  const low = Math.min(...all), high = Math.max(...all), pad = (high - low) * .12 || .01;
  const X = s => (s - part.first) / (part.last - part.first || 1) * width;
  const Y = v => top + (high + pad - v) / (high - low + 2 * pad) * (height - top - foot);
  const again = part.new.filter(p => p[0] <= part.fault), more = part.new.filter(p => p[0] >= part.fault);
  const before = part.old.filter(p => p[0] <= part.at), tail = part.old.filter(p => p[0] >= part.at);
  g.append(el("rect", { x: X(part.at), y: top, width: Math.max(X(part.fault) - X(part.at), 1), height: height - top - foot, class: "again" }),
    el("line", { x1: 0, x2: width, y1: height - foot, y2: height - foot, class: "axis" }));
  const lines = [[before, `fine s${of(part.before)}`], [again, `broad s${of(part.attempt)}`], [more, `fine s${of(part.attempt)}`], [tail, `thread s${of(part.before)}`]];
  for (const [points, look] of lines) if (points.length > 1) g.append(el("path", { d: path(points, X, Y), class: look }));
  const apart = X(part.fault) - X(part.at) > 64;
  g.append(el("line", { x1: X(part.at), x2: X(part.at), y1: top, y2: height - foot, class: `s${of(part.attempt)}` }),
    text(X(part.at), height - 5, number(part.at), { "text-anchor": apart ? "middle" : "end" }),
    text(X(part.fault), height - 5, number(part.fault), { "text-anchor": apart ? "middle" : "start" }));
  if (apart) g.append(text((X(part.at) + X(part.fault)) / 2, top + 11, "repeated", { class: "mid", "text-anchor": "middle" }));
  return g;
}

export function drawRestarts(host, data) {
  const key = JSON.stringify([data.restarts, data.close_ups]);
  if (key === drawn) return;
  drawn = key;
  host.hidden = !data.restarts.length;
  const items = data.restarts.slice(-8).map(mark => {
    const item = node("li"), body = node("div"), cause = node("b");
    if (mark.incident) { const link = node("a", "", mark.cause); link.href = `#incident-${mark.incident}`; cause.append(link); }
    else cause.textContent = mark.cause;
    const lens = node("div", "ls"), part = data.close_ups.find(p => p.attempt === mark.attempt);
    body.append(cause, ...(part ? [lens] : []), node("p", "note", price(mark)));
    item.append(node("span", `an a${of(mark.attempt)}`, mark.attempt), body);
    return [item, lens, part];
  });
  host.querySelector("ol").replaceChildren(...items.map(i => i[0]));
  for (const [, lens, part] of items) if (part) chart(lens, width => draw(part, width));
}
