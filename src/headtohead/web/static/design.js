// Keys and a query on a plane. Weights are computed here; the server solves for queries.
"use strict";
(() => {
  const root = document.getElementById("design");
  const byId = (id) => document.getElementById(id);
  const EXAMPLES = new Map(JSON.parse(root.dataset.examples));
  const MOST = Number(root.dataset.most);
  const REACH = Number(root.dataset.reach);
  const SIDE = 400, UNIT = 60;
  const SHRINK = 4; // the query is drawn at 1/4 of its length
  const SNAP = 0.05, STEP = 0.1, FAR_STEP = 0.5;
  const LONGEST = 1000; // at the slider's end
  const QUIET = 500; // milliseconds without a change before the weights are announced
  const svg = root.querySelector("svg");
  const list = byId("keys");

  let keys = []; // { x, y, value, row, mark }
  let query = { x: 4, y: 2 };
  let direction = { x: 1, y: 0 }; // kept for when the query is 0
  let answer = null;
  let asked = 0;
  let speaking = 0;

  // ---- arithmetic

  function scoresOf(points, one) {
    return points.map((key) => key.x * one.x + key.y * one.y);
  }

  function softmax(scores) {
    const highest = Math.max(...scores);
    const powers = scores.map((score) => Math.exp(score - highest));
    const sum = powers.reduce((a, b) => a + b, 0);
    return powers.map((power) => power / sum);
  }

  function hullOf(points) {
    // Andrew's monotone chain.
    const sorted = [...points].sort((a, b) => a.x - b.x || a.y - b.y);
    const turn = (a, b, c) => (b.x - a.x) * (c.y - a.y) - (b.y - a.y) * (c.x - a.x);
    const half = (some) => {
      const chain = [];
      for (const point of some) {
        while (chain.length > 1 && turn(chain.at(-2), chain.at(-1), point) <= 0) chain.pop();
        chain.push(point);
      }
      return chain.slice(0, -1);
    };
    return [...half(sorted), ...half(sorted.reverse())];
  }

  // How many keys with equal weights are as undecided: e to the entropy.
  function sharedBy(weights) {
    return Math.exp(-weights.reduce((sum, weight) => sum + (weight > 0 ? weight * Math.log(weight) : 0), 0));
  }

  function figure(value) {
    if (1 - value > 0 && 1 - value < 5e-5) return `1-${(1 - value).toExponential(0)}`;
    if (value >= 5e-5) return value.toFixed(4);
    return value ? value.toExponential(0) : "0";
  }

  const short = (value) => String(Number(value.toPrecision(4)));
  const clean = (value) => Math.round(value * 1e6) / 1e6; // the server takes nothing smaller
  const within = (value) => Math.min(REACH, Math.max(-REACH, value));
  const snapped = (value) => clean(Math.round(value / SNAP) * SNAP);

  // ---- drawing

  const toPaper = (point) => ({ x: SIDE / 2 + UNIT * point.x, y: SIDE / 2 - UNIT * point.y });

  function made(tag, attributes = {}, parent = null, text = "") {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    if (text) element.textContent = text;
    parent?.append(element);
    return element;
  }

  function drawLine(line, from, to) {
    const [a, b] = [toPaper(from), toPaper(to)];
    for (const [name, value] of [["x1", a.x], ["y1", a.y], ["x2", b.x], ["y2", b.y]]) line.setAttribute(name, value);
  }

  function drawGrid() {
    const grid = svg.querySelector(".grid");
    for (let at = -REACH; at <= REACH; at++) {
      const edge = REACH + 0.2;
      const name = at === 0 ? "axis" : "";
      drawLine(made("line", { class: name }, grid), { x: at, y: -edge }, { x: at, y: edge });
      drawLine(made("line", { class: name }, grid), { x: -edge, y: at }, { x: edge, y: at });
      if (at === 0) continue;
      const below = toPaper({ x: at, y: 0 }), beside = toPaper({ x: 0, y: at });
      made("text", { x: below.x, y: below.y + 13, "text-anchor": "middle" }, grid, String(at));
      made("text", { x: beside.x - 6, y: beside.y + 4, "text-anchor": "end" }, grid, String(at));
    }
  }

  // Where a query's handle lies on the plane: at a quarter of its length, or at the edge.
  function tipOf(one) {
    const x = one.x / SHRINK, y = one.y / SHRINK;
    const outside = Math.max(Math.abs(x), Math.abs(y)) / REACH;
    return outside > 1 ? { x: x / outside, y: y / outside, beyond: true } : { x, y, beyond: false };
  }

  function drawLevel(scores) {
    const line = svg.querySelector(".level");
    const size = Math.hypot(query.x, query.y);
    line.toggleAttribute("hidden", size === 0);
    if (size === 0) return;
    const along = { x: query.x / size, y: query.y / size };
    const height = Math.max(...scores) / size;
    const far = 3 * REACH;
    const at = (side) => ({ x: height * along.x - side * far * along.y, y: height * along.y + side * far * along.x });
    drawLine(line, at(-1), at(1));
  }

  function place(mark, point) {
    const at = toPaper(point);
    mark.setAttribute("transform", `translate(${at.x} ${at.y})`);
  }

  function describe(mark, words, x) {
    mark.setAttribute("aria-valuenow", String(clean(x)));
    mark.setAttribute("aria-valuetext", words);
  }

  function drawKey(key, at, score, weight) {
    place(key.mark, key);
    key.mark.querySelector(".dot").setAttribute("r", 8 + 12 * Math.sqrt(weight));
    key.mark.querySelector(".name").textContent = `${at}`;
    const label = key.mark.querySelector(".value");
    label.textContent = `value ${short(key.value)}`;
    label.setAttribute("y", 19 + 13 * Math.sqrt(weight));
    key.mark.setAttribute("aria-label", `key ${at}`);
    describe(key.mark, `x ${short(key.x)}, y ${short(key.y)}; weight ${figure(weight)}`, key.x);
    const { row } = key;
    row.dataset.weight = weight;
    row.querySelector(".name span").textContent = `key ${at}`;
    row.querySelector(".gauge i").style.width = `${100 * weight}%`;
    row.querySelector(".score").textContent = `score ${Math.abs(score) < 1000 ? score.toFixed(2) : short(score)}`;
    row.querySelector(".weight").textContent = figure(weight);
    const wanted = answer && !answer.stale && answer.kind === "answer" ? answer.target[at] : null;
    const tick = row.querySelector(".gauge b");
    tick.hidden = wanted === null;
    if (wanted !== null) tick.style.left = `${100 * wanted}%`;
    row.querySelector(".remove").disabled = keys.length === 1;
    row.querySelector(".remove").setAttribute("aria-label", `Remove key ${at}`);
    row.querySelector(".select").setAttribute("aria-label", `Select key ${at}`);
    for (const name of ["x", "y", "value"]) {
      fill(row.querySelector(`input.${name}`), key[name]);
      row.querySelector(`input.${name}`).setAttribute("aria-label", `${name} of key ${at}`);
    }
  }

  function fill(input, value) {
    if (input !== document.activeElement) input.value = Math.abs(value) < 1e-9 ? "0" : short(value);
  }

  function drawQuery(weights) {
    const tip = tipOf(query);
    const size = Math.hypot(query.x, query.y);
    place(handle, tip);
    drawLine(svg.querySelector(".arrow"), { x: 0, y: 0 }, tip);
    svg.querySelector(".arrow").classList.toggle("beyond", tip.beyond);
    byId("beyond").hidden = !tip.beyond;
    describe(handle, `x ${short(query.x)}, y ${short(query.y)}; length ${short(size)}`, query.x);
    const slider = byId("length");
    if (slider !== document.activeElement) slider.value = 100 * Math.log1p(size) / Math.log1p(LONGEST);
    slider.setAttribute("aria-valuetext", `length ${short(size)}`);
    byId("length-value").textContent = short(size);
    for (const name of ["x", "y"]) fill(byId("query-row").querySelector(`.${name}`), query[name]);
    byId("sharpness").textContent = `effective number of keys: ${sharedBy(weights).toFixed(2)} of ${keys.length}`;
  }

  function drawOthers() {
    const group = svg.querySelector(".others");
    group.replaceChildren();
    if (!answer || answer.stale || answer.kind !== "identity") return;
    answer.query.forEach(([x, y], at) => {
      const tip = tipOf({ x, y });
      drawLine(made("line", {}, group), { x: 0, y: 0 }, tip);
      const paper = toPaper({ x: tip.x * 1.04, y: tip.y * 1.04 });
      made("text", { x: paper.x, y: paper.y + 4, "text-anchor": "middle" }, group, `q${at}`);
    });
  }

  function draw() {
    const scores = scoresOf(keys, query);
    const weights = softmax(scores);
    keys.forEach((key, at) => drawKey(key, at, scores[at], weights[at]));
    svg.querySelector(".hull").setAttribute(
      "points", hullOf(keys).map(toPaper).map((at) => `${at.x},${at.y}`).join(" "));
    drawLevel(scores);
    drawOthers();
    drawQuery(weights);
    byId("output").textContent = short(weights.reduce((sum, weight, at) => sum + weight * keys[at].value, 0));
    byId("add").disabled = keys.length >= MOST;
    byId("stale").hidden = !answer?.stale;
    clearTimeout(speaking);
    speaking = setTimeout(() => {
      byId("spoken").textContent = `Weights: ${weights.map((weight, at) => `key ${at} ${figure(weight)}`).join(", ")}`;
    }, QUIET);
  }

  // ---- changing

  function turnQuery(x, y) {
    query = { x, y };
    const size = Math.hypot(x, y);
    if (size > 0) direction = { x: x / size, y: y / size };
    draw();
  }

  function moveKey(key, x, y) {
    key.x = within(x);
    key.y = within(y);
    changed();
  }

  function changed() {
    if (answer) answer.stale = true;
    draw();
  }

  // A point that can be dragged, and moved with the arrow keys. `where` gives its place on the plane, `move` sets it.
  function movable(mark, where, move, step) {
    let grip = null;
    const onPlane = (event) => {
      const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
      return { x: (at.x - SIDE / 2) / UNIT, y: (SIDE / 2 - at.y) / UNIT };
    };
    mark.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      const at = onPlane(event), from = where();
      grip = { x: from.x - at.x, y: from.y - at.y, start: at, moved: false };
      mark.setPointerCapture(event.pointerId);
      mark.focus({ preventScroll: true });
      event.preventDefault();
    });
    const follow = (event) => {
      if (!grip) return;
      const at = onPlane(event);
      grip.moved ||= Math.hypot(at.x - grip.start.x, at.y - grip.start.y) > SNAP / 2; // a click does not move the point
      if (grip.moved) move(within(snapped(at.x + grip.x)), within(snapped(at.y + grip.y)));
    };
    // Some browsers ignore touch-action inside SVG.
    mark.addEventListener("touchstart", (event) => event.preventDefault(), { passive: false });
    mark.addEventListener("pointermove", follow);
    mark.addEventListener("pointerup", follow); // the last move may arrive with pointerup
    for (const end of ["pointerup", "pointercancel", "lostpointercapture"])
      mark.addEventListener(end, () => { grip = null; });
    mark.addEventListener("keydown", (event) => {
      const turns = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
      if (!(event.key in turns) || event.ctrlKey || event.altKey || event.metaKey) return;
      event.preventDefault();
      const size = event.shiftKey ? FAR_STEP : STEP;
      step(...turns[event.key].map((one) => one * size));
    });
  }

  function point(name, label, shape) {
    const mark = made("g", {
      class: `point ${name}`, tabindex: "0", role: "slider", "aria-label": label,
      "aria-roledescription": "point on the plane", "aria-valuemin": -REACH, "aria-valuemax": REACH,
    });
    made("circle", { class: "grip", r: 22 }, mark);
    made("circle", { class: "ring", r: 17 }, mark);
    mark.append(shape);
    made("text", { class: "name", "text-anchor": "middle", y: 4.5 }, mark);
    made("text", { class: "value", "text-anchor": "middle" }, mark);
    return mark;
  }

  const handle = point("query", "query", made("path", { class: "dot", d: "M0 -11 L11 0 L0 11 L-11 0 Z" }));
  handle.querySelector(".name").textContent = "q";
  handle.removeAttribute("aria-valuemin");
  handle.removeAttribute("aria-valuemax");
  movable(
    handle, () => tipOf(query), (x, y) => turnQuery(clean(x * SHRINK), clean(y * SHRINK)),
    (x, y) => turnQuery(clean(query.x + x * SHRINK), clean(query.y + y * SHRINK)));

  function addKey(x, y, value) {
    const mark = point("of-key", "key", made("circle", { class: "dot" }));
    const row = byId("key-row").content.firstElementChild.cloneNode(true);
    const key = { x, y, value, mark, row };
    movable(mark, () => key, (...at) => moveKey(key, ...at), (dx, dy) => moveKey(key, clean(key.x + dx), clean(key.y + dy)));
    for (const name of ["x", "y", "value"]) onNumber(row.querySelector(`input.${name}`), (given) => {
      key[name] = clean(given);
      changed();
    });
    row.querySelector(".select").addEventListener("click", () => ask("select", { key: keys.indexOf(key) }));
    row.querySelector(".remove").addEventListener("click", () => removeKey(key));
    keys.push(key);
    list.append(row);
    svg.querySelector(".points").insertBefore(mark, handle);
    return key;
  }

  function onNumber(input, take) {
    input.addEventListener("input", () => {
      if (input.value.trim() !== "" && input.validity.valid) take(input.valueAsNumber);
    });
    input.addEventListener("blur", draw); // restore the last valid value
  }

  function removeKey(key) {
    const at = keys.indexOf(key);
    keys.splice(at, 1);
    key.row.remove();
    key.mark.remove();
    changed();
    const next = keys[Math.min(at, keys.length - 1)].row.querySelector(keys.length > 1 ? ".remove" : ".select");
    next.focus({ preventScroll: true });
  }

  function freePlace() {
    // The point of a coarse grid that is farthest from all keys.
    let best = { x: 0, y: 0, gap: -1 };
    for (let x = -2; x <= 2; x += 0.5) for (let y = -2; y <= 2; y += 0.5) {
      const gap = Math.min(...keys.map((key) => Math.hypot(key.x - x, key.y - y)));
      if (gap > best.gap) best = { x, y, gap };
    }
    return best;
  }

  function begin(places) {
    for (const key of keys) { key.row.remove(); key.mark.remove(); }
    keys = [];
    places.forEach(([x, y], at) => addKey(x, y, at + 1));
    answer = null;
    byId("answer").hidden = true;
    draw();
  }

  // ---- requests

  async function ask(verb, more) {
    const mine = ++asked;
    const places = JSON.stringify(keys.map((key) => [key.x, key.y]));
    const body = { keys: JSON.parse(places), values: keys.map((key) => key.value), ...more };
    if (byId("precision").value) body.precision = Number(byId("precision").value);
    byId("failed").hidden = true;
    root.setAttribute("aria-busy", "true");
    let found, words;
    try {
      const sent = await fetch(`/api/design/${verb}`, {
        method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) });
      found = await sent.json();
      if (!sent.ok) words = found.detail;
    } catch {
      words = "No response from the server. Is it still running?";
    }
    if (mine !== asked) return; // superseded by another request
    root.removeAttribute("aria-busy");
    if (words) return fail(words);
    show({ ...found, stale: places !== JSON.stringify(keys.map((key) => [key.x, key.y])) });
  }

  function fail(words) {
    byId("failed").textContent = words;
    byId("failed").hidden = false;
  }

  function show(found) {
    answer = found;
    byId("heading").textContent = found.heading;
    byId("answer").classList.toggle("not", !found.exact);
    byId("reason").textContent = found.reason;
    byId("facts").replaceChildren(...Object.entries(found.facts).flatMap(([name, value]) => {
      const dt = document.createElement("dt"), dd = document.createElement("dd");
      [dt.textContent, dd.textContent] = [name, value];
      return [dt, dd];
    }));
    const isMatrix = found.kind === "identity";
    byId("matrix").hidden = !isMatrix;
    byId("back").hidden = isMatrix;
    if (isMatrix) fillMatrix(found);
    byId("answer").hidden = false;
    if (isMatrix) draw(); else turnQuery(...found.query);
    byId("answer").scrollIntoView({ block: "nearest" });
  }

  function fillMatrix(found) {
    const table = byId("matrix").querySelector("table");
    const cell = (tag, text, parent, attributes = {}) => {
      const one = document.createElement(tag);
      one.textContent = text;
      for (const [name, value] of Object.entries(attributes)) one.setAttribute(name, value);
      parent.append(one);
      return one;
    };
    table.replaceChildren();
    const head = cell("tr", "", cell("thead", "", table));
    cell("th", "query", head, { scope: "col" });
    found.keys.forEach((_, at) => cell("th", `key ${at}`, head, { scope: "col", class: "figure" }));
    const body = cell("tbody", "", table);
    found.weights.forEach((weights, at) => {
      const line = cell("tr", "", body);
      const button = cell("button", `q${at}`, cell("th", "", line, { scope: "row" }), {
        type: "button", class: "second small", "aria-label": `Move the query to q${at}` });
      button.addEventListener("click", () => turnQuery(...found.query[at]));
      weights.forEach((weight, other) => {
        const one = cell("td", figure(weight), line, { class: other === at ? "figure right" : "figure" });
        one.style.setProperty("--share", weight);
      });
    });
  }

  // ---- the controls

  byId("add").addEventListener("click", () => {
    const { x, y } = freePlace();
    const key = addKey(x, y, keys.length + 1);
    changed();
    key.mark.focus({ preventScroll: true });
  });
  byId("average").addEventListener("click", () => {
    const indices = keys.flatMap((key, at) => (key.row.querySelector(".ticked").checked ? [at] : []));
    if (indices.length) ask("average", { indices });
    else fail("Check the keys to average first.");
  });
  byId("identity").addEventListener("click", () => ask("identity", {}));
  byId("back").addEventListener("click", () => turnQuery(...answer.query));
  byId("length").addEventListener("input", (event) => {
    const size = Math.expm1(event.target.valueAsNumber / 100 * Math.log1p(LONGEST));
    turnQuery(direction.x * size, direction.y * size);
  });
  for (const name of ["x", "y"]) onNumber(byId("query-row").querySelector(`.${name}`), (given) => {
    turnQuery(...(name === "x" ? [given, query.y] : [query.x, given]));
  });
  byId("example").addEventListener("change", (event) => {
    if (event.target.value) begin(EXAMPLES.get(event.target.value));
    event.target.value = "";
  });

  drawGrid();
  svg.querySelector(".points").append(handle);
  begin(EXAMPLES.values().next().value);
  turnQuery(query.x, query.y);
})();
