// Pointing at a mark shows its figures, and attention maps, the largest part of the page, are folded on a phone.
"use strict";
(() => {
  const pixels = new WeakMap();

  function strengths(image) {
    // The picture's opacity is the square root of the weight, so the weights need not be sent twice.
    if (!pixels.has(image)) {
      pixels.set(image, null);
      const copy = new Image();
      copy.onload = () => {
        const canvas = document.createElement("canvas");
        canvas.width = copy.naturalWidth;
        canvas.height = copy.naturalHeight;
        const context = canvas.getContext("2d");
        context.drawImage(copy, 0, 0);
        pixels.set(image, context.getImageData(0, 0, canvas.width, canvas.height));
      };
      copy.src = image.getAttribute("href");
    }
    return pixels.get(image);
  }

  function ofMap(image, event) {
    const data = strengths(image);
    const box = image.getBoundingClientRect();
    const tokens = JSON.parse(image.closest("[data-tokens]").dataset.tokens);
    const column = Math.floor(((event.clientX - box.left) / box.width) * tokens.length);
    const row = Math.floor(((event.clientY - box.top) / box.height) * tokens.length);
    if (!data || tokens[row] === undefined || tokens[column] === undefined) return "";
    const weight = (data.data[4 * (row * data.width + column) + 3] / 255) ** 2;
    return `${tokens[row]} (${row + 1}) looks at ${tokens[column]} (${column + 1}): ${weight.toFixed(2)}`;
  }

  function words(event) {
    const at = event.target;
    if (!(at instanceof Element)) return "";
    if (at.matches(".map image")) return ofMap(at, event);
    const mark = at.closest(".chart [role='graphics-symbol'][aria-label]");
    return mark && !mark.matches("[aria-roledescription='axis'], [aria-roledescription='legend']")
      ? mark.getAttribute("aria-label")
      : "";
  }

  for (const report of document.querySelectorAll(".h2h:not([data-ready])")) {
    report.dataset.ready = "";
    const tip = report.querySelector(".tip");
    const show = (event) => {
      const said = words(event);
      tip.hidden = !said;
      if (!said) return;
      tip.textContent = said;
      const room = document.documentElement.clientWidth - tip.offsetWidth - 8;
      tip.style.left = `${Math.max(8, Math.min(event.clientX + 12, room))}px`;
      const below = event.clientY + 18 + tip.offsetHeight > window.innerHeight;
      tip.style.top = `${below ? event.clientY - tip.offsetHeight - 12 : event.clientY + 18}px`;
    };
    report.addEventListener("pointermove", show);
    report.addEventListener("pointerdown", show);
    report.addEventListener("pointerleave", () => { tip.hidden = true; });
  }

  if (window.matchMedia("(max-width: 640px)").matches) {
    for (const maps of document.querySelectorAll(".h2h details.maps")) maps.open = false;
  }

  // Paper cannot be clicked: all but the settings is unfolded for it.
  let opened = [];
  window.addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll(".h2h details:not([open]):not(.long)")];
    for (const one of opened) one.open = true;
  });
  window.addEventListener("afterprint", () => { for (const one of opened) one.open = false; });
})();
