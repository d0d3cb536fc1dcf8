// Show texts as they are generated; sliders redraw from the logits without another request.
"use strict";
(() => {
  const form = document.getElementById("play");
  if (!form) return;
  const byId = (id) => document.getElementById(id);
  const statusText = byId("status-text"), errorBox = byId("error"), columns = byId("columns");
  const stop = byId("stop"), generateButton = form.querySelector('button[type="submit"]');
  const SHOWN = 24; // bars of the next-token distribution
  let generation = null;
  let request = null; // of the texts on the page
  let texts = [];

  function createElement(name, text, className) {
    const element = document.createElement(name);
    if (text !== undefined) element.textContent = text;
    if (className) element.className = className;
    return element;
  }

  const visible = (token) => token.replace(/ /g, "␣").replace(/\n/g, "⏎").replace(/\t/g, "⇥") || "∅";
  const percent = (share) => (share >= 0.9995 ? "100" : share >= 0.0995 ? (100 * share).toFixed(1) : (100 * share).toPrecision(2)) + " %";

  function showError(error) {
    if (error.name === "AbortError") return;
    errorBox.textContent = error.message;
    errorBox.hidden = false;
  }

  async function post(path, body, signal) {
    const response = await fetch(path, {
      method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body), signal,
    });
    if (response.ok) return response;
    const result = await response.json().catch(() => ({}));
    throw new Error(result.detail || `server error ${response.status}`);
  }

  // ---- the form

  const models = () => [...new Set([...form.querySelectorAll('select[name="model"]')].map((one) => one.value).filter(Boolean))];

  function strategies() {
    const found = [...form.querySelectorAll('input[name="strategy"]:checked')].map((box) => {
      const option = form.querySelector(`input[data-of="${box.value}"]`);
      return option ? `${box.value}=${option.value}` : box.value;
    });
    const others = byId("others").value.trim();
    return others ? [...found, others] : found;
  }

  function readForm() {
    return {
      models: models(), strategies: strategies(), prompt: byId("prompt").value, chat: byId("chat").checked,
      max_new_tokens: Number(byId("tokens").value), seed: Number(byId("seed").value),
    };
  }

  // ---- one text

  class Writing {
    constructor(about, model, several) {
      this.about = about;
      this.model = model;
      this.steps = [];
      this.root = createElement("article", undefined, "column");
      this.root.append(createElement("h3", about.strategy));
      if (several) this.root.append(createElement("p", about.model, "whose"));
      this.text = createElement("p", undefined, "written");
      this.text.setAttribute("role", "group");
      this.text.setAttribute("aria-label", `Text of ${about.model}, ${about.strategy}`);
      this.text.append(createElement("span", request.prompt, "prompt"));
      this.state = createElement("p", "generating…", "notes");
      this.root.append(this.text, this.state);
      if (about.note) this.root.append(createElement("p", about.note, "notes"));
      this.text.addEventListener("pointerover", (event) => this.point(event));
      this.text.addEventListener("focusin", (event) => this.point(event));
      this.text.addEventListener("click", (event) => this.open(event));
      this.text.addEventListener("keydown", (event) => this.onKey(event));
    }

    take(step) {
      const at = this.steps.push(step) - 1;
      const isStop = step.ended === "token";
      const one = createElement("span", isStop ? "■" : step.text, `piece${isStop ? " end" : ""}${step.text || isStop ? "" : " half"}`);
      one.dataset.at = at;
      one.tabIndex = at === 0 ? 0 : -1;
      one.setAttribute("role", "button");
      one.setAttribute("aria-label", `${step.token}, ${percent(step.probability)}`);
      // The shade saturates at a probability of one in ten thousand.
      one.style.setProperty("--rare", Math.min(1, -Math.log10(Math.max(step.probability, 1e-9)) / 4).toFixed(3));
      this.text.append(one);
      const ends = { token: "ended", string: "stopped at a stop string", length: "reached the maximum length" };
      const words = step.ended ? ends[step.ended] : "generating…";
      this.state.textContent = `${this.steps.length} tokens, ${words}${step.has_overflowed ? "; longer than the context, so its beginning was dropped" : ""}`;
    }

    fail(message) {
      this.state.textContent = message;
      this.state.className = "error";
    }

    word(event) {
      return event.target.closest(".piece");
    }

    point(event) {
      const one = this.word(event);
      if (!one) return;
      for (const other of columns.querySelectorAll(".piece.here")) other.classList.remove("here");
      one.classList.add("here");
      showDetail(this, Number(one.dataset.at));
    }

    open(event) {
      const one = this.word(event);
      if (one) askNext(this.model, this.steps.slice(0, Number(one.dataset.at)).map((step) => step.id), request);
    }

    onKey(event) {
      const one = this.word(event);
      if (!one) return;
      if (event.key === "Enter" || event.key === " ") {
        event.preventDefault();
        this.open(event);
        return;
      }
      const words = [...this.text.querySelectorAll(".piece")];
      const by = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1, Home: -words.length, End: words.length }[event.key];
      if (!by) return;
      event.preventDefault();
      const next = words[Math.max(0, Math.min(words.length - 1, Number(one.dataset.at) + by))];
      one.tabIndex = -1;
      next.tabIndex = 0;
      next.focus();
    }
  }

  // ---- bars

  function bar(name, share, most, figures, kinds = "") {
    const row = createElement("div", undefined, `bar ${kinds}`);
    row.append(createElement("span", name, "name"));
    const track = createElement("span", undefined, "track");
    const fill = createElement("span", undefined, "fill");
    fill.style.width = `${(100 * share) / (most || 1)}%`;
    track.append(fill);
    row.append(track, createElement("span", figures, "figures"));
    return row;
  }

  function showDetail(writing, at) {
    const step = writing.steps[at];
    byId("detail").hidden = false;
    const kept = step.kept === null ? "" : ` ${writing.about.strategy} kept ${step.kept.toLocaleString("en")} token${step.kept === 1 ? "" : "s"} with total probability ${percent(step.mass)}${step.kept > 1 ? `; renormalized, this one has ${percent(step.after)}` : ""}.`;
    byId("detail-words").textContent =
      `Token ${at + 1} of ${writing.about.strategy}: “${visible(step.token)}”, rank ${step.rank.toLocaleString("en")}, probability ${percent(step.probability)}.${kept}`;
    const most = Math.max(...step.top.filter((one) => one.token !== null).map((one) => one.probability));
    byId("detail-bars").replaceChildren(...step.top.map((one) => {
      const name = one.token === null ? `${one.count.toLocaleString("en")} ${one.kept ? "others" : "dropped"}` : visible(one.token);
      const after = one.after === null || !one.kept || Math.abs(one.after - one.probability) < 5e-4 ? "" : ` → ${percent(one.after)}`;
      const kinds = [one.kept ? "" : "out", one.drawn ? "drawn" : "", one.token === null ? "heap" : ""].join(" ");
      return bar(name, Math.min(one.probability, most), most, percent(one.probability) + after, kinds);
    }));
  }

  // ---- next-token distribution: temperature, then top-k, then top-p

  let spread = null;

  function keep(found, temperature, k, p) {
    const place = found.temperatures.reduce((best, one, at) => (Math.abs(one - temperature) < Math.abs(found.temperatures[best] - temperature) ? at : best), 0);
    const weights = found.logits.map((logit) => Math.exp(logit / temperature));
    const rest = found.others[place] === null ? 0 : Math.exp(found.others[place]);
    const total = weights.reduce((sum, one) => sum + one, rest);
    const shares = weights.map((one) => one / total);
    const others = found.vocabulary - weights.length;
    const cut = k < weights.length ? found.logits[k - 1] : -Infinity; // tied tokens are kept or dropped together
    let kept = found.logits.map((logit) => logit >= cut);
    let keepsOthers = others > 0 && k > weights.length;
    const held = shares.reduce((sum, one, at) => sum + (kept[at] ? one : 0), keepsOthers ? rest / total : 0);
    if (p < 1) {
      let likelier = 0, group = 0; // cumulative probability of more likely tokens
      kept = kept.map((is, at) => {
        if (at && found.logits[at] < found.logits[at - 1]) { likelier += group; group = 0; }
        group += is ? shares[at] / held : 0;
        return is && likelier < p;
      });
      keepsOthers = keepsOthers && likelier + group < p;
    }
    const mass = shares.reduce((sum, one, at) => sum + (kept[at] ? one : 0), 0);
    return { shares, kept, count: kept.filter(Boolean).length, mass, others, rest: rest / total, keepsOthers, p };
  }

  function redraw() {
    const [temperature, k, p] = ["temperature", "k", "p"].map((id) => Number(byId(id).value));
    const all = Number(byId("k").max);
    const outputs = { temperature: temperature.toFixed(2), k: k >= all ? "all" : k, p: p.toFixed(2) };
    for (const [id, words] of Object.entries(outputs)) {
      form.ownerDocument.querySelector(`output[for="${id}"]`).textContent = words;
      byId(id).setAttribute("aria-valuetext", words);
    }
    if (!spread) return;
    const found = keep(spread, temperature, k >= all ? Infinity : k, p);
    const whole = found.count === spread.vocabulary || (found.keepsOthers && found.p === 1);
    const words = whole
      ? `All ${spread.vocabulary.toLocaleString("en")} tokens are kept.`
      : `${found.count.toLocaleString("en")}${found.keepsOthers ? " or more" : ""} of ${spread.vocabulary.toLocaleString("en")} tokens are kept, with total probability ${percent(found.mass)}.`;
    byId("kept").textContent = words;
    byId("kept").dataset.count = found.count;
    const scale = whole ? 1 : found.mass;
    const bars = spread.tokens.slice(0, SHOWN).map((token, at) => {
      const after = found.kept[at] && scale < 0.9995 && !found.keepsOthers ? ` → ${percent(found.shares[at] / scale)}` : "";
      return bar(visible(token), found.shares[at], found.shares[0], percent(found.shares[at]) + after, found.kept[at] ? "" : "out");
    });
    for (const is of [true, false]) {
      const hidden = found.shares.filter((_, at) => at >= SHOWN && found.kept[at] === is);
      const withOthers = found.others > 0 && found.keepsOthers === is;
      const share = hidden.reduce((sum, one) => sum + one, withOthers ? found.rest : 0);
      const count = hidden.length + (withOthers ? found.others : 0);
      const name = `${count.toLocaleString("en")} ${is ? "others" : "dropped"}`;
      const after = is && scale < 0.9995 && !found.keepsOthers ? ` → ${percent(share / scale)}` : "";
      if (count) bars.push(bar(name, Math.min(share, found.shares[0]), found.shares[0], percent(share) + after, `heap ${is ? "" : "out"}`));
    }
    byId("next-bars").replaceChildren(...bars);
  }

  async function askNext(model, ids, from) {
    errorBox.hidden = true;
    statusText.textContent = "Computing…";
    try {
      const response = await post("/api/playground/next", { model, generated_ids: ids, prompt: from.prompt, chat: from.chat });
      spread = await response.json();
      byId("next-before").textContent = `…${spread.before.slice(-160)}`;
      byId("next").hidden = false;
      const k = byId("k");
      const wasAll = k.value === k.max;
      k.max = spread.tokens.length + 1;
      if (wasAll) k.value = k.max;
      redraw();
      statusText.textContent = "";
    } catch (error) {
      statusText.textContent = "";
      showError(error);
    }
  }

  // ---- generation

  async function* lines(response) {
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let left = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const pieces = (left + value).split("\n");
      left = pieces.pop();
      for (const piece of pieces) yield JSON.parse(piece);
    }
  }

  const handlers = {
    start(event) {
      const several = new Set(event.columns.map((one) => one.model)).size > 1;
      const each = event.columns.length / request.models.length;
      texts = event.columns.map((about, at) => new Writing(about, request.models[Math.floor(at / each)], several));
      columns.replaceChildren(...texts.map((one) => one.root));
      byId("texts").hidden = false;
      statusText.textContent = "Generating…";
    },
    token: (event) => texts[event.column].take(event),
    error: (event) => texts[event.column].fail(event.message),
    failed(event) { throw new Error(event.message); },
    done() { statusText.textContent = "Finished."; },
  };

  async function start() {
    generation?.abort();
    const controller = (generation = new AbortController());
    request = readForm();
    errorBox.hidden = true;
    statusText.textContent = "Loading the model…";
    stop.hidden = false;
    generateButton.disabled = true;
    try {
      if (!request.strategies.length) throw new Error("choose at least one strategy");
      const response = await post("/api/playground/generate", request, controller.signal);
      for await (const event of lines(response)) handlers[event.event]?.(event);
    } catch (error) {
      statusText.textContent = error.name === "AbortError" ? "Stopped." : "";
      for (const one of texts) if (one.state.textContent.endsWith("generating…")) one.state.textContent = "stopped";
      showError(error);
    } finally {
      if (controller === generation) {
        stop.hidden = true;
        generateButton.disabled = false;
      }
    }
  }

  form.addEventListener("submit", (event) => { event.preventDefault(); start(); });
  stop.addEventListener("click", () => generation?.abort());
  byId("ask-next").addEventListener("click", () => askNext(models()[0], [], readForm()));
  for (const id of ["temperature", "k", "p"]) byId(id).addEventListener("input", redraw);
  addEventListener("pagehide", () => generation?.abort());
})();
