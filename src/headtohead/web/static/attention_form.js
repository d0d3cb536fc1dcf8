// Request attention maps and insert them into the page; attention.js makes them interactive.
"use strict";
(() => {
  const form = document.getElementById("attention");
  if (!form) return;
  const [model, compareTo, text, checkpoint, checkpointLabel, slider, statusText, errorBox, maps] =
    ["model", "compare-to", "text", "checkpoint", "checkpoint-label", "checkpoints", "status-text", "error", "maps"].map((id) => document.getElementById(id));
  const cache = new Map(); // recent responses, so that the slider can go back and forth
  const MAX_CACHED = 12;
  let pending = null;

  const checkpoints = () => JSON.parse(model.selectedOptions[0]?.dataset.checkpoints || "[]");
  const selectedCheckpoint = () => (checkpoints()[checkpoint.value] ?? ["after", ""])[0];

  function resetSlider() {
    const available = checkpoints();
    slider.hidden = available.length < 2;
    checkpoint.max = Math.max(1, available.length - 1);
    checkpoint.value = checkpoint.max;
    showCheckpointLabel();
  }

  function showCheckpointLabel() {
    checkpointLabel.textContent = (checkpoints()[checkpoint.value] ?? ["", ""])[1];
    checkpoint.setAttribute("aria-valuetext", checkpointLabel.textContent);
  }

  // ---- keep the selection when the maps change

  function getSelection() {
    const thumb = maps.querySelector('.thumb[aria-pressed="true"]')?.dataset;
    const token = maps.querySelector('.token[aria-pressed="true"]')?.dataset.at;
    const turn = maps.querySelector('.turn button[aria-pressed="true"]')?.dataset.turn;
    return { layer: thumb?.layer, head: thumb?.head, token, turn };
  }

  function restoreSelection({ layer, head, token, turn }) {
    const position = [scrollX, scrollY];
    if (layer) maps.querySelector(`.thumb[data-layer="${layer}"][data-head="${head}"]`)?.click();
    if (turn === "to") maps.querySelector('.turn button[data-turn="to"]')?.click();
    if (token) maps.querySelector(`.token[data-at="${token}"]`)?.click();
    scrollTo(...position);
  }

  function show(html) {
    const selection = getSelection();
    const height = maps.offsetHeight;
    maps.style.minHeight = `${height}px`; // prevents the page from jumping
    maps.innerHTML = html;
    document.dispatchEvent(new Event("attention"));
    restoreSelection(selection);
    maps.style.minHeight = "";
  }

  // ---- requests

  async function fetchMaps(request, signal) {
    const key = JSON.stringify(request);
    if (cache.has(key)) return cache.get(key);
    const response = await fetch("/api/attention", {
      method: "POST", headers: { "content-type": "application/json" }, body: key, signal,
    });
    const result = await response.json().catch(() => ({ detail: `server error ${response.status}` }));
    if (!response.ok) throw new Error(result.detail);
    cache.set(key, result.html);
    if (cache.size > MAX_CACHED) cache.delete(cache.keys().next().value);
    return result.html;
  }

  async function update() {
    pending?.abort();
    const controller = (pending = new AbortController());
    errorBox.hidden = true;
    statusText.textContent = "Computing…";
    maps.setAttribute("aria-busy", "true");
    try {
      const request = {
        model: model.value, compare_to: compareTo.value || null, checkpoint: selectedCheckpoint(), text: text.value,
      };
      const html = await fetchMaps(request, controller.signal);
      if (controller !== pending) return;
      show(html);
      const count = maps.querySelectorAll(".heads[data-panel='0'] .thumb").length;
      statusText.textContent = [`${count} heads`, checkpointLabel.textContent].filter(Boolean).join(", ") + ".";
    } catch (error) {
      if (controller !== pending || error.name === "AbortError") return;
      statusText.textContent = "";
      errorBox.textContent = error.message;
      errorBox.hidden = false;
    } finally {
      if (controller === pending) maps.removeAttribute("aria-busy");
    }
  }

  let timer = 0;
  form.addEventListener("submit", (event) => { event.preventDefault(); update(); });
  model.addEventListener("change", resetSlider);
  checkpoint.addEventListener("input", () => {
    showCheckpointLabel();
    clearTimeout(timer);
    if (maps.childElementCount) timer = setTimeout(update, 150);
  });
  addEventListener("pagehide", () => pending?.abort());
  resetSlider();
})();
