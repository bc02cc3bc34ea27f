/* The theme button, and colours of tokens.css as values for what is drawn outside of CSS. */
const root = document.documentElement;
const system = matchMedia("(prefers-color-scheme: dark)");

export function isDark() {
  return root.dataset.theme ? root.dataset.theme === "dark" : system.matches;
}

/** Calls `again` after each change of theme, the system's included. */
export function onTheme(again) {
  document.addEventListener("relume:theme", again);
  system.addEventListener("change", again);
}

/** name of a token -> a colour as the browser computes it now. */
export function colours(names) {
  const probe = document.createElement("span");
  probe.hidden = true;
  document.body.append(probe);
  const found = {};
  for (const name of names) {
    probe.style.color = `var(--${name})`;
    found[name] = getComputedStyle(probe).color;
  }
  probe.remove();
  return found;
}

export function startTheme() {
  const button = document.getElementById("theme");
  if (!button) return;
  const say = () => {
    const next = isDark() ? "light" : "dark";
    button.setAttribute("aria-label", `Switch to the ${next} theme`);
    button.title = `Switch to the ${next} theme`;
    button.querySelector("use").setAttribute("href", isDark() ? "#i-sun" : "#i-moon");
  };
  say();
  onTheme(say);
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    try { localStorage.setItem("relume-theme", root.dataset.theme); } catch { /* private mode */ }
    document.dispatchEvent(new CustomEvent("relume:theme"));
  });
}
