/* The curve's controller: asks the server, keeps what the reader chose, and hands both to the drawing. */
import { describe, fillTable, readout } from "./curve_words.js";
import { figure } from "./curve_figure.js";
import { drawRestarts } from "./restarts.js";
import { onTheme } from "./themes.js";

const SETTINGS = { displayModeBar: false, responsive: false, doubleClick: false, showTips: false, displaylogo: false };

const view = { axis: "step", tails: true, range: null, name: "loss", rank: 0 };
let section, plot, data = null, etag = "", asking = false, cursor = null, drawn = "";

export function startCurve(host) {
  section = host;
  plot = document.getElementById("loss");
  segment("xaxis", value => { view.axis = value; view.range = null; etag = ""; ask(); });
  segment("tails", value => { view.tails = value === "on"; draw(); });
  document.getElementById("whole").addEventListener("click", whole);
  document.getElementById("metric").addEventListener("change", choose);
  plot.addEventListener("keydown", step);
  plot.addEventListener("dblclick", whole);
  new ResizeObserver(() => draw()).observe(plot);
  onTheme(() => { drawn = ""; draw(); });
  document.addEventListener("relume:tick", ask);
  ask();
}

function segment(id, chosen) {
  const group = document.getElementById(id);
  group.addEventListener("click", event => {
    const button = event.target.closest("button");
    if (!button) return;
    for (const other of group.querySelectorAll("button")) other.setAttribute("aria-pressed", String(other === button));
    chosen(button.dataset.v);
  });
}

function address() {
  const query = new URLSearchParams({ name: view.name, rank: view.rank });
  if (view.range && view.axis === "step") { query.set("from", view.range[0]); query.set("to", view.range[1]); }
  return `${section.dataset.curve}?${query}`;
}

async function ask() {
  if (asking) return;
  asking = true;
  const url = address();
  try {
    const answer = await fetch(url, { headers: etag ? { "If-None-Match": etag } : {}, cache: "no-store", redirect: "error",
      credentials: "same-origin", signal: AbortSignal.timeout(20000) });
    if (answer.status === 304) return;
    if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
    const fresh = await answer.json();
    if (url !== address()) return;
    etag = answer.headers.get("ETag") || "";
    data = fresh;
    show();
  } catch (error) {
    if (!data) failed(error);
  } finally {
    asking = false;
    if (url !== address()) { etag = ""; ask(); }
  }
}

function failed(error) {
  const text = document.createElement("p"), again = document.createElement("button");
  text.textContent = `The curve could not be read: ${error.message}. Points sent meanwhile are kept and will follow.`;
  again.type = "button"; again.className = "btn"; again.textContent = "Try again";
  again.addEventListener("click", ask);
  plot.replaceChildren(text, again);
  document.getElementById("read").textContent = "";
}

function show() {
  choices();
  if (!view.range) {
    drawRestarts(document.getElementById("restarts"), data);
    document.getElementById("curve-said").textContent = describe(data);
    fillTable(document.querySelector("#curve-table tbody"), data);
  }
  document.getElementById("tails").hidden = !data.traces.some(trace => !trace.kept);
  document.getElementById("whole").hidden = !view.range;
  drawn = "";
  draw();
}

function draw() {
  if (!data || !plot.clientWidth) return;
  const key = `${plot.clientWidth}x${plot.clientHeight} ${JSON.stringify(view)}`;
  if (key === drawn) return;
  drawn = key;
  if (!data.traces.length) {
    const text = document.createElement("p");
    text.className = "wait";
    text.textContent = `No point of ${view.name} yet. The curve begins with the first step.`;
    plot.replaceChildren(text);
    document.getElementById("read").textContent = "no step yet";
    document.getElementById("legend").replaceChildren();
    return;
  }
  const first = !plot.classList.contains("js-plotly-plot");
  if (first) plot.replaceChildren();
  const made = figure(data, view, plot.clientWidth, plot.clientHeight);
  window.Plotly.react(plot, made.traces, made.layout, SETTINGS);
  plot.dataset.traces = String(made.traces.filter(t => t.meta?.line).length);
  document.getElementById("legend").replaceChildren(...made.legend);
  if (cursor === null) document.getElementById("read").textContent = readout(data, null);
  if (first) listen();
}

function listen() {
  plot.on("plotly_hover", event => {
    const point = event.points.find(p => p.data.meta?.line);
    if (point) document.getElementById("read").textContent = readout(data, { attempt: point.data.meta.attempt, kept: point.data.meta.kept, step: point.customdata, y: point.y });
  });
  plot.on("plotly_unhover", () => { if (cursor === null) document.getElementById("read").textContent = readout(data, null); });
  plot.on("plotly_relayout", event => {
    const low = event["xaxis.range[0]"], high = event["xaxis.range[1]"];
    if (low === undefined) return;
    view.range = view.axis === "step" ? [Math.max(Math.floor(low), 0), Math.max(Math.ceil(high), 0)] : [low, high];
    document.getElementById("whole").hidden = false;
    if (view.axis === "step") { etag = ""; ask(); }
  });
}

function whole() {
  if (!view.range) return;
  view.range = null; etag = "";
  ask();
  if (view.axis !== "step") show();
}

function choices() {
  const select = document.getElementById("metric");
  select.hidden = data.choices.length < 2;
  const wanted = data.choices.map(c => `${c.name} ${c.rank}`).join("\n");
  if (select.hidden || select.dataset.all === wanted) return;
  select.dataset.all = wanted;
  select.replaceChildren(...data.choices.map(c => {
    const option = document.createElement("option");
    option.textContent = `${c.name}, rank ${c.rank}`;
    option.value = JSON.stringify([c.name, c.rank]);
    option.selected = c.name === view.name && c.rank === view.rank;
    return option;
  }));
}

function choose(event) {
  [view.name, view.rank] = JSON.parse(event.target.value);
  document.getElementById("curve-title").textContent = view.name === "loss" ? "Loss" : view.name;
  view.range = null; etag = ""; cursor = null;
  ask();
}

/** Arrow keys: the read-out moves along the kept curve, a page key by fifty points. */
function step(event) {
  const by = { ArrowRight: 1, ArrowLeft: -1, PageUp: 50, PageDown: -50, Home: -Infinity, End: Infinity }[event.key];
  if (event.key === "Escape") { cursor = null; document.getElementById("read").textContent = readout(data, null); return; }
  if (by === undefined || !data) return;
  event.preventDefault();
  const points = data.traces.filter(t => t.kept).flatMap(t => t.steps.map((s, k) => ({ attempt: t.attempt, kept: true, step: s, y: t.y[k] })));
  if (!points.length) return;
  const at = cursor === null ? points.length - 1 : Math.max(points.findIndex(p => p.step >= cursor), 0);
  const next = points[Math.min(Math.max(at + by, 0), points.length - 1)];
  cursor = next.step;
  const read = document.getElementById("read");
  read.setAttribute("aria-live", "polite");
  read.textContent = readout(data, next);
  const curve = plot.data.findIndex(t => t.meta?.line && t.meta.kept && t.meta.attempt === next.attempt);
  const point = plot.data[curve]?.customdata.indexOf(next.step);
  if (point >= 0) window.Plotly.Fx.hover(plot, [{ curveNumber: curve, pointNumber: point }]);
}
