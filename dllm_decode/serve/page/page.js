"use strict";
const byId = (id) => document.getElementById(id);
const EXAMPLE = "emma has 12 apples. emma finds 30 more apples and then gives 8 apples to ben. " +
  "how many apples does emma have now?";
const EXAMPLE_TEMPLATE = "emma now has [MASK:5] . after giving some away emma has [MASK:5] .";
const RAMP = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];
const LONG_RUN = 4;
let messages = [], running = null;

/** Text only, so that nothing of a model or user is read as HTML. */
function make(kind, name, text = "") {
  const node = document.createElement(kind);
  node.className = name;
  node.textContent = text;
  return node;
}

function tint(node, share) {
  const at = Math.min(Math.max(share, 0), 1) * (RAMP.length - 1);
  const low = Math.min(Math.floor(at), RAMP.length - 2);
  const [r, g, b] = RAMP[low].map((c, k) => Math.round(c + (at - low) * (RAMP[low + 1][k] - c)));
  node.style.background = `rgb(${r} ${g} ${b})`;
  node.style.color = 0.299 * r + 0.587 * g + 0.114 * b > 140 ? "#10131a" : "#ffffff";
}

/** The tokens of an answer, and the round in which each was committed. */
class Canvas {
  constructor(node) { this.node = node; this.tokens = []; this.rounds = []; this.round = 0; }

  update({ tokens, round }) {
    tokens.forEach((token, at) => { if (token !== this.tokens[at]) this.rounds[at] = round; });
    this.tokens = tokens;
    this.round = round;
    const nodes = [];
    for (let at = 0, stop; at < tokens.length; at = stop) {
      for (stop = at + 1; tokens[stop] === tokens[at] && stop < tokens.length;) stop++;
      // Many ends of text after another are one box and a count.
      const isLong = tokens[at] !== null && stop - at > LONG_RUN;
      for (let n = at; n < (isLong ? at + 1 : stop); n++) nodes.push(this.box(tokens[n], n));
      if (isLong) nodes.push(make("span", "token count", `× ${stop - at}`));
    }
    this.node.replaceChildren(...nodes);
  }

  box(token, at) {
    if (token === null) return make("span", "token masked");
    const node = make("span", this.rounds[at] === this.round ? "token fresh" : "token", token || "∅");
    tint(node, this.round > 1 ? (this.rounds[at] - 1) / (this.round - 1) : 0);
    return node;
  }
}

function headers() {
  const key = byId("key").value;
  return { "Content-Type": "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}) };
}

async function refused(response) {
  if (response.status === 401) byId("locked").hidden = false;
  const body = await response.json().catch(() => null);
  return new Error(body?.error?.message ?? `The server answered ${response.status}.`);
}

/** Yields the events of a stream; they end with an empty line. */
async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let held = ""; ;) {
    const { value, done } = await reader.read();
    if (done) return;
    held += value;
    const pieces = held.split("\n\n");
    held = pieces.pop();
    for (const piece of pieces) {
      if (piece === "data: [DONE]") return;
      const event = JSON.parse(piece.slice("data: ".length));
      if (event.error) throw new Error(event.error.message);
      yield event.choices[0];
    }
  }
}

function asked() {
  return {
    messages, stream: true, stream_mode: "denoise", return_trace: true,
    max_tokens: Number(byId("length").value), temperature: Number(byId("temperature").value),
    sampler: byId("sampler").value || null, template: byId("template").value || null,
    structured_outputs: byId("regex").value ? { regex: byId("regex").value } : null,
  };
}

async function answer(turn, signal) {
  const drawn = turn.appendChild(make("div", "canvas"));
  const canvas = new Canvas(drawn), said = turn.appendChild(make("div", "said"));
  const counted = turn.appendChild(make("div", "soft"));
  const response = await fetch("v1/chat/completions",
    { method: "POST", headers: headers(), body: JSON.stringify(asked()), signal });
  if (!response.ok) throw await refused(response);
  let text = "";
  for await (const choice of eventsOf(response)) {
    if (choice.canvas) {
      canvas.update(choice.canvas);
      counted.textContent = `round ${canvas.round}`;
      await new Promise((resume) => setTimeout(resume, Number(byId("pause").value)));
      signal.throwIfAborted();
    }
    text += choice.delta.content ?? "";
    if (choice.delta.reasoning_content) drawn.after(make("div", "soft", choice.delta.reasoning_content));
    if (choice.trace) {
      const { steps, seconds, forwards, tokens_per_forward: rate } = choice.trace;
      const speed = Math.round(steps.length / seconds);
      counted.textContent = `${steps.length} tokens in ${seconds.toFixed(2)} s, ${speed} tokens/s, ` +
        `${forwards} forwards, ${rate.toFixed(1)} tokens per forward`;
      const words = choice.trace.unknown_words.join(", ");
      if (words) turn.append(make("div", "soft", `The model does not know these words: ${words}.`));
    }
  }
  said.textContent = text;
  if (!text.trim()) turn.append(make("div", "soft", "The answer is empty: the model ended it at once."));
  return text;
}

async function send(event) {
  event.preventDefault();
  if (running) return;
  const content = byId("message").value;
  running = new AbortController();
  byId("send").disabled = true;
  byId("stop").disabled = false;
  byId("message").value = "";
  messages.push({ role: "user", content });
  byId("chat").append(make("div", "turn user", content));
  const turn = byId("chat").appendChild(make("div", "turn"));
  turn.setAttribute("aria-live", "polite");
  try {
    messages.push({ role: "assistant", content: await answer(turn, running.signal) });
    turn.dataset.state = "done";
  } catch (error) {
    messages.pop();
    byId("message").value ||= content;
    const reason = error.name === "AbortError" ? "Stopped." : error.message;
    turn.append(make("div", "wrong", reason));
    turn.dataset.state = "refused";
  } finally {
    running = null;
    byId("send").disabled = false;
    byId("stop").disabled = true;
  }
}

async function begin() {
  const response = await fetch("v1/models", { headers: headers() });
  if (!response.ok) throw await refused(response);
  const [model] = (await response.json()).data;
  byId("model").textContent = model.id;
  byId("sampler").replaceChildren(...model.samplers.map((name) => new Option(name, name)));
  if (model.id === "mini" && !byId("message").value) {
    byId("message").value = EXAMPLE;
    byId("template").placeholder = EXAMPLE_TEMPLATE;
  }
}

const colors = RAMP.map((color) => `rgb(${color.join(" ")})`).join(", ");
byId("ramp").style.background = `linear-gradient(90deg, ${colors})`;
byId("form").addEventListener("submit", send);
byId("stop").addEventListener("click", () => running?.abort());
byId("clear").addEventListener("click", () => {
  running?.abort();
  messages = [];
  byId("chat").replaceChildren();
});
byId("message").addEventListener("keydown", (event) => {
  // Enter also ends a word of an input method.
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  byId("form").requestSubmit();
});
const tell = (error) => byId("chat").replaceChildren(make("p", "wrong", error.message));
byId("key").addEventListener("change", () => begin().then(() => byId("chat").replaceChildren(), tell));
begin().catch(tell);
