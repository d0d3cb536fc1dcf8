// Replace regions of the page as the server sends them.
"use strict";
(() => {
  const address = document.currentScript.dataset.events;
  const spoken = document.getElementById("spoken");
  let lastSummary = "";

  function announce(region) {
    // Announce only changes of the state or of the number of finished trials.
    const summary = region.querySelector(".summary")?.textContent.replace(/\s+/g, " ").trim() ?? "";
    if (summary && summary !== lastSummary) {
      if (lastSummary) spoken.textContent = summary;
      lastSummary = summary;
    }
  }

  function replace(name, html) {
    const region = document.querySelector(`[data-region="${CSS.escape(name)}"]`);
    if (!region || region.dataset.shown === html) return;
    const focusable = "a, button, input, summary, [tabindex]";
    const focused = [...region.querySelectorAll(focusable)].indexOf(document.activeElement);
    const typed = [...region.querySelectorAll("input")].map((input) => input.value);
    const opened = [...region.querySelectorAll("details")].map((one) => one.open);
    const scrolled = [...region.querySelectorAll(".scroll")].map((one) => one.scrollLeft);
    region.innerHTML = html;
    region.dataset.shown = html;
    region.querySelectorAll("input").forEach((input, i) => { if (typed[i] !== undefined) input.value = typed[i]; });
    region.querySelectorAll("details").forEach((one, i) => { if (opened[i] !== undefined) one.open = opened[i]; });
    region.querySelectorAll(".scroll").forEach((one, i) => { one.scrollLeft = scrolled[i] ?? 0; });
    if (focused >= 0) region.querySelectorAll(focusable)[focused]?.focus({ preventScroll: true });
    if (name === "status") announce(region);
  }

  const source = new EventSource(address);
  source.addEventListener("region", (event) => {
    const sent = JSON.parse(event.data);
    const before = document.querySelector(".summary")?.dataset.state;
    replace(sent.region, sent.html);
    const after = document.querySelector(".summary")?.dataset.state;
    // The question and the link to the report are not regions: reload when the experiment starts or ends.
    if (before === "starting" && after !== "starting") location.reload();
    if ((before === "running" || before === "starting") && after === "finished") location.reload();
  });
  addEventListener("pagehide", () => source.close());
})();
