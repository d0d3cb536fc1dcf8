// Texts appear as the server writes them; sliders redraw at once, from the logits that were sent.
"use strict";
(() => {
  const form = document.getElementById("play");
  if (!form) return;
  const byId = (id) => document.getElementById(id);
  const said = byId("said"), wrong = byId("wrong"), columns = byId("columns");
  const stop = byId("stop"), write = form.querySelector('button[type="submit"]');
  const SHOWN = 24; // bars of what may come next
  let writing = null;
  let asked = null; // what the texts on the page are answers to
  let texts = [];

  function made(name, words, kind) {
    const one = document.createElement(name);
    if (words !== undefined) one.textContent = words;
    if (kind) one.className = kind;
    return one;
  }

  const visible = (token) => token.replace(/ /g, "␣").replace(/\n/g, "⏎").replace(/\t/g, "⇥") || "∅";
  const percent = (share) => (share >= 0.9995 ? "100" : share >= 0.0995 ? (100 * share).toFixed(1) : (100 * share).toPrecision(2)) + " %";

  function complain(error) {
    if (error.name === "AbortError") return;
    wrong.textContent = error.message;
    wrong.hidden = false;
  }

  async function post(path, question, signal) {
    const response = await fetch(path, {
      method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(question), signal,
    });
    if (response.ok) return response;
    const answer = await response.json().catch(() => ({}));
    throw new Error(answer.detail || `the server answers with ${response.status}`);
  }

  // ---- what the form asks for

  const models = () => [...new Set([...form.querySelectorAll('select[name="model"]')].map((one) => one.value).filter(Boolean))];

  function strategies() {
    const found = [...form.querySelectorAll('input[name="strategy"]:checked')].map((box) => {
      const option = form.querySelector(`input[data-of="${box.value}"]`);
      return option ? `${box.value}=${option.value}` : box.value;
    });
    const others = byId("others").value.trim();
    return others ? [...found, others] : found;
  }

  function question() {
    return {
      models: models(), strategies: strategies(), prompt: byId("prompt").value, chat: byId("chat").checked,
      tokens: Number(byId("tokens").value), seed: Number(byId("seed").value),
    };
  }

  // ---- one text

  class Writing {
    constructor(about, model, several) {
      this.about = about;
      this.model = model;
      this.steps = [];
      this.root = made("article", undefined, "column");
      this.root.append(made("h3", about.strategy));
      if (several) this.root.append(made("p", about.model, "whose"));
      this.text = made("p", undefined, "written");
      this.text.setAttribute("role", "group");
      this.text.setAttribute("aria-label", `Text of ${about.model}, ${about.strategy}`);
      this.text.append(made("span", asked.prompt, "prompt"));
      this.state = made("p", "writing…", "notes");
      this.root.append(this.text, this.state);
      if (about.note) this.root.append(made("p", about.note, "notes"));
      this.text.addEventListener("pointerover", (event) => this.point(event));
      this.text.addEventListener("focusin", (event) => this.point(event));
      this.text.addEventListener("click", (event) => this.open(event));
      this.text.addEventListener("keydown", (event) => this.onKey(event));
    }

    take(step) {
      const at = this.steps.push(step) - 1;
      const isStop = step.ended === "token";
      const one = made("span", isStop ? "■" : step.text, `piece${isStop ? " end" : ""}${step.text || isStop ? "" : " half"}`);
      one.dataset.at = at;
      one.tabIndex = at === 0 ? 0 : -1;
      one.setAttribute("role", "button");
      one.setAttribute("aria-label", `${step.token}, ${percent(step.probability)}`);
      // Of one in ten thousand, and less, the shade is at its strongest.
      one.style.setProperty("--rare", Math.min(1, -Math.log10(Math.max(step.probability, 1e-9)) / 4).toFixed(3));
      this.text.append(one);
      const ends = { token: "ended by itself", string: "ended", length: "ended at the longest length" };
      const words = step.ended ? ends[step.ended] : "writing…";
      this.state.textContent = `${this.steps.length} tokens, ${words}${step.slid ? "; its beginning is forgotten: the text is longer than the context" : ""}`;
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
      if (one) askNext(this.model, this.steps.slice(0, Number(one.dataset.at)).map((step) => step.id), asked);
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
    const row = made("div", undefined, `bar ${kinds}`);
    row.append(made("span", name, "name"));
    const track = made("span", undefined, "track");
    const fill = made("span", undefined, "fill");
    fill.style.width = `${(100 * share) / (most || 1)}%`;
    track.append(fill);
    row.append(track, made("span", figures, "figures"));
    return row;
  }

  function showDetail(writing, at) {
    const step = writing.steps[at];
    byId("detail").hidden = false;
    const kept = step.kept === null ? "" : ` ${writing.about.strategy} kept ${step.kept.toLocaleString("en")} token${step.kept === 1 ? "" : "s"} that hold ${percent(step.mass)}${step.kept > 1 ? `; of these it has ${percent(step.after)}` : ""}.`;
    byId("detail-words").textContent =
      `Token ${at + 1} of ${writing.about.strategy}: “${visible(step.token)}”, number ${step.rank.toLocaleString("en")} in the model’s order, with a share of ${percent(step.probability)}.${kept}`;
    const most = Math.max(...step.top.filter((one) => one.token !== null).map((one) => one.probability));
    byId("detail-bars").replaceChildren(...step.top.map((one) => {
      const name = one.token === null ? `${one.count.toLocaleString("en")} ${one.kept ? "others" : "not kept"}` : visible(one.token);
      const after = one.after === null || !one.kept || Math.abs(one.after - one.probability) < 5e-4 ? "" : ` → ${percent(one.after)}`;
      const kinds = [one.kept ? "" : "out", one.drawn ? "drawn" : "", one.token === null ? "heap" : ""].join(" ");
      return bar(name, Math.min(one.probability, most), most, percent(one.probability) + after, kinds);
    }));
  }

  // ---- what may come next: temperature, then k, then p, as a strategy of these steps would

  let spread = null;

  function keep(found, temperature, k, p) {
    const place = found.temperatures.reduce((best, one, at) => (Math.abs(one - temperature) < Math.abs(found.temperatures[best] - temperature) ? at : best), 0);
    const weights = found.logits.map((logit) => Math.exp(logit / temperature));
    const rest = found.others[place] === null ? 0 : Math.exp(found.others[place]);
    const total = weights.reduce((sum, one) => sum + one, rest);
    const shares = weights.map((one) => one / total);
    const others = found.vocabulary - weights.length;
    const cut = k < weights.length ? found.logits[k - 1] : -Infinity; // tokens that are alike stay or go together
    let kept = found.logits.map((logit) => logit >= cut);
    let keepsOthers = others > 0 && k > weights.length;
    const held = shares.reduce((sum, one, at) => sum + (kept[at] ? one : 0), keepsOthers ? rest / total : 0);
    if (p < 1) {
      let likelier = 0, group = 0; // of all that are likelier than this one
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
      : `${found.count.toLocaleString("en")}${found.keepsOthers ? " and some more" : ""} of ${spread.vocabulary.toLocaleString("en")} tokens are kept; these hold ${percent(found.mass)}.`;
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
      const name = `${count.toLocaleString("en")} ${is ? "others" : "not kept"}`;
      const after = is && scale < 0.9995 && !found.keepsOthers ? ` → ${percent(share / scale)}` : "";
      if (count) bars.push(bar(name, Math.min(share, found.shares[0]), found.shares[0], percent(share) + after, `heap ${is ? "" : "out"}`));
    }
    byId("next-bars").replaceChildren(...bars);
  }

  async function askNext(model, ids, from) {
    wrong.hidden = true;
    said.textContent = "Reading…";
    try {
      const response = await post("/api/playground/next", { model, made: ids, prompt: from.prompt, chat: from.chat });
      spread = await response.json();
      byId("next-before").textContent = `…${spread.before.slice(-160)}`;
      byId("next").hidden = false;
      const k = byId("k");
      const wasAll = k.value === k.max;
      k.max = spread.tokens.length + 1;
      if (wasAll) k.value = k.max;
      redraw();
      said.textContent = "";
    } catch (error) {
      said.textContent = "";
      complain(error);
    }
  }

  // ---- writing

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

  const takes = {
    begin(event) {
      const several = new Set(event.columns.map((one) => one.model)).size > 1;
      const each = event.columns.length / asked.models.length;
      texts = event.columns.map((about, at) => new Writing(about, asked.models[Math.floor(at / each)], several));
      columns.replaceChildren(...texts.map((one) => one.root));
      byId("texts").hidden = false;
      said.textContent = "Writing…";
    },
    token: (event) => texts[event.column].take(event),
    wrong: (event) => texts[event.column].fail(event.message),
    failed(event) { throw new Error(event.message); },
    done() { said.textContent = `${texts.length === 1 ? "The text is" : `All ${texts.length} texts are`} written.`; },
  };

  async function start() {
    writing?.abort();
    const mine = (writing = new AbortController());
    asked = question();
    wrong.hidden = true;
    said.textContent = "Opening…";
    stop.hidden = false;
    write.disabled = true;
    try {
      if (!asked.strategies.length) throw new Error("choose a strategy");
      const response = await post("/api/playground/write", asked, mine.signal);
      for await (const event of lines(response)) takes[event.event]?.(event);
    } catch (error) {
      said.textContent = error.name === "AbortError" ? "Stopped." : "";
      for (const one of texts) if (one.state.textContent.endsWith("writing…")) one.state.textContent = "stopped";
      complain(error);
    } finally {
      if (mine === writing) {
        stop.hidden = true;
        write.disabled = false;
      }
    }
  }

  form.addEventListener("submit", (event) => { event.preventDefault(); start(); });
  stop.addEventListener("click", () => writing?.abort());
  byId("ask-next").addEventListener("click", () => askNext(models()[0], [], question()));
  for (const id of ["temperature", "k", "p"]) byId(id).addEventListener("input", redraw);
  addEventListener("pagehide", () => writing?.abort());
})();
