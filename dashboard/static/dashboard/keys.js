/* Single-key shortcuts: off while typing, with a modifier held, or switched off in their own list. */
import { togglePause } from "./live.js";

let first = "";

function allowed() {
  try { return localStorage.getItem("relume-keys") !== "off"; } catch { return true; }
}

/* Not in a checkbox: the one of the closed list of keys has the focus until the page is drawn again. */
function typing(target) {
  return target.isContentEditable || target.matches("input:not([type=checkbox]), textarea, select");
}

function move(by) {
  const rows = [...document.querySelectorAll("table.rows tbody tr")];
  if (!rows.length) return;
  const at = rows.findIndex(r => r.classList.contains("here"));
  const next = rows[Math.min(Math.max(at < 0 ? (by > 0 ? 0 : rows.length - 1) : at + by, 0), rows.length - 1)];
  rows[at]?.classList.remove("here");
  next.classList.add("here");
  next.querySelector("a")?.focus({ preventScroll: true });
  next.scrollIntoView({ block: "nearest" });
}

function open() {
  document.querySelector("table.rows tr.here a")?.click();
}

function go(selector) { document.querySelector(selector)?.click(); }

function help() {
  const keys = document.getElementById("keys");
  if (keys.open) keys.close(); else keys.showModal();
}

function pressed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || typing(event.target)) return;
  if (event.key === "?") { help(); event.preventDefault(); return; }
  if (!allowed() || document.querySelector("dialog[open]")) return;
  const pair = first + event.key;
  first = event.key === "g" ? "g" : "";
  const acts = {
    "/": () => document.getElementById("search")?.focus(), j: () => move(1), k: () => move(-1),
    p: () => { if (document.getElementById("pause")) togglePause(); },
    gr: () => go('.nav a[href="/"]'), gn: () => go('.nav a[href="/nodes"]'),
  };
  const act = acts[pair] || acts[event.key];
  if (act) { event.preventDefault(); act(); }
  else if (event.key === "Enter" && event.target === document.body) open();
}

export function startKeys() {
  const keys = document.getElementById("keys");
  if (!keys) return;
  document.addEventListener("keydown", pressed);
  const box = document.getElementById("keys-on");
  box.checked = allowed();
  box.addEventListener("change", () => {
    try { localStorage.setItem("relume-keys", box.checked ? "on" : "off"); } catch { /* private mode */ }
  });
}
