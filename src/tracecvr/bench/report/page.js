"use strict";
(() => {
  // The theme: the system's until the button is used; remembered where the browser allows it.
  const root = document.documentElement, button = document.getElementById("theme");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const stored = (value) => {
    try {
      return value ? localStorage.setItem("tracecvr-theme", value) : localStorage.getItem("tracecvr-theme");
    } catch { return null; }
  };
  const isDark = () => (root.dataset.theme || (dark.matches ? "dark" : "light")) === "dark";
  const tell = () => button.setAttribute("aria-pressed", isDark());
  const kept = stored();
  if (kept === "dark" || kept === "light") root.dataset.theme = kept;
  button.hidden = false;
  button.addEventListener("click", () => { stored(root.dataset.theme = isDark() ? "light" : "dark"); tell(); });
  dark.addEventListener("change", tell);
  tell();

  // Figures: what is pointed at or focused stands out while it is, in all of them; what is pressed stays so.
  const figures = [...document.querySelectorAll(".fig")], buttons = [...document.querySelectorAll(".legend button")];
  const show = (passing) => {
    const pressed = buttons.filter((one) => one.getAttribute("aria-pressed") === "true");
    const chosen = new Set(pressed.map((one) => one.dataset.k));
    if (passing !== undefined) chosen.add(passing);
    for (const figure of figures) {
      const marks = [...figure.querySelectorAll(".plot [data-k]")];
      for (const mark of marks) mark.classList.toggle("on", chosen.has(mark.dataset.k));
      figure.classList.toggle("active", marks.some((mark) => chosen.has(mark.dataset.k)));
    }
  };
  for (const one of buttons) {
    one.addEventListener("click", () => {
      one.setAttribute("aria-pressed", one.getAttribute("aria-pressed") !== "true");
      show();
    });
    one.addEventListener("focus", () => { if (one.matches(":focus-visible")) show(one.dataset.k); });
    one.addEventListener("blur", () => show());
    one.addEventListener("pointerenter", (event) => { if (event.pointerType === "mouse") show(one.dataset.k); });
    one.addEventListener("pointerleave", () => show());
  }
  for (const figure of figures) {
    figure.addEventListener("pointerover", (event) => {
      const mark = event.target.closest(".plot [data-k]");
      if (mark && event.pointerType === "mouse") show(mark.dataset.k);
    });
    figure.addEventListener("pointerout", (event) => { if (event.target.closest(".plot [data-k]")) show(); });
  }
})();
