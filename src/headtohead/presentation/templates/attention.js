// Picks a head and a token, and reads the weights that the pictures carry. The maps are there without this script.
"use strict";
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const CELL = 34; // a pair of tokens is never drawn larger,
  const SIDE = 660; // nor a map
  const LABEL = 10.5;
  const LISTED = 8; // weights of a token
  const read = new WeakMap();

  // ---- weights: a PNG of ours has a byte for each pair of tokens, and a second one in a chunk of its own

  async function inflated(bytes) {
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Uint8Array(await new Response(stream).arrayBuffer());
  }

  async function decoded(image, panel, power) {
    const bytes = Uint8Array.from(atob(image.src.split(",")[1]), (letter) => letter.charCodeAt(0));
    const view = new DataView(bytes.buffer);
    const chunks = {};
    for (let at = 8; at < bytes.length; ) {
      const size = view.getUint32(at);
      chunks[String.fromCharCode(...bytes.subarray(at + 4, at + 8))] = bytes.subarray(at + 8, at + 8 + size);
      at += 12 + size;
    }
    const side = view.getUint32(16);
    const high = await inflated(chunks.IDAT);
    const low = chunks.loWB ? await inflated(chunks.loWB) : null;
    const top = low ? 65535 : 255;
    const middle = (top + 1) / 2;
    return {
      fine: Boolean(low),
      at(row, column) {
        const place = row * (side + 1) + 1 + column; // each line begins with a 0
        const count = low ? 256 * high[place] + low[place] : high[place];
        const strength = panel.signed ? (count - middle) / (middle - 1) : count / top;
        return Math.sign(strength) * Math.abs(strength) ** (1 / power);
      },
    };
  }

  function figure(weight, weights, signed) {
    const text = weights.fine ? weight.toFixed(4) : Number(weight.toPrecision(2)).toString();
    return (signed && weight > 0 ? "+" : "") + text.replace("-", "−");
  }

  function node(name, attributes, words) {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (words !== undefined) made.textContent = words;
    return made;
  }

  function element(name, words) {
    const made = document.createElement(name);
    made.textContent = words;
    return made;
  }

  function shortened(token) {
    const letters = [...token];
    return letters.length > 14 ? letters.slice(0, 13).join("") + "…" : token;
  }

  function start(main) {
    const sheet = JSON.parse(main.querySelector(".sheet").textContent);
    const { tokens, pool, power } = sheet;
    const length = tokens.length;
    const blocks = Math.ceil(length / pool);
    const thumbs = [...main.querySelectorAll(".thumb")];
    const views = [...main.querySelectorAll(".views figure")];
    const lines = [...main.querySelectorAll(".line")];
    const tip = main.querySelector(".tip");
    const first = thumbs[0].dataset;
    const state = { layer: first.layer, head: first.head, token: null, turn: "from", cell: null };

    const thumbOf = (panel) =>
      main.querySelector(`.heads[data-panel="${panel}"] .thumb[data-layer="${state.layer}"][data-head="${state.head}"]`);

    function weightsOf(panel) {
      const image = thumbOf(panel).firstElementChild;
      if (!read.has(image)) read.set(image, decoded(image, sheet.panels[panel], power));
      return read.get(image);
    }

    // ---- the text, shaded

    function many(block) {
      const from = block * pool;
      const to = Math.min(length, from + pool) - 1;
      return from === to ? `“${tokens[from]}” (${from + 1})` : `tokens ${from + 1} to ${to + 1}`;
    }

    function pairWords(row, column) {
      return `${many(row)} ${pool > 1 ? "look at most" : "looks"} at ${many(column)}`;
    }

    async function shade() {
      const picked = state.token;
      const { layer, head, turn } = state;
      const told = lines.map(() => []);
      for (const [panel, line] of lines.entries()) {
        const weights = picked === null ? null : await weightsOf(panel);
        if (picked !== state.token || layer !== state.layer || head !== state.head || turn !== state.turn) return;
        for (const button of line.querySelectorAll(".token")) {
          const at = Number(button.dataset.at);
          button.setAttribute("aria-pressed", String(at === picked));
          button.tabIndex = at === (picked ?? 0) ? 0 : -1;
          if (!weights) {
            button.style.background = "";
            continue;
          }
          const [row, column] = turn === "from" ? [picked, at] : [at, picked];
          const weight = row >= sheet.real ? 0 : weights.at(Math.floor(row / pool), Math.floor(column / pool));
          if (at % pool === 0) told[panel].push([at, weight, figure(weight, weights, sheet.panels[panel].signed)]);
          const strength = Math.abs(weight) ** Math.max(power, 0.5);
          const hue = weight < 0 ? "--less-hue" : "--more-hue";
          button.style.background = strength > 0.004 ? `rgb(var(${hue}) / ${(0.75 * strength).toFixed(3)})` : "";
        }
      }
      const words = { from: "looks here", to: "is looked at from here" }[turn];
      main.querySelector(".chosen").textContent = picked === null ? "" : `“${tokens[picked]}” (${picked + 1}) ${words}`;
      list(picked === null ? [] : told);
      marks();
    }

    // The largest weights of the picked token, in figures.
    function list(told) {
      const parts = told.map((found, panel) => {
        const made = document.createElement("div");
        if (told.length > 1) made.append(element("h3", sheet.panels[panel].title));
        const seen = found.filter((one) => Math.abs(one[1]) >= 5e-5);
        const most = seen.sort((a, b) => Math.abs(b[1]) - Math.abs(a[1])).slice(0, LISTED);
        const rows = document.createElement("ol");
        for (const [at, , words] of most) {
          const row = element("li", many(Math.floor(at / pool)));
          row.append(" ", element("b", words));
          rows.append(row);
        }
        made.append(rows);
        return made;
      });
      const holder = main.querySelector(".listed");
      holder.replaceChildren(...parts);
      holder.hidden = told.length === 0;
    }

    function pick(token, focusIn) {
      state.token = token;
      if (focusIn) focusIn.querySelector(`.token[data-at="${token}"]`).focus();
      shade();
    }

    // ---- one head, large

    function layout(width) {
      const longest = Math.max(...tokens.map((token) => shortened(token).length));
      const named = Math.min(14, longest) * LABEL * 0.66 + 8;
      const left = Math.min(named, width * 0.26);
      const cell = Math.min(CELL, SIDE / length, (width - left - Math.min(named * 0.6, 40)) / length);
      return { left, top: named * 0.9 + 4, cell, side: cell * length, step: cell < LABEL ? Math.ceil((LABEL + 3) / cell) : 1 };
    }

    function drawLarge(panel) {
      const holder = views[panel];
      const svg = holder.querySelector(".big");
      const width = holder.clientWidth;
      if (!width) return;
      const { left, top, cell, side, step } = layout(width);
      const right = Math.min(width, left + side + 46);
      const made = [];
      const kept = cell * sheet.real;
      if (kept < side) made.push(node("rect", { class: "pad", x: left + kept, y: top, width: side - kept, height: side }));
      const shown = cell * blocks * pool; // the last block may reach beyond the text
      const clip = node("svg", { x: left, y: top, width: side, height: side });
      const source = { href: thumbOf(panel).firstElementChild.src, width: shown, height: shown, preserveAspectRatio: "none" };
      clip.append(node("image", source));
      made.push(clip);
      if (kept < side) {
        made.push(node("rect", { class: "pad", x: left, y: top + kept, width: side, height: side - kept }));
      }
      made.push(node("rect", { class: "frame", x: left, y: top, width: side, height: side }));
      const size = Math.min(LABEL + 1.5, Math.max(LABEL - 1.5, 0.62 * cell));
      for (let at = 0; at < length; at += step) {
        const middle = (at + 0.5) * cell;
        const row = { x: left - 5, y: top + middle + size * 0.34, "text-anchor": "end", "font-size": size };
        made.push(node("text", row, shortened(tokens[at])));
        const place = `translate(${left + middle + size * 0.3},${top - 5}) rotate(-60)`;
        made.push(node("text", { transform: place, "font-size": size }, shortened(tokens[at])));
      }
      made.push(node("g", { class: "over-it" }));
      svg.replaceChildren(...made);
      svg.setAttribute("width", right);
      svg.setAttribute("height", top + side + 4);
      svg.setAttribute("viewBox", `0 0 ${right} ${top + side + 4}`);
      svg.setAttribute("aria-label", `${thumbOf(panel).getAttribute("aria-label")} Arrow keys move from cell to cell.`);
      svg.place = { left, top, cell, side };
    }

    function marks() {
      for (const view of views) {
        const svg = view.querySelector(".big");
        if (!svg.place) continue;
        const { left, top, cell, side } = svg.place;
        const made = [];
        if (state.token !== null) {
          const at = state.token * cell;
          const box = state.turn === "from" ? { x: left, y: top + at, width: side, height: cell } : { x: left + at, y: top, width: cell, height: side };
          made.push(node("rect", { class: "mark", ...box }));
        }
        if (state.cell) {
          const [row, column] = state.cell;
          const wide = pool * cell;
          made.push(node("rect", { class: "here", x: left + column * wide, y: top + row * wide, width: wide, height: wide }));
        }
        svg.querySelector(".over-it").replaceChildren(...made);
      }
    }

    function enlarge(layer, head, move) {
      Object.assign(state, { layer, head, cell: null });
      main.querySelector(".which").textContent = `Layer ${layer}, head ${head}`;
      for (const thumb of thumbs) {
        const on = thumb.dataset.layer === layer && thumb.dataset.head === head;
        thumb.setAttribute("aria-pressed", String(on));
        thumb.tabIndex = on ? 0 : -1;
      }
      views.forEach((_, panel) => drawLarge(panel));
      shade();
      if (move) main.querySelector(".closer").scrollIntoView({ block: "nearest", behavior: "auto" });
    }

    // ---- pointing

    function say(words, x, y) {
      tip.hidden = !words;
      if (!words) return;
      if (tip.textContent !== words) tip.textContent = words;
      const room = document.documentElement.clientWidth - tip.offsetWidth - 8;
      tip.style.left = `${Math.max(8, Math.min(x + 12, room))}px`;
      const below = y + 18 + tip.offsetHeight > window.innerHeight;
      tip.style.top = `${below ? y - tip.offsetHeight - 12 : y + 18}px`;
    }

    async function sayCell(row, column, x, y) {
      const every = await Promise.all(sheet.panels.map((_, panel) => weightsOf(panel)));
      const means = row * pool >= sheet.real ? "\npadding looks: this means nothing" : column * pool >= sheet.real ? "\npadding" : "";
      const figures = every.map((weights, panel) => {
        const { title, signed } = sheet.panels[panel];
        const words = figure(weights.at(row, column), weights, signed);
        return every.length > 1 ? `\n${title}: ${words}` : `: ${words}`;
      });
      say(pairWords(row, column) + figures.join("") + means, x, y);
    }

    function cellAt(svg, event) {
      const box = svg.getBoundingClientRect();
      const { left, top, cell } = svg.place;
      const scale = box.width / Number(svg.getAttribute("width"));
      const column = Math.floor(((event.clientX - box.left) / scale - left) / cell / pool);
      const row = Math.floor(((event.clientY - box.top) / scale - top) / cell / pool);
      return row >= 0 && column >= 0 && row < blocks && column < blocks ? [row, column] : null;
    }

    function point(svg, event) {
      const found = cellAt(svg, event);
      if (!found) return say("");
      return sayCell(...found, event.clientX, event.clientY);
    }

    const STEPS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

    function onMapKey(svg, event) {
      if (event.key === "Escape") {
        state.cell = null;
        say("");
        return marks();
      }
      if (event.key === "Enter" && state.cell) return pick(Math.min(length - 1, state.cell[0] * pool));
      const step = STEPS[event.key];
      if (!step) return undefined;
      event.preventDefault();
      const [row, column] = state.cell || [0, 0];
      const moved = [row + step[0], column + step[1]].map((one) => Math.max(0, Math.min(blocks - 1, one)));
      const next = state.cell ? moved : [0, 0]; // the first key enters the map
      state.cell = next;
      marks();
      const box = svg.getBoundingClientRect();
      const wide = svg.place.cell * pool;
      return sayCell(...next, box.left + svg.place.left + (next[1] + 1) * wide, box.top + svg.place.top + (next[0] + 1) * wide);
    }

    function moveAmong(buttons, event, across) {
      const step = STEPS[event.key];
      const at = buttons.indexOf(event.target);
      if (!step || at < 0) return null;
      event.preventDefault();
      return buttons[at + step[0] * across + step[1]] || null;
    }

    for (const [panel, view] of views.entries()) {
      const svg = view.querySelector(".big");
      svg.addEventListener("pointermove", (event) => point(svg, event));
      svg.addEventListener("pointerleave", () => say(""));
      svg.addEventListener("blur", () => say(""));
      svg.addEventListener("keydown", (event) => onMapKey(svg, event));
      svg.addEventListener("click", (event) => {
        const found = cellAt(svg, event);
        if (found) pick(Math.min(length - 1, found[state.turn === "from" ? 0 : 1] * pool));
      });
      new ResizeObserver(() => { drawLarge(panel); marks(); }).observe(view);
    }
    for (const line of lines) {
      const buttons = [...line.querySelectorAll(".token")];
      line.addEventListener("click", (event) => {
        const button = event.target.closest(".token");
        if (button) pick(Number(button.dataset.at) === state.token ? null : Number(button.dataset.at));
      });
      line.addEventListener("keydown", (event) => {
        const next = moveAmong(buttons, event, 1);
        if (next) pick(Number(next.dataset.at), line);
      });
      line.addEventListener("pointermove", async (event) => {
        const button = event.target.closest(".token");
        if (!button || state.token === null) return say("");
        const at = Math.floor(Number(button.dataset.at) / pool);
        const picked = Math.floor(state.token / pool);
        return sayCell(...(state.turn === "from" ? [picked, at] : [at, picked]), event.clientX, event.clientY);
      });
      line.addEventListener("pointerleave", () => say(""));
    }
    for (const table of main.querySelectorAll(".heads")) {
      const inside = [...table.querySelectorAll(".thumb")];
      const across = table.querySelectorAll("thead th").length;
      table.addEventListener("keydown", (event) => {
        const next = moveAmong(inside, event, across);
        if (!next) return;
        enlarge(next.dataset.layer, next.dataset.head);
        next.focus();
      });
    }
    for (const button of main.querySelectorAll(".thumb, .pick")) {
      button.addEventListener("click", () => enlarge(button.dataset.layer, button.dataset.head, true));
    }
    const turns = [...main.querySelectorAll(".turn button")];
    for (const button of turns) {
      button.addEventListener("click", () => {
        state.turn = button.dataset.turn;
        for (const one of turns) one.setAttribute("aria-pressed", String(one === button));
        shade();
      });
    }
    main.querySelector(".turn").hidden = false;
    main.querySelector(".closer").hidden = false;
    enlarge(first.layer, first.head);
  }

  function startNew() {
    for (const main of document.querySelectorAll(".h2h.attention:not([data-ready])")) {
      main.dataset.ready = "";
      start(main);
    }
  }
  startNew();
  document.addEventListener("attention", startNew); // a page that has got another one says so
})();
