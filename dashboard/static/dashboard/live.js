/* Live refresh: asks for the page's live part with the tag of what is shown, and exchanges only blocks that read
   differently. Focus, open details, scroll and a text selection survive. Slower in a hidden tab and after an error. */
import { duration, heardServerTime } from "./ages.js";

const EVERY = 4000, SLOWEST = 60000, SLOWEST_SEEN = 15000, LIMIT = 10000, SAID_EVERY = 60000, UNHEARD_AFTER = 12000;

const shown = new Map();
let etag = "", paused = false, heard = Date.now(), wait = EVERY, timer = 0, said = 0, trouble = "";

export function isPaused() { return paused; }

export function togglePause() {
  paused = !paused;
  const button = document.getElementById("pause");
  const words = paused ? "Resume live updates" : "Pause live updates";
  button.setAttribute("aria-pressed", String(paused));
  button.setAttribute("aria-label", words);
  button.title = `${words} (p)`;
  button.querySelector("use").setAttribute("href", paused ? "#i-play" : "#i-pause");
  say(true);
  if (!paused) soon(0);
}

export function startLive() {
  const from = document.body.dataset.liveFrom;
  for (const block of document.querySelectorAll("[data-live]")) shown.set(block.id, block.outerHTML);
  const button = document.getElementById("pause");
  if (!from) { button?.remove(); return; }
  button.addEventListener("click", togglePause);
  document.addEventListener("visibilitychange", () => { if (!document.hidden) { wait = EVERY; soon(0); } });
  setInterval(() => say(false), 1000);
  say(true);
  soon(EVERY);
}

function soon(ms) { clearTimeout(timer); timer = setTimeout(ask, ms); }

async function ask() {
  if (paused) return;
  const before = trouble;
  try {
    const answer = await fetch(document.body.dataset.liveFrom, {
      headers: etag ? { "If-None-Match": etag } : {}, cache: "no-store", redirect: "manual",
      credentials: "same-origin", signal: AbortSignal.timeout(LIMIT) });
    if (answer.type === "opaqueredirect") { location.reload(); return; }
    if (answer.status !== 304 && !answer.ok) throw new Error(`answered ${answer.status}`);
    heardServerTime(answer.headers.get("Date"));
    if (answer.status !== 304) { etag = answer.headers.get("ETag") || ""; exchange(await answer.text()); }
    heard = Date.now(); trouble = ""; wait = document.hidden ? Math.min(wait * 2, SLOWEST) : EVERY;
    document.dispatchEvent(new CustomEvent("relume:tick"));
  } catch (error) {
    trouble = error.name === "TimeoutError" ? `no answer in ${LIMIT / 1000} s` : error.message;
    wait = Math.min(wait * 2, document.hidden ? SLOWEST : SLOWEST_SEEN);
  }
  say(trouble !== before);
  soon(wait);
}

function exchange(html) {
  const fresh = new DOMParser().parseFromString(html, "text/html");
  for (const block of fresh.querySelectorAll("[data-live]")) {
    const old = document.getElementById(block.id), text = block.outerHTML;
    if (!old || shown.get(block.id) === text || selecting(old)) continue;
    shown.set(block.id, text);
    const kept = remember(old), next = document.adoptNode(block);
    old.replaceWith(next);
    /* Drawn before focus and scroll come back: what is drawn has its height only then. */
    document.dispatchEvent(new CustomEvent("relume:fresh", { detail: next }));
    restore(next, kept);
    if (next.dataset.title) document.title = next.dataset.title;
  }
}

function selecting(block) {
  const chosen = getSelection();
  return chosen && !chosen.isCollapsed && chosen.containsNode(block, true);
}

function scrollers(block) { return [...block.querySelectorAll(".tw, .log")]; }
function focusables(block) { return [...block.querySelectorAll("a, button, summary, input, [tabindex]")]; }

function remember(block) {
  const at = focusables(block).indexOf(document.activeElement), focus = document.activeElement;
  return {
    open: [...block.querySelectorAll("details")].map(d => d.open), at,
    key: at < 0 ? "" : focus.id || focus.getAttribute("href") || "",
    row: block.querySelector("tr.here")?.id,
    scroll: scrollers(block).map(s => ({ left: s.scrollLeft, top: s.scrollTop, end: s.scrollTop + s.clientHeight >= s.scrollHeight - 4 })),
  };
}

function restore(block, kept) {
  [...block.querySelectorAll("details")].forEach((d, k) => { if (k < kept.open.length) d.open = kept.open[k]; });
  scrollers(block).forEach((s, k) => {
    const was = kept.scroll[k];
    if (was) { s.scrollLeft = was.left; s.scrollTop = was.end ? s.scrollHeight : was.top; }
  });
  if (kept.row) document.getElementById(kept.row)?.classList.add("here");
  if (kept.at < 0) return;
  const all = focusables(block);
  const same = kept.key && all.find(e => e.id === kept.key || e.getAttribute("href") === kept.key);
  (same || all[kept.at])?.focus({ preventScroll: true });
}

function say(now) {
  const live = document.getElementById("live"), told = document.getElementById("live-said");
  const passed = Date.now() - heard, silent = passed > UNHEARD_AFTER && !document.hidden && !paused && trouble;
  const clock = new Date(heard).toISOString().slice(11, 19);
  const text = paused ? `Paused, from ${clock}` : silent ? `Not live, from ${clock}` : `Live, updated ${duration(passed / 1000)} ago`;
  live.textContent = text;
  live.classList.toggle("off", Boolean(paused || silent));
  const strip = document.getElementById("unheard");
  strip.hidden = !silent;
  if (silent) {
    const words = `Relume has not answered since ${clock} UTC (${trouble}). This page shows what was known then. Training goes on.`;
    if (strip.querySelector("span").textContent !== words) strip.querySelector("span").textContent = words;
  }
  if (now || Date.now() - said > SAID_EVERY) { said = Date.now(); told.textContent = text; }
}
