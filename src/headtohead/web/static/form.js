// While an estimate is made, say so; when there is one, or an error, go to it.
"use strict";
(() => {
  const form = document.getElementById("start");
  document.getElementById("full")?.addEventListener("change", () => {
    // The values below are those of the setting that is ticked; what was changed stays changed.
    const show = Object.assign(document.createElement("input"), { type: "hidden", name: "do", value: "show" });
    form.append(show);
    form.submit();
    show.remove();
  });
  form.addEventListener("submit", (event) => {
    const asked = event.submitter?.value;
    const words = { start: "Starting…", estimate: "A few real steps are being made; this takes some seconds…" };
    document.getElementById("busy").textContent = words[asked] ?? "";
    // Not disabled before the form has been sent, or the button's own value would be left out.
    setTimeout(() => { for (const button of form.querySelectorAll("button")) button.disabled = true; }, 0);
  });
  addEventListener("pageshow", () => { for (const button of form.querySelectorAll("button")) button.disabled = false; });
  const there = document.getElementById("errors") ?? document.querySelector("#estimate:not([hidden])");
  if (there) {
    there.scrollIntoView({ block: "center" });
    there.focus({ preventScroll: true });
  }
})();
