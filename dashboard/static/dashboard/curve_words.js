/* The curve in words: the read-out, the summary and the table. */
import { number } from "./svg.js";

export function value(y) {
  if (y === null || y === undefined) return "not a number";
  return Math.abs(y) >= 1e5 || (y !== 0 && Math.abs(y) < 1e-3) ? y.toExponential(3) : number(y, 3);
}

export function readout(data, point) {
  const at = point || (data.latest && { attempt: data.latest.attempt, kept: true, step: data.latest.step, y: data.latest.value });
  if (!at) return "no step yet";
  const odd = data.not_finite.find(n => n.step === at.step && n.attempt === at.attempt);
  return `${at.y === null && odd ? odd.kind : value(at.y)} at step ${number(at.step)}, attempt ${at.attempt}${at.kept ? "" : ", abandoned"}, rank ${data.rank}`;
}

function firstPoint(data) {
  for (const trace of data.traces) {
    const k = trace.y.findIndex(y => y !== null);
    if (trace.kept && k >= 0) return { step: trace.steps[k], y: trace.y[k] };
  }
  return null;
}

export function describe(data) {
  const first = firstPoint(data), last = data.latest, kept = new Set(data.traces.filter(t => t.kept).map(t => t.attempt));
  if (!first || !last) return "No point yet.";
  const name = data.name === "loss" ? "Loss" : data.name;
  const way = last.value < first.y ? "fell" : last.value > first.y ? "rose" : "stayed";
  const parts = [`${name} of rank ${data.rank} ${way} from ${value(first.y)} at step ${number(first.step)} to ${value(last.value)} at step ${number(last.step)} over ${kept.size === 1 ? "one attempt" : `${kept.size} attempts`}.`];
  if (data.lowest !== null) parts.push(`Lowest so far ${value(data.lowest)}.`);
  for (const mark of data.restarts) if (mark.at !== null) parts.push(`Attempt ${mark.attempt} resumed from step ${number(mark.at)}.`);
  const odd = data.not_finite_total;
  if (odd) parts.push(odd === 1 ? `One value, at step ${number(data.not_finite[0].step)}, is ${data.not_finite[0].kind}.` : `${number(odd)} values are not finite, the first at step ${number(data.not_finite[0].step)}.`);
  if (data.width > 1) parts.push(`Drawn in bins of ${number(data.width)} steps.`);
  return parts.join(" ");
}

function row(step, y, attempt, note) {
  const line = document.createElement("tr");
  for (const [words, kind] of [[number(step), "n"], [y, "n"], [attempt, "n"], [note, ""]]) {
    const cell = document.createElement("td");
    cell.className = kind;
    cell.textContent = words;
    line.append(cell);
  }
  return line;
}

/** Some twenty points of the kept curve, and every one that something happened at. */
export function fillTable(body, data) {
  const rows = [];
  const points = data.traces.filter(t => t.kept).flatMap(t => t.steps.map((s, k) => [s, t.y[k], t.attempt])).filter(p => p[1] !== null);
  const every = Math.max(Math.ceil(points.length / 20), 1);
  points.forEach((p, k) => {
    const last = k === points.length - 1;
    if (k % every === 0 || last) rows.push([p[0], value(p[1]), p[2], last ? "Latest" : k === 0 ? "First" : ""]);
  });
  for (const mark of data.restarts) if (mark.at !== null) rows.push([mark.at, "", mark.attempt, `Attempt ${mark.attempt} resumes here: ${mark.cause}`]);
  for (const odd of data.not_finite.slice(0, 20)) rows.push([odd.step, odd.kind, odd.attempt, odd.kept ? "" : "Abandoned"]);
  rows.sort((a, b) => a[0] - b[0] || a[2] - b[2]);
  body.replaceChildren(...rows.map(r => row(...r)));
}
