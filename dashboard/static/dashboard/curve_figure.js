/* The curve as Plotly's data and layout. Pure but for the colours, which come from tokens.css. */
import { el, number } from "./svg.js";
import { colours } from "./themes.js";
import { value } from "./curve_words.js";

const TOKENS = ["a1", "a2", "a3", "a4", "a5", "a6", "surface", "line", "line-2", "text", "text-2", "text-3", "bad", "t-redo"];
const LEFT = 46, RIGHT = 14, FOOT = 30;
const of = attempt => (attempt - 1) % 6 + 1;
const fade = (colour, alpha) => colour.replace(/^rgb\(([^)]*)\)$/, `rgba($1, ${alpha})`);
/* Plotly reads a few tags in labels; what comes from a cluster is shown as it is spelled. */
const plain = words => String(words).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
const short = (words, length) => words.length > length ? `${words.slice(0, length - 1)}…` : words;

export function figure(data, view, width, height) {
  const c = colours(TOKENS), wide = width > 560, wall = view.axis === "wall";
  const X = trace => wall ? trace.times.map(t => new Date(t * 1000).toISOString()) : trace.steps;
  const kept = data.traces.filter(t => t.kept), tails = view.tails ? data.traces.filter(t => !t.kept) : [];
  const fit = fitted(kept.length ? kept : data.traces), top = wide ? 50 : 34;
  const traces = [
    ...kept.filter(() => data.width > 1).map(t => band(t, X(t), c)),
    ...kept.map((t, k) => line(t, X(t), c, wall ? null : kept[k - 1])),
    ...tails.flatMap(t => tail(t, X(t), c, wall ? null : kept.findLast(k => k.attempt === t.attempt))),
    odd(data, kept, fit, c, wall, view.tails),
    latest(data, kept, c, wall),
  ].filter(Boolean);
  const span = extent(data, wall, view);
  return {
    traces,
    layout: layout(data, view, { c, wide, wall, fit, top, span, width, height }),
    legend: legend(data, view, c),
  };
}

/** Fitted to the last 95 % of the points; the note says what is cut off above. */
function fitted(traces) {
  const points = traces.flatMap(t => t.y.map((y, k) => [t.steps[k], y, t.low[k], t.high[k]])).filter(p => p[1] !== null);
  const late = points.slice(Math.floor(points.length * .05));
  const low = Math.min(...late.map(p => p[2])), high = Math.max(...late.map(p => p[1]), ...late.map(p => p[3]));
  const highest = Math.max(...points.map(p => p[3])), pad = (high - low) * .06 || Math.abs(high) * .05 || 1;
  const cut = highest > high + pad * 3;
  return { low: low - pad, high: (cut ? high : Math.max(high, highest)) + pad, cut: cut ? highest : null };
}

function line(trace, x, c, before) {
  const xs = [...x], ys = [...trace.y], steps = [...trace.steps];
  if (before) { xs.unshift(before.steps.at(-1)); ys.unshift(before.y.at(-1)); steps.unshift(before.steps.at(-1)); }
  return { type: "scatter", mode: trace.y.length < 2 ? "lines+markers" : "lines", x: xs, y: ys, customdata: steps,
    line: { color: c[`a${of(trace.attempt)}`], width: 1.7 }, hoverinfo: "none", connectgaps: false,
    meta: { line: true, kept: true, attempt: trace.attempt } };
}

function tail(trace, x, c, before) {
  const xs = [...x], ys = [...trace.y], steps = [...trace.steps];
  if (before) { xs.unshift(before.steps.at(-1)); ys.unshift(before.y.at(-1)); steps.unshift(before.steps.at(-1)); }
  const common = { type: "scatter", mode: "lines", x: xs, y: ys, customdata: steps, connectgaps: false };
  return [
    { ...common, line: { color: c.surface, width: 4 }, hoverinfo: "skip" },
    { ...common, line: { color: c[`a${of(trace.attempt)}`], width: 1.5, dash: "5px,4px" }, hoverinfo: "none", meta: { line: true, kept: false, attempt: trace.attempt } },
  ];
}

/** One polygon for each stretch without a gap. */
function band(trace, x, c) {
  const xs = [], ys = [];
  let from = 0;
  for (let k = 0; k <= trace.y.length; k++) {
    if (k < trace.y.length && trace.low[k] !== null) continue;
    if (k - from > 1) {
      for (let i = from; i < k; i++) { xs.push(x[i]); ys.push(trace.high[i]); }
      for (let i = k - 1; i >= from; i--) { xs.push(x[i]); ys.push(trace.low[i]); }
      xs.push(null); ys.push(null);
    }
    from = k + 1;
  }
  return { type: "scatter", mode: "lines", x: xs, y: ys, fill: "toself", fillcolor: fade(c[`a${of(trace.attempt)}`], .17), line: { width: 0 }, hoverinfo: "skip", connectgaps: false };
}

function near(traces, attempt, step, fit) {
  const points = traces.filter(t => t.attempt === attempt).flatMap(t => t.steps.map((s, k) => [s, t.y[k]])).filter(p => p[1] !== null);
  if (!points.length) return (fit.low + fit.high) / 2;
  return points.reduce((best, p) => Math.abs(p[0] - step) < Math.abs(best[0] - step) ? p : best)[1];
}

/** Where the diamond of a value that is no number stands: above the line that breaks off there. */
function oddPlace(one, kept, fit, wall) {
  const lift = (fit.high - fit.low) * .1;
  return { x: wall ? new Date(one.time * 1000).toISOString() : one.step, y: Math.min(near(kept, one.attempt, one.step, fit) + lift, fit.high - lift / 3) };
}

function odd(data, kept, fit, c, wall, tails) {
  const places = data.not_finite.filter(n => n.kept || tails).map(n => oddPlace(n, kept, fit, wall));
  if (!places.length) return null;
  return { type: "scatter", mode: "markers", x: places.map(p => p.x), y: places.map(p => p.y), hoverinfo: "skip", cliponaxis: false,
    marker: { symbol: "diamond", size: 11, color: c.surface, line: { color: c.bad, width: 1.5 } }, meta: { odd: true } };
}

function latest(data, kept, c, wall) {
  if (!data.latest) return null;
  const trace = kept.findLast(t => t.attempt === data.latest.attempt), k = trace.steps.lastIndexOf(data.latest.step);
  return { type: "scatter", mode: "markers", x: [wall ? new Date(trace.times[k] * 1000).toISOString() : data.latest.step], y: [data.latest.value], hoverinfo: "skip", cliponaxis: false,
    marker: { size: 8, color: c[`a${of(data.latest.attempt)}`], line: { color: c.surface, width: 2 } } };
}

function extent(data, wall, view) {
  if (view.range) return wall ? view.range.map(r => typeof r === "number" ? r : Date.parse(`${r.replace(" ", "T")}Z`)) : view.range;
  const all = data.traces.flatMap(t => wall ? [t.times[0] * 1000, t.times.at(-1) * 1000] : [t.steps[0], t.steps.at(-1)]);
  const low = Math.min(...all), high = Math.max(...all), room = (high - low || 1) * .035;
  return [low - (high - low || 1) * .008, high + room];
}

function layout(data, view, o) {
  const { c, wide, wall, fit, top, span } = o;
  const axis = { gridcolor: c.line, linecolor: c["line-2"], zeroline: false, tickfont: { color: c["text-3"], size: 11 }, automargin: false };
  const coarse = matchMedia("(pointer: coarse)").matches || !wide;
  const marks = data.restarts.filter(m => wall || m.at !== null);
  return {
    width: o.width, height: o.height, margin: { l: LEFT, r: RIGHT, t: top, b: FOOT }, showlegend: false, hovermode: "x", dragmode: coarse ? false : "zoom",
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { family: getComputedStyle(document.body).fontFamily, size: 11, color: c["text-3"] },
    uirevision: `${view.axis} ${view.name} ${view.rank} ${view.range ? "part" : "whole"}`, separators: ".,",
    xaxis: { ...axis, showgrid: false, type: wall ? "date" : "linear", range: wall ? span.map(s => new Date(s).toISOString()) : span, nticks: wide ? 8 : 4,
      tickformat: wall ? undefined : ",~s", showspikes: true, spikemode: "across", spikethickness: 1, spikedash: "solid", spikecolor: c["text-3"], spikesnap: "data" },
    yaxis: { ...axis, range: [fit.low, fit.high], nticks: 7, fixedrange: true },
    shapes: marks.flatMap(m => shapes(m, wall, c, top, fit)),
    annotations: [...labels(marks, o), ...cutNote(fit, c, wide), ...oddNote(data, c, wide, wall, fit), ...lastNote(data, c, wall)],
  };
}

const at = (mark, wall) => wall ? new Date(mark.at_time * 1000).toISOString() : mark.at;

function shapes(mark, wall, c, top) {
  const x = at(mark, wall), colour = c[`a${of(mark.attempt)}`], until = wall ? mark.until_time && new Date(mark.until_time * 1000).toISOString() : mark.fault_step;
  const made = [];
  if (until) made.push({ type: "rect", xref: "x", yref: "paper", x0: x, x1: until, y0: 0, y1: 1, fillcolor: fade(c["t-redo"], .13), line: { width: 0 }, layer: "below" });
  made.push({ type: "line", xref: "x", yref: "paper", x0: x, x1: x, y0: 0, y1: 1, line: { color: colour, width: 1.2 }, layer: "below" });
  const up = top - 14;
  made.push({ type: "circle", xref: "x", yref: "paper", xsizemode: "pixel", ysizemode: "pixel", xanchor: x, yanchor: 1, x0: -8, x1: 8, y0: up - 8, y1: up + 8, fillcolor: colour, line: { width: 0 } });
  return made;
}

/** The number always; two words of cause and the cost where they do not run into the next mark. */
function labels(marks, o) {
  const { c, wide, wall, span, width, top } = o, plot = width - LEFT - RIGHT, found = [];
  const px = m => LEFT + ((wall ? m.at_time * 1000 : m.at) - span[0]) / (span[1] - span[0]) * plot;
  marks.forEach((mark, k) => {
    const x = at(mark, wall), common = { x, xref: "x", y: 1, yref: "paper", yanchor: "middle", showarrow: false };
    if (px(mark) < LEFT - 1 || px(mark) > width - RIGHT + 1) return;
    found.push({ ...common, yshift: top - 14, text: String(mark.attempt), font: { color: c.surface, size: 11, weight: 600 }, xanchor: "center" });
    if (!wide) return;
    const lines = [short(mark.cause, 34), cost(mark)], need = Math.max(...lines.map(l => l.length)) * 6.2 + 16;
    const after = k + 1 < marks.length ? px(marks[k + 1]) - 12 : width, before = k ? px(marks[k - 1]) + 12 : 0;
    const side = px(mark) + need < after ? "left" : !k && px(mark) - need > before ? "right" : "";
    /* The last mark may write to its left when the one before leaves it the room of both texts. */
    const anchor = side || (k === marks.length - 1 && px(mark) - need > before + 200 ? "right" : "");
    if (!anchor) return;
    /* Two labels instead of one with tags: Plotly makes a style attribute of a tag, which the policy refuses. */
    const beside = { ...common, xanchor: anchor, xshift: anchor === "left" ? 12 : -12 };
    found.push({ ...beside, yshift: top - 14, text: plain(lines[0]), font: { color: c.text, size: 11, weight: 600 } });
    if (lines[1]) found.push({ ...beside, yshift: top - 29, text: lines[1], font: { color: c["text-2"], size: 11 } });
  });
  return found;
}

function cost(mark) {
  const parts = [];
  if (mark.repeated !== null) parts.push(`${number(mark.repeated)} step${mark.repeated === 1 ? "" : "s"}`);
  if (mark.gpu_hours !== null) parts.push(`${number(mark.gpu_hours, mark.gpu_hours >= 1 ? 1 : 3)} GPU-h`);
  return parts.join(", ");
}

function cutNote(fit, c, wide) {
  if (fit.cut === null) return [];
  return [{ xref: "paper", yref: "paper", x: 0, y: 1, xanchor: "left", yanchor: "top", xshift: wide ? 90 : 44, yshift: -2, showarrow: false, text: `start, to ${value(fit.cut)}, is cut off`, font: { color: c["text-3"], size: 11 } }];
}

function oddNote(data, c, wide, wall, fit) {
  const first = data.not_finite.find(n => n.kept);
  if (!first || !wide || data.not_finite_total > 3) return [];
  const place = oddPlace(first, data.traces.filter(t => t.kept), fit, wall);
  return [{ ...place, xref: "x", yref: "y", yanchor: "middle", xanchor: "left", xshift: 12, showarrow: false, text: `${first.kind === "not a number" ? "Not a number" : first.kind} at ${number(first.step)}`, font: { color: c.bad, size: 11 } }];
}

function lastNote(data, c, wall) {
  if (!data.latest) return [];
  const trace = data.traces.findLast(t => t.kept && t.attempt === data.latest.attempt), k = trace.steps.lastIndexOf(data.latest.step);
  const x = wall ? new Date(trace.times[k] * 1000).toISOString() : data.latest.step;
  return [{ x, y: data.latest.value, xref: "x", yref: "y", xanchor: "right", xshift: 10, yshift: 24, showarrow: false, text: value(data.latest.value), font: { color: c.text, size: 12, weight: 600 } }];
}

function legend(data, view, c) {
  const kept = [...new Set(data.traces.filter(t => t.kept).map(t => t.attempt))], items = [];
  const item = (picture, words) => { const li = document.createElement("li"); li.append(picture, words); items.push(li); };
  const key = (...inside) => el("svg", { class: "key", viewBox: "0 0 26 10", "aria-hidden": "true" }, inside);
  for (const n of kept.slice(-8)) item(key(el("path", { d: "M0 5h26", class: `line s${of(n)}` })), `Attempt ${n}`);
  if (view.tails && data.traces.some(t => !t.kept)) item(key(el("path", { d: "M0 5h26", class: "dash" })), "Abandoned tail");
  if (data.width > 1) item(key(el("path", { d: "M0 5h26", class: `band s${of(kept[0] || 1)}` })), "Smallest to largest in the bin");
  if (data.not_finite_total) item(el("svg", { class: "key s", viewBox: "0 0 10 10", "aria-hidden": "true" }, el("path", { d: "M5 .8L9.2 5 5 9.2.8 5z", class: "odd" })), "Not a number or infinite");
  return items;
}
