const TAIL = 6;
const STOPS = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];
const all = content.panels;
let panels = [], numSteps = 1, timer = null;
const slider = byId("slider"), play = byId("play"), tip = byId("tip");

// Colours: early steps dark, late ones light --------------------------------------------------
function tint(share) {
  const at = Math.min(Math.max(share, 0), 1) * (STOPS.length - 1);
  const i = Math.min(Math.floor(at), STOPS.length - 2);
  return STOPS[i].map((c, k) => Math.round(c + (at - i) * (STOPS[i + 1][k] - c)));
}
function paint(node, share) {
  const [r, g, b] = tint(share);
  node.style.background = `rgb(${r} ${g} ${b})`;
  node.style.color = 0.299 * r + 0.587 * g + 0.114 * b > 140 ? "#10131a" : "#ffffff";
}
const visible = (text) => text === "" ? "\u2205" : text.replace(/\n/g, "\u21b5\n");
const rounds = (panel) => 1 + Math.max(-1, ...panel.steps, ...panel.revisions.map((r) => r.to));

// Panels --------------------------------------------------------------------------------------
function scoreMark(panel) {
  if (panel.score === null) return "";
  const said = panel.score >= 1 ? "right" : panel.score > 0 ? `score ${panel.score.toFixed(2)}` : "wrong";
  return make("span", { class: panel.score >= 1 ? "right" : "wrong" }, said);
}
function build(panel) {
  const target = panel.target_nfe ? ` and ${panel.target_nfe} of the target` : "";
  const rate = (panel.length / (panel.nfe + panel.target_nfe)).toFixed(2);
  const head = make("div", { class: "head" }, make("h2", { class: "mono" }, panel.parts.join("  +  ")),
    make("div", { class: "soft" }, `${panel.length} tokens in ${panel.nfe} forwards${target}, ` +
      `${rate} a forward  `, scoreMark(panel)));
  const canvas = make("div", { class: "canvas" });
  panel.nodes = panel.tokens.map((token, position) => make("span",
    { tabindex: position ? "-1" : "0", "data-position": String(position) }));
  panel.tail = tailOf(panel);
  panel.nodes.forEach((node, position) => {
    if (position === panel.tail) canvas.append(tailButton(panel));
    if (position && (position + panel.lead) % panel.block === 0) {
      canvas.append(panel.borders[position] = make("span", { class: "block" }));
    }
    canvas.append(node);
  });
  canvas.addEventListener("pointerover", (event) => describe(panel, event.target));
  canvas.addEventListener("focusin", (event) => describe(panel, event.target));
  canvas.addEventListener("pointerleave", hideTip);
  canvas.addEventListener("focusout", hideTip);
  canvas.addEventListener("keydown", (event) => walk(panel, event));
  fold(panel, true);
  return make("section", {}, head, canvas);
}
/** Where the run of equal tokens behind the answer's end begins; the length if it is short. */
function tailOf(panel) {
  const last = panel.tokens.length - 1;
  let first = last;
  while (first > panel.length && panel.tokens[first - 1] === panel.tokens[last]) first--;
  return last - first >= TAIL ? Math.max(first, panel.length) : panel.tokens.length;
}
function tailButton(panel) {
  panel.count = make("button", { type: "button", class: "token count",
    onclick: () => fold(panel, !panel.isFolded) });
  return panel.count;
}
function fold(panel, isFolded) {
  panel.isFolded = isFolded;
  panel.nodes.forEach((node, position) => { node.hidden = isFolded && position >= panel.tail; });
  for (const [position, border] of Object.entries(panel.borders)) {
    border.hidden = isFolded && Number(position) > panel.tail;
  }
  panel.count?.setAttribute("aria-expanded", String(!isFolded));
}
function walk(panel, event) {
  const at = Number(event.target.dataset?.position);
  const to = at + { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  const node = panel.nodes[to];
  if (!node || node.hidden) return;
  panel.nodes[at].tabIndex = -1;
  node.tabIndex = 0;
  node.focus();
  event.preventDefault();
}

// What stood where, and why -------------------------------------------------------------------
function confidenceOf(value) { return value === null ? "given or filled" : `confidence ${value.toFixed(3)}`; }
function describe(panel, node) {
  const position = Number(node.dataset?.position ?? NaN);
  if (Number.isNaN(position)) { hideTip(); return; }
  const shown = Number(slider.value), step = panel.steps[position];
  const isKnown = step < shown;
  const lines = panel.revisions.filter((r) => r.position === position && r.from < shown).map((r) =>
    make("div", {}, `step ${r.from + 1}: ${visible(r.token)}, ${confidenceOf(r.confidence)}` +
      (r.to < shown ? `, revised in step ${r.to + 1}` : "")));
  if (isKnown) lines.push(make("div", {}, step < 0 ? "not committed by a step" : `step ${step + 1}: ` +
    `${visible(panel.tokens[position])}, ${confidenceOf(panel.confidences[position])}`));
  else if (!lines.length) lines.push(make("div", {}, `masked; committed in step ${step + 1}`));
  const told = isKnown ? panel.runners_up?.[position] : null;
  if (told) {
    lines.push(make("div", { class: "soft" }, `entropy ${told.entropy.toFixed(3)} nats; most likely were`),
      make("div", { class: "bars" }, ...told.tokens.flatMap(([token, probability]) => [
        make("span", { class: "mono" }, visible(token)),
        make("i", { style: `width:${Math.max(1, 100 * probability)}%` }),
        make("span", {}, probability.toFixed(3))])));
  }
  tip.replaceChildren(make("div", { class: "soft" }, `position ${position}`), ...lines);
  tip.hidden = false;
  const box = node.getBoundingClientRect(), own = tip.getBoundingClientRect();
  const below = box.bottom + 8 + own.height < innerHeight;
  tip.style.left = `${Math.max(6, Math.min(box.left, innerWidth - own.width - 6))}px`;
  tip.style.top = `${below ? box.bottom + 8 : Math.max(6, box.top - own.height - 8)}px`;
}
function hideTip() { tip.hidden = true; }

// Drawing -------------------------------------------------------------------------------------
/** Returns what a position shows after some steps: its token, null if masked, and the step. */
function stateOf(panel, position, shown) {
  for (const r of panel.revisions) {
    if (r.position === position && r.from < shown && r.to >= shown) return [r.token, r.from];
  }
  const committed = panel.steps[position];
  const isThere = committed >= 0 ? committed < shown : shown >= rounds(panel);
  return isThere ? [panel.tokens[position], committed] : [null, -1];
}
function drawPanel(panel, shown) {
  const own = rounds(panel), done = shown >= own;
  let numFilled = 0;
  panel.nodes.forEach((node, position) => {
    const [token, step] = stateOf(panel, position, shown);
    const names = ["token"];
    if (token === null) names.push("masked");
    else if (step === shown - 1 && shown <= own) names.push("fresh");
    if (panel.revisions.some((r) => r.position === position && r.to < shown)) names.push("revised");
    if (token !== null && step === panel.steps[position] && panel.forced.includes(position)) names.push("forced");
    if (done && position >= panel.length) names.push("tail");
    if (position >= panel.tail && token !== null) numFilled++;
    node.className = names.join(" ");
    node.textContent = visible(token ?? panel.tokens[position]);
    node.removeAttribute("style");
    if (token !== null && step >= 0) paint(node, own > 1 ? step / (own - 1) : 0);
  });
  if (panel.count) {
    const num = panel.tokens.length - panel.tail;
    panel.count.textContent = numFilled === 0 ? `\u2026 open \u00d7 ${num}` :
      `\u2026 ${visible(panel.tokens.at(-1))} \u00d7 ${numFilled}` + (numFilled < num ? ` of ${num}` : "");
  }
}
function draw() {
  hideTip();
  for (const panel of panels) drawPanel(panel, Number(slider.value));
  byId("shown").textContent = `step ${slider.value} of ${numSteps}`;
}
function stop() { clearInterval(timer); timer = null; play.textContent = "Play"; }
function advance(by) { stop(); slider.value = Number(slider.value) + by; draw(); }
function toggle() {
  if (timer !== null) { stop(); return; }
  if (Number(slider.value) >= numSteps) slider.value = 0;
  play.textContent = "Pause";
  draw();
  timer = setInterval(() => {
    slider.value = Number(slider.value) + 1;
    draw();
    if (Number(slider.value) >= numSteps) stop();
  }, Math.max(60, Math.min(400, 8000 / numSteps)));
}

// Which settings ------------------------------------------------------------------------------
function show(chosen) {
  panels = all.filter((panel) => chosen.has(panel.key));
  numSteps = Math.max(1, ...panels.map(rounds));
  slider.max = numSteps;
  for (const panel of panels) panel.borders = {};
  byId("panels").replaceChildren(...panels.map(build));
  byId("choice").firstElementChild.textContent = `Settings: ${panels.length} of ${all.length} shown`;
  for (const box of document.querySelectorAll("#choices input")) box.checked = chosen.has(box.value);
  draw();
}
function chosenBoxes() {
  return new Set([...document.querySelectorAll("#choices input:checked")].map((box) => box.value));
}
/** Reads the link: `#show=` keys of settings, `#step=` where to begin; without: all, at the end. */
function follow() {
  const wanted = new URLSearchParams(location.hash.slice(1));
  const keys = (wanted.get("show") ?? "").split(",").filter((key) => all.some((p) => p.key === key));
  show(new Set(keys.length ? keys : all.map((panel) => panel.key)));
  const step = Number.parseInt(wanted.get("step"), 10);
  slider.value = Number.isNaN(step) ? numSteps : step;
  draw();
}

byId("prompt").textContent = content.prompt;
byId("target").textContent = content.target;
if (content.report) byId("back").append(make("a", { href:
  `${content.report}#example=${encodeURIComponent(content.example)}` }, "\u2190 all examples"));
byId("choices").append(...all.map((panel) => make("label", { class: "mono" },
  make("input", { type: "checkbox", value: panel.key, onchange: () => show(chosenBoxes()) }),
  ` ${panel.parts.join("  +  ")}  `, scoreMark(panel))));
byId("choice").hidden = all.length === 1;
slider.addEventListener("input", () => { stop(); draw(); });
play.addEventListener("click", toggle);
document.addEventListener("keydown", (event) => {
  if (isTyping(event) || event.target.tagName === "BUTTON" || event.target.tagName === "SUMMARY") return;
  if (event.key === " ") toggle();
  else if (event.key === ",") advance(-1);
  else if (event.key === ".") advance(1);
  else return;
  event.preventDefault();
});
byId("forced").hidden = !all.some((panel) => panel.forced.length);
byId("ramp").style.background = `linear-gradient(90deg, ${STOPS.map((c) => `rgb(${c.join(" ")})`).join(", ")})`;
window.addEventListener("hashchange", follow);
notify(content.notice);
follow();
