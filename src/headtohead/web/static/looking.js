// Asks for the maps of a text and puts them on the page; the report's own script (attention.js) brings them to life.
"use strict";
(() => {
  const form = document.getElementById("look");
  if (!form) return;
  const [model, against, text, at, words, slider, said, wrong, maps] =
    ["model", "against", "text", "at", "at-words", "moments", "said", "wrong", "maps"].map((id) => document.getElementById(id));
  const button = form.querySelector("button");
  const kept = new Map(); // the last few answers, so that the slider can go back and forth
  const MOST_KEPT = 12;
  let asking = null;

  const moments = () => JSON.parse(model.selectedOptions[0]?.dataset.moments || "[]");
  const moment = () => (moments()[at.value] ?? ["after", ""])[0];

  function showMoments() {
    const found = moments();
    slider.hidden = found.length < 2;
    at.max = Math.max(1, found.length - 1);
    at.value = at.max;
    sayMoment();
  }

  function sayMoment() {
    words.textContent = (moments()[at.value] ?? ["", ""])[1];
    at.setAttribute("aria-valuetext", words.textContent);
  }

  // ---- what was picked stays picked when the maps change

  function picked() {
    const thumb = maps.querySelector('.thumb[aria-pressed="true"]')?.dataset;
    const token = maps.querySelector('.token[aria-pressed="true"]')?.dataset.at;
    const turn = maps.querySelector('.turn button[aria-pressed="true"]')?.dataset.turn;
    return { layer: thumb?.layer, head: thumb?.head, token, turn };
  }

  function pickAgain({ layer, head, token, turn }) {
    const place = [scrollX, scrollY];
    if (layer) maps.querySelector(`.thumb[data-layer="${layer}"][data-head="${head}"]`)?.click();
    if (turn === "to") maps.querySelector('.turn button[data-turn="to"]')?.click();
    if (token) maps.querySelector(`.token[data-at="${token}"]`)?.click();
    scrollTo(...place);
  }

  function show(html) {
    const before = picked();
    const height = maps.offsetHeight;
    maps.style.minHeight = `${height}px`; // the page does not jump while one picture takes the other's place
    maps.innerHTML = html;
    document.dispatchEvent(new Event("attention"));
    pickAgain(before);
    maps.style.minHeight = "";
  }

  // ---- asking

  async function answerTo(question, signal) {
    const key = JSON.stringify(question);
    if (kept.has(key)) return kept.get(key);
    const response = await fetch("/api/attention", {
      method: "POST", headers: { "content-type": "application/json" }, body: key, signal,
    });
    const answer = await response.json().catch(() => ({ detail: `the server answers with ${response.status}` }));
    if (!response.ok) throw new Error(answer.detail);
    kept.set(key, answer.html);
    if (kept.size > MOST_KEPT) kept.delete(kept.keys().next().value);
    return answer.html;
  }

  async function look() {
    asking?.abort();
    const mine = (asking = new AbortController());
    wrong.hidden = true;
    said.textContent = "Looking…";
    maps.setAttribute("aria-busy", "true");
    try {
      const question = { model: model.value, against: against.value || null, at: moment(), text: text.value };
      const html = await answerTo(question, mine.signal);
      if (mine !== asking) return;
      show(html);
      const count = maps.querySelectorAll(".heads[data-panel='0'] .thumb").length;
      said.textContent = `${count} heads, ${words.textContent || "as it is"}.`;
    } catch (error) {
      if (mine !== asking || error.name === "AbortError") return;
      said.textContent = "";
      wrong.textContent = error.message;
      wrong.hidden = false;
    } finally {
      if (mine === asking) maps.removeAttribute("aria-busy");
    }
  }

  let soon = 0;
  form.addEventListener("submit", (event) => { event.preventDefault(); look(); });
  model.addEventListener("change", showMoments);
  at.addEventListener("input", () => {
    sayMoment();
    clearTimeout(soon);
    if (maps.childElementCount) soon = setTimeout(look, 150);
  });
  addEventListener("pagehide", () => asking?.abort());
  showMoments();
})();
