/* Runs before the first paint, so that a page never flashes in the other theme. */
try {
  const chosen = localStorage.getItem("relume-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch { /* private mode: the system's theme */ }
