// Show progress while an estimate runs, and scroll to the estimate or the errors.
"use strict";
(() => {
  const form = document.getElementById("start");
  document.getElementById("full")?.addEventListener("change", () => {
    // Show the values of the chosen table; changed fields keep their text.
    const show = Object.assign(document.createElement("input"), { type: "hidden", name: "do", value: "show" });
    form.append(show);
    form.submit();
    show.remove();
  });
  form.addEventListener("submit", (event) => {
    const action = event.submitter?.value;
    const messages = { start: "Starting…", estimate: "Running a few training steps; this takes some seconds…" };
    document.getElementById("busy").textContent = messages[action] ?? "";
    // Disable buttons only after the form has been sent: the value of a disabled button is not submitted.
    setTimeout(() => { for (const button of form.querySelectorAll("button")) button.disabled = true; }, 0);
  });
  addEventListener("pageshow", () => { for (const button of form.querySelectorAll("button")) button.disabled = false; });
  const target = document.getElementById("errors") ?? document.querySelector("#estimate:not([hidden])");
  if (target) {
    target.scrollIntoView({ block: "center" });
    target.focus({ preventScroll: true });
  }
})();
