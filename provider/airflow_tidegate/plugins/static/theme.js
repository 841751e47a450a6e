// Airflow marks dark mode with the class "dark" on its root element and stores the choice as "theme" in local storage.
// Inside Airflow's frame, this page reads Airflow's root element; alone, it reads local storage, then the system.
"use strict";
(() => {
  const system = window.matchMedia("(prefers-color-scheme: dark)");

  function airflowRoot() {
    try {
      return window.parent === window ? null : window.parent.document.documentElement;
    } catch {
      return null; // another origin's frame
    }
  }

  function isDark() {
    const root = airflowRoot();
    if (root?.classList.contains("dark")) return true;
    if (root?.classList.contains("light")) return false;
    let chosen = null;
    try {
      chosen = window.localStorage.getItem("theme");
    } catch {
      // no storage: the system decides
    }
    return chosen === "dark" || (chosen !== "light" && system.matches);
  }

  function apply() {
    const dark = isDark();
    document.documentElement.classList.toggle("dark", dark);
    document.documentElement.classList.toggle("framed", window.parent !== window);
    document.documentElement.style.colorScheme = dark ? "dark" : "light";
  }

  apply();
  system.addEventListener("change", apply);
  window.addEventListener("storage", apply);
  const root = airflowRoot();
  if (root) new MutationObserver(apply).observe(root, { attributes: true, attributeFilter: ["class"] });
})();
