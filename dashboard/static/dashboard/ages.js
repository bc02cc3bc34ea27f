/* "3 s ago", counted here: the page's own text stands still, so an unchanged page is answered with 304. */
const DAY = 86400;

/** The two largest units, as the server prints durations. */
export function duration(seconds) {
  const total = Math.max(Math.round(seconds), 0);
  const days = Math.floor(total / DAY), hours = Math.floor(total % DAY / 3600);
  const minutes = Math.floor(total % 3600 / 60), secs = total % 60;
  if (days) return hours ? `${days} d ${hours} h` : `${days} d`;
  if (hours) return `${hours} h ${String(minutes).padStart(2, "0")} min`;
  if (minutes) return minutes >= 10 || !secs ? `${minutes} min` : `${minutes} min ${String(secs).padStart(2, "0")} s`;
  return `${secs} s`;
}

/** The server's clock minus ours, in ms: a reader's wrong clock must not make a fresh page look old. */
let offset = 0;
export function heardServerTime(header) {
  const at = Date.parse(header || "");
  if (Number.isFinite(at) && Math.abs(at - Date.now()) > 5000) offset = at - Date.now();
}

function count() {
  const now = Date.now() + offset;
  for (const mark of document.querySelectorAll("time[data-age]")) {
    const passed = (now - Date.parse(mark.dateTime)) / 1000;
    const text = mark.dataset.age === "for" ? duration(passed) : passed < 2 ? "now" : `${duration(passed)} ago`;
    if (mark.textContent !== text) mark.textContent = text;
  }
}

export function startAges() {
  count();
  setInterval(() => { if (!document.hidden) count(); }, 1000);
  document.addEventListener("visibilitychange", count);
  document.addEventListener("relume:fresh", count);
}
