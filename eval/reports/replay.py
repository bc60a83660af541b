"""A page that replays how an answer was decoded: one self-contained HTML file for each example."""

import html
import json
from collections.abc import Sequence
from typing import Any

from eval.runs.records import Record, Settings


def replay_page(example: Sequence[tuple[Settings, Record]]) -> str:
    """Returns the page of one example under several settings, which replay side by side.

    Tokens are tinted by the step that committed them, early ones dark. The page needs no network.

    Args:
        example: Settings and the example's records, which have traces.

    Raises:
        ValueError: If there are no records, or one has no trace.
    """
    if not example or any(record.get("trace") is None for _, record in example):
        raise ValueError("A replay needs records with traces; run without --no-trace.")
    first = example[0][1]
    seeds = {settings.seed for settings, _ in example}
    panels = [_panel(settings, record, seeds) for settings, record in example]
    # Without any `<` no text can end the script element, nor keep it from ending.
    written = json.dumps(panels, separators=(",", ":")).replace("<", "\\u003c")
    return (
        _PAGE.replace("@TITLE@", html.escape(f"{example[0][0].task} {first['example']}"))
        .replace("@PROMPT@", html.escape(str(first["prompt"])))
        .replace("@TARGET@", html.escape(str(first["target"])))
        .replace("@PANELS@", written)
    )


def _panel(settings: Settings, record: Record, seeds: set[int]) -> dict[str, Any]:
    trace, pieces = record["trace"], record["pieces"]
    tokens = [pieces[str(token)] for token in record["tokens"]]
    revisions = [
        {"position": p, "token": pieces[str(t)], "from": c, "confidence": q, "to": r}
        for p, t, c, q, r in trace["revisions"]
        if 0 <= p < len(tokens)
    ]
    scores = record.get("scores") or {}
    return {
        "parts": [*settings.parts, *([f"seed {settings.seed}"] if len(seeds) > 1 else [])],
        "block": settings.block_length,
        "lead": trace["lead"],
        "tokens": tokens,
        "steps": trace["steps"],
        "confidences": trace["confidences"],
        "revisions": revisions,
        "length": record["length"],
        "nfe": record["nfe"],
        "target_nfe": record["target_nfe"],
        "score": scores.get(record["primary"]),
    }  # fmt: skip


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>@TITLE@</title>
<style>
:root { color-scheme: light; --ink: #1c2230; --soft: #667085; --line: #d7dce5; --ground: #f6f7fa; }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 1100px; margin: 0 auto; padding: 20px 24px 60px; }
h1 { font-size: 17px; margin: 0 0 12px; overflow-wrap: anywhere; }
h2 { font: 600 13px/1.4 ui-monospace, "SF Mono", Menlo, Consolas, monospace; margin: 0;
  overflow-wrap: anywhere; }
dl { display: grid; grid-template-columns: 70px 1fr; gap: 4px 12px; margin: 0 0 14px; }
dt { color: var(--soft); } dd { margin: 0; white-space: pre-wrap; max-height: 9em; overflow: auto; }
#bar { position: sticky; top: 0; z-index: 1; display: flex; gap: 12px; align-items: center;
  padding: 10px 0; background: var(--ground); border-bottom: 1px solid var(--line); }
#bar input { flex: 1; accent-color: #31688e; }
#bar output { min-width: 9em; text-align: right; font-variant-numeric: tabular-nums; }
button { font: inherit; padding: 3px 14px; border: 1px solid var(--line); border-radius: 6px;
  background: #fff; cursor: pointer; }
button:focus-visible, input:focus-visible { outline: 2px solid #31688e; outline-offset: 2px; }
section { margin-top: 16px; padding: 12px 14px; background: #fff; border: 1px solid var(--line);
  border-radius: 8px; }
.head { display: flex; flex-wrap: wrap; gap: 4px 16px; justify-content: space-between;
  margin-bottom: 8px; }
.facts { color: var(--soft); font-size: 13px; font-variant-numeric: tabular-nums; }
.right { color: #18794e; font-weight: 600; } .wrong { color: #b42318; font-weight: 600; }
.canvas { display: flex; flex-wrap: wrap; gap: 3px 2px; }
.token { padding: 0 5px; border-radius: 4px; min-width: 1.1em; min-height: 1.5em;
  white-space: pre-wrap; font: 13px/1.55 ui-monospace, "SF Mono", Menlo, Consolas, monospace; }
.masked { background: repeating-linear-gradient(135deg, #e9ecf2 0 4px, #f3f5f9 4px 8px) !important;
  color: transparent !important; }
.fresh { box-shadow: 0 0 0 2px #f59e0b; }
.revised { text-decoration: underline wavy #d92d20 1.5px; text-underline-offset: 3px; }
.tail { opacity: .32; }
.block { width: 0; border-left: 2px solid #98a2b3; margin: 0 3px; }
.legend { display: flex; flex-wrap: wrap; align-items: center; gap: 6px 18px; margin-top: 14px;
  color: var(--soft); font-size: 13px; }
.ramp { width: 150px; height: 12px; border-radius: 3px; display: inline-block; margin: 0 6px;
  vertical-align: -1px; }
</style>
</head>
<body>
<main>
<h1>@TITLE@</h1>
<dl><dt>prompt</dt><dd>@PROMPT@</dd><dt>target</dt><dd>@TARGET@</dd></dl>
<div id="bar">
  <button id="play" type="button">Play</button>
  <input id="slider" type="range" min="0" value="0" step="1" aria-label="Steps shown">
  <output id="shown"></output>
</div>
<div id="panels"></div>
<div class="legend">
  <span>first step<span class="ramp" id="ramp"></span>last step</span>
  <span><span class="token masked">xx</span> masked</span>
  <span><span class="token fresh">new</span> committed in this step</span>
  <span><span class="token revised">word</span> revised</span>
  <span><span class="token tail">tail</span> behind the answer's end</span>
  <span>| block border</span>
</div>
</main>
<script id="panels-json" type="application/json">@PANELS@</script>
<script>
"use strict";
const panels = JSON.parse(document.getElementById("panels-json").textContent);
const stops = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];
function tint(share) {
  const at = Math.min(Math.max(share, 0), 1) * (stops.length - 1);
  const i = Math.min(Math.floor(at), stops.length - 2);
  return stops[i].map((c, k) => Math.round(c + (at - i) * (stops[i + 1][k] - c)));
}
function paint(node, share) {
  const [r, g, b] = tint(share);
  node.style.background = `rgb(${r} ${g} ${b})`;
  node.style.color = 0.299 * r + 0.587 * g + 0.114 * b > 140 ? "#10131a" : "#ffffff";
}
function rounds(panel) {
  const last = Math.max(-1, ...panel.steps, ...panel.revisions.map((r) => r.to));
  return last + 1;
}
const numSteps = Math.max(1, ...panels.map(rounds));
function percent(confidence) {
  return confidence === null ? "given or filled" : "confidence " + confidence.toFixed(3);
}
function story(panel, position) {
  const past = panel.revisions.filter((r) => r.position === position)
    .map((r) => `step ${r.from + 1}: ${JSON.stringify(r.token)}, ${percent(r.confidence)}, ` +
      `revised in step ${r.to + 1}`);
  const step = panel.steps[position];
  const now = step < 0 ? "not committed by a step" : `step ${step + 1}: ` +
    `${JSON.stringify(panel.tokens[position])}, ${percent(panel.confidences[position])}`;
  return [`position ${position}`, ...past, now].join("\\n");
}
function visible(s) { return s === "" ? "\\u2205" : s.replace(/\\n/g, "\\u21b5\\n"); }
for (const panel of panels) {
  const section = document.createElement("section");
  const head = document.createElement("div");
  head.className = "head";
  const name = document.createElement("h2");
  name.textContent = panel.parts.join("  +  ");
  const facts = document.createElement("div");
  facts.className = "facts";
  const target = panel.target_nfe ? ` and ${panel.target_nfe} of the target` : "";
  facts.append(`${panel.length} tokens in ${panel.nfe} forwards${target}, ` +
    `${(panel.length / (panel.nfe + panel.target_nfe)).toFixed(2)} a forward  `);
  if (panel.score !== null) {
    const mark = document.createElement("span");
    mark.className = panel.score >= 1 ? "right" : "wrong";
    mark.textContent = panel.score >= 1 ? "right" : panel.score > 0 ? "score " +
      panel.score.toFixed(2) : "wrong";
    facts.append(mark);
  }
  head.append(name, facts);
  const canvas = document.createElement("div");
  canvas.className = "canvas";
  panel.nodes = panel.tokens.map((token, position) => {
    if (position && (position + panel.lead) % panel.block === 0) {
      const border = document.createElement("span");
      border.className = "block";
      canvas.append(border);
    }
    const node = document.createElement("span");
    node.title = story(panel, position);
    canvas.append(node);
    return node;
  });
  section.append(head, canvas);
  document.getElementById("panels").append(section);
}
function draw(shown) {
  for (const panel of panels) {
    const own = rounds(panel);
    const done = shown >= own;
    panel.nodes.forEach((node, position) => {
      let token = null, step = -1;
      for (const r of panel.revisions) {
        if (r.position === position && r.from < shown && r.to >= shown) {
          token = r.token; step = r.from;
        }
      }
      const committed = panel.steps[position];
      if (committed >= 0 ? committed < shown : done) {
        token = panel.tokens[position]; step = committed;
      }
      const names = ["token"];
      if (token === null) names.push("masked");
      else if (step === shown - 1 && shown <= own) names.push("fresh");
      if (panel.revisions.some((r) => r.position === position && r.to < shown)) {
        names.push("revised");
      }
      if (done && position >= panel.length) names.push("tail");
      node.className = names.join(" ");
      node.textContent = visible(token === null ? panel.tokens[position] : token);
      node.removeAttribute("style");
      if (token !== null && step >= 0) paint(node, own > 1 ? step / (own - 1) : 0);
      else if (token !== null) node.style.background = "#eef0f4";
    });
  }
  document.getElementById("shown").textContent = `step ${shown} of ${numSteps}`;
}
const slider = document.getElementById("slider");
const play = document.getElementById("play");
let timer = null;
function stop() { clearInterval(timer); timer = null; play.textContent = "Play"; }
slider.max = numSteps;
const wanted = Number.parseInt(location.hash.slice(1), 10);
slider.value = Number.isNaN(wanted) ? numSteps : wanted;
slider.addEventListener("input", () => { stop(); draw(Number(slider.value)); });
play.addEventListener("click", () => {
  if (timer !== null) { stop(); return; }
  if (Number(slider.value) >= numSteps) slider.value = 0;
  play.textContent = "Pause";
  draw(Number(slider.value));
  timer = setInterval(() => {
    slider.value = Number(slider.value) + 1;
    draw(Number(slider.value));
    if (Number(slider.value) >= numSteps) stop();
  }, Math.max(60, Math.min(400, 8000 / numSteps)));
});
document.getElementById("ramp").style.background = "linear-gradient(90deg, " +
  stops.map((c) => `rgb(${c.join(" ")})`).join(", ") + ")";
draw(Number(slider.value));
</script>
</body>
</html>
"""
