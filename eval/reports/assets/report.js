const COLOURS = ["#2f7ec0", "#d55e00", "#009e73", "#c264a0", "#c98a00", "#3aa6d8", "#8a6fd0", "#8f8f2a"];
const PAGE_LENGTH = 50;
const DASHES = [null, "7 4", "2 4", "9 3 2 3"];
// Corners of a mark in units of its radius; none is a circle.
const SHAPES = [[], [[-.9, -.9], [.9, -.9], [.9, .9], [-.9, .9]], [[0, -1.2], [1.1, .8], [-1.1, .8]],
  [[0, -1.3], [1.1, 0], [0, 1.3], [-1.1, 0]], [[-1.1, -.8], [1.1, -.8], [0, 1.2]],
  [[-.4, -1.1], [.4, -1.1], [.4, -.4], [1.1, -.4], [1.1, .4], [.4, .4], [.4, 1.1], [-.4, 1.1],
    [-.4, .4], [-1.1, .4], [-1.1, -.4], [-.4, -.4]],
  [[-1, -.6], [-.6, -1], [0, -.4], [.6, -1], [1, -.6], [.4, 0], [1, .6], [.6, 1], [0, .4], [-.6, 1],
    [-1, .6], [-.4, 0]],
  [[0, -1.3], [.35, -.4], [1.25, -.4], [.55, .2], [.8, 1.1], [0, .55], [-.8, 1.1], [-.55, .2],
    [-1.25, -.4], [-.35, -.4]]];
let task = content.tasks[0], numShown = PAGE_LENGTH, sorted = { column: null, down: false };
let cost = content.costs[task.cost];

// Numbers -------------------------------------------------------------------------------------
const fixed = (digits, sign = "") => (value) =>
  (sign && value >= 0 ? "+" : "") + value.toFixed(digits);
const precise = (digits) => (value) =>
  value !== 0 && value < .001 ? value.toExponential(digits - 1) : value.toPrecision(digits);
const COLUMNS = [
  { key: "name", head: "setting", tip: "Arguments are left out that have their default in all " +
    "rows; hold the pointer on a name to see them all" },
  { key: "accuracy", head: "accuracy", show: fixed(3), tip: "Mean of the task's first score" },
  { key: "difference", head: "difference", show: fixed(3, "+"),
    tip: "Accuracy less that of the first row, on the same examples" },
  { key: "p_value", head: "p", show: precise(2),
    tip: "McNemar's exact test: how likely so uneven a split is if both are equally good" },
  { key: "tokens_per_forward", head: "tokens/forward", show: fixed(2),
    tip: "Tokens of all answers, up to the first EOS, over forwards of the model" },
  { key: "nfe", head: "NFE", show: fixed(1),
    tip: "Number of function evaluations: forwards of the model for an example, on average" },
  { key: "columns", head: "columns", show: fixed(0), tip: "Positions that these forwards computed " +
    "for an example, on average; a cache computes fewer" },
  { key: "step_speedup", head: "step speed-up", show: fixed(2),
    tip: "How many times fewer forwards than the first row, on the same examples" },
  { key: "tokens_per_second", head: "tokens/s", show: fixed(0),
    tip: "Tokens of all answers over seconds, without the first examples of a run" },
  { key: "tau", head: "tau", show: fixed(2), tip: "Kendall's tau-b between a token's position and " +
    "the step that committed it: 1 is left to right, 0 no order" },
  { key: "decided_at", head: "decided at", show: fixed(2), optional: true, tip: "Share of the steps " +
    "after which the tokens of the result stay the most likely ones, on average" },
  { key: "accepted_length", head: "accepted length", show: fixed(2), optional: true,
    tip: "Tokens that a round of the verifier commits, on average" },
  { key: "acceptance_rate", head: "accepted/drafted", show: fixed(2), optional: true,
    tip: "Share of the drafted tokens that the verifier accepted" },
  { key: "target_nfe", head: "target NFE", show: fixed(1), optional: true,
    tip: "Forwards of the verifier's causal target for an example, on average" },
  { key: "errors", head: "errors", show: String, optional: true,
    tip: "Examples that raised an error; they count as wrong" },
  { key: "missing", head: "missing", show: String, optional: true, tip: "Examples still to come" },
];
const valueOf = (row, key) => Array.isArray(row[key]) ? row[key][0] : row[key];
function columns() {
  return COLUMNS.filter((c) => !c.optional || task.rows.some((row) => row[c.key]));
}
/** Colour, shape and dashes of a method: 64 methods before a pair of colour and shape comes back. */
function styleOf(row) {
  const index = [...new Set(task.rows.map((r) => r.method))].indexOf(row.method);
  const round = Math.floor(index / COLOURS.length);
  return { colour: COLOURS[index % COLOURS.length], dash: DASHES[round % DASHES.length],
    corners: SHAPES[(index + round) % SHAPES.length] };
}
function colourOf(row) { return styleOf(row).colour; }
/** Draws the mark of a setting. */
function glyph(row, x, y, radius, attributes = {}) {
  const { colour, corners } = styleOf(row);
  const points = corners.map(([dx, dy]) => `${x + radius * dx} ${y + radius * dy}`);
  const round = `M${x - radius} ${y}a${radius} ${radius} 0 1 0 ${2 * radius} 0a${radius} ${radius} ` +
    `0 1 0 ${-2 * radius} 0z`;
  return make("path", { class: "glyph", d: points.length ? `M${points.join("L")}z` : round,
    fill: colour, stroke: colour, "stroke-width": 1.6, ...attributes });
}
function dot(row) {
  return make("svg", { class: "dot", viewBox: "0 0 14 14" }, glyph(row, 7, 7, 5));
}
/** Names a row, and says what it lacks. */
function labelOf(row) {
  return row.name + (row.missing ? ` (unfinished, ${row.expected - row.missing} of ` +
    `${row.expected})` : "");
}
function inOrder() {
  const rows = task.rows.map((row, index) => ({ row, index }));
  if (sorted.column === null) return rows;
  return rows.sort((a, b) => {
    const [x, y] = [valueOf(a.row, sorted.column), valueOf(b.row, sorted.column)];
    if (x === null || y === null) return (x === null) - (y === null);
    return (x < y ? -1 : x > y ? 1 : 0) * (sorted.down ? -1 : 1);
  });
}

// The table -----------------------------------------------------------------------------------
function sortBy(key) {
  if (sorted.column !== key) sorted = { column: key, down: key !== "name" };
  else if (sorted.down === (key !== "name")) sorted.down = !sorted.down;
  else sorted = { column: null, down: false };
  drawTable();
  document.querySelector(`th[data-key=${key}] button`).focus();
}
function drawTable() {
  const shown = columns();
  const state = (key) => sorted.column !== key ? "none" : sorted.down ? "descending" : "ascending";
  const head = make("tr", {}, ...shown.map((c) => make("th",
    { scope: "col", "aria-sort": state(c.key), "data-key": c.key, title: c.tip },
    make("button", { type: "button", onclick: () => sortBy(c.key) }, c.head.replace("/", "/\u200b")))));
  const body = inOrder().map(({ row, index }) => make("tr",
    row.fronts.includes(cost.name) ? { class: "front" } : {}, ...shown.map((c) => c.key === "name" ? nameCell(row, index) : make("td", {}, ...cell(row, c)))));
  byId("settings").replaceChildren(make("thead", {}, head), make("tbody", {}, ...body));
  exportTo("csv", "results.csv", "text/csv", csv());
  exportTo("latex", "results.tex", "text/plain", latex());
}
function nameCell(row, index) {
  return make("td", { class: "mono", title: row.full }, dot(row), `${index + 1}. ${labelOf(row)}`);
}
function cell(row, column) {
  const value = valueOf(row, column.key);
  if (value === null) return ["-"];
  if (!Array.isArray(row[column.key])) return [column.show(value)];
  const [, low, high] = row[column.key];
  return [column.show(value), make("small", {}, `[${column.show(low)}, ${column.show(high)}]`)];
}

// Exports -------------------------------------------------------------------------------------
function exportTo(id, name, type, text) {
  const link = byId(id);
  link.download = name;
  link.href = `data:${type};charset=utf-8,` + encodeURIComponent(text);
}
function csv() {
  const quote = (value) => value === null ? "" : /[",\n]/.test(String(value)) ?
    `"${String(value).replaceAll('"', '""')}"` : String(value);
  const shown = COLUMNS.flatMap((c) => ["accuracy", "difference", "tokens_per_forward"]
    .includes(c.key) ? [c.key, `${c.key}_low`, `${c.key}_high`] : [c.key]);
  const lines = inOrder().map(({ row }) => ["folder", "task", ...shown].map((key) => {
    if (key === "folder") return quote(content.folder);
    if (key === "task") return quote(task.task);
    if (key === "name") return quote(row.full);
    const [, plain, side] = key.match(/^(.*?)(_low|_high)?$/);
    const value = row[plain];
    return quote(Array.isArray(value) ? value[{ _low: 1, _high: 2 }[side] ?? 0] : value);
  }).join(","));
  return [["folder", "task", ...shown].join(","), ...lines].join("\n") + "\n";
}
function latex() {
  const safe = (text) => text.replace(/\\/g, "\\textbackslash ").replace(/[&%$#_{}]/g, "\\$&")
    .replaceAll("~", "\\textasciitilde ").replaceAll("^", "\\textasciicircum ");
  const shown = columns();
  const lines = inOrder().map(({ row }) => shown.map((c) => {
    if (c.key === "name") return `\\texttt{${safe(labelOf(row))}}`;
    const value = valueOf(row, c.key);
    if (value === null) return "--";
    if (!Array.isArray(row[c.key])) return c.show(value);
    return `${c.show(value)} {\\scriptsize [${c.show(row[c.key][1])}, ${c.show(row[c.key][2])}]}`;
  }).join(" & ") + " \\\\");
  const notice = content.notice ? `% ${content.notice}\n` : "";
  return `${notice}% ${task.task}. Needs \\usepackage{booktabs}.\n` +
    `\\begin{tabular}{l${"r".repeat(shown.length - 1)}}\n\\toprule\n` +
    shown.map((c) => safe(c.head)).join(" & ") + " \\\\\n\\midrule\n" + lines.join("\n") +
    "\n\\bottomrule\n\\end{tabular}\n";
}

// The picture ---------------------------------------------------------------------------------
/** Round numbers from low to high: 1, 2 and 5 times powers of ten, or finer if few fit. */
function ticks(low, high) {
  for (const steps of [[1, 2, 5], [1, 1.5, 2, 3, 5, 7], [1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 3.5, 4,
    4.5, 5, 6, 7, 8, 9]]) {
    const found = [];
    for (let power = Math.floor(Math.log10(low)); 10 ** power <= high; power++) {
      for (const step of steps) {
        const value = Number((step * 10 ** power).toPrecision(3));
        if (value >= low && value <= high) found.push(value);
      }
    }
    if (found.length >= 4 || steps.length > 6) return found;
  }
}
function isPlaced(row) { return row.accuracy && row.speeds[cost.name]; }
/** Joins settings that share a place, so that each mark has one label. */
function marks(place) {
  const found = [];
  task.rows.forEach((row, index) => {
    if (!isPlaced(row)) return;
    const [x, y] = place(row.speeds[cost.name][0], row.accuracy[0]);
    const near = found.find((mark) => Math.hypot(mark.x - x, mark.y - y) < 6);
    if (near) near.rows.push({ row, index });
    else found.push({ x, y, rows: [{ row, index }] });
  });
  return found;
}
function overlap(a, b) {
  return a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
}
/** Puts each label where it covers neither a mark nor another label, as near as there is room. */
function placeLabels(found, frame) {
  const taken = found.map((m) => ({ left: m.x - 7, right: m.x + 7, top: m.y - 7, bottom: m.y + 7 }));
  for (const mark of found) {
    const text = mark.rows.map(({ index }) => index + 1).join(", ");
    const first = mark.rows.length === 1 ? " " + mark.rows[0].row.method : "";
    let best = null;
    for (const label of [text + first, text]) {
      const width = 6.6 * label.length + 4;
      for (const far of [10, 18, 30, 44]) {
        for (const [dx, dy] of [[1, 0], [-1, 0], [.5, -1], [-.5, -1], [.5, 1], [-.5, 1]]) {
          const left = mark.x + dx * far - (dx < 0 ? width : 0);
          const y = mark.y + dy * far;
          const box = { left, right: left + width, top: y - 8, bottom: y + 8 };
          const inside = box.left > frame.left && box.right < frame.right && box.top > frame.top &&
            box.bottom < frame.bottom;
          if (!best && inside && !taken.some((other) => overlap(box, other))) {
            best = { ...box, y, label, far };
          }
        }
      }
    }
    if (best) { taken.push(best); mark.label = best; }
  }
}
function drawPicture() {
  const drawn = task.rows.filter(isPlaced);
  byId("picture-head").textContent = `Accuracy against ${cost.axis}`;
  byId("svg").hidden = !drawn.length;
  if (!drawn.length) { byId("picture").textContent = "No setting has accuracy and speed yet."; return; }
  const width = Math.max(320, Math.min(1100, byId("picture").clientWidth || 900));
  const height = width < 600 ? 340 : 440;
  const frame = { left: 46, right: width - 12, top: 12, bottom: height - 44 };
  const speeds = drawn.flatMap((r) => r.speeds[cost.name]);
  const heights = drawn.flatMap((r) => r.accuracy);
  const [x0, x1] = [Math.min(...speeds) / 1.12, Math.max(...speeds) * 1.25];
  const [y0, y1] = [Math.max(-.02, Math.min(...heights) - .04), Math.min(1.02, Math.max(...heights) + .04)];
  const place = (x, y) => [
    frame.left + (frame.right - frame.left) * Math.log(x / x0) / Math.log(x1 / x0),
    frame.bottom - (frame.bottom - frame.top) * (y - y0) / (y1 - y0)];
  const svg = make("svg", { viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": `Accuracy against ${cost.axis}; the table has the numbers` });
  drawAxes(svg, frame, place, [x0, x1, y0, y1]);
  drawLines(svg, drawn, place);
  const found = marks(place);
  placeLabels(found, frame);
  for (const mark of found) drawMark(svg, mark);
  const unfinished = drawn.some((row) => row.missing) ? " \u2013 unfinished" : "";
  byId("picture").replaceChildren(svg, make("p", { class: "soft" },
    `Numbers are those of the table; crosses are 95 % intervals; lines join settings of a method; ` +
    `hold the pointer on a mark to see its method alone${unfinished}.`));
  const copy = svg.cloneNode(true);
  copy.prepend(make("style", {}, document.querySelector("style").textContent));
  exportTo("svg", "accuracy.svg", "image/svg+xml", new XMLSerializer().serializeToString(copy));
}
function drawAxes(svg, frame, place, [x0, x1, y0, y1]) {
  for (const x of ticks(x0, x1)) {
    const [at] = place(x, y0);
    svg.append(make("line", { class: "grid", x1: at, x2: at, y1: frame.top, y2: frame.bottom }),
      make("text", { x: at, y: frame.bottom + 16, "text-anchor": "middle", class: "soft" }, String(x)));
  }
  const step = y1 - y0 > .5 ? .2 : y1 - y0 > .2 ? .1 : .05;
  for (let y = Math.ceil(y0 / step) * step; y <= y1 + 1e-9; y += step) {
    const [, at] = place(x0, y);
    svg.append(make("line", { class: "grid", x1: frame.left, x2: frame.right, y1: at, y2: at }),
      make("text", { x: frame.left - 6, y: at + 4, "text-anchor": "end", class: "soft" }, y.toFixed(2)));
  }
  const both = task.rows.some((row) => row.target_nfe) && cost.name === "forwards" ?
    " of either model" : "";
  svg.append(make("text", { x: (frame.left + frame.right) / 2, y: frame.bottom + 36,
    "text-anchor": "middle", class: "soft" }, `${cost.axis}${both} (log scale)`));
}
function drawLines(svg, drawn, place) {
  for (const method of new Set(drawn.map((row) => row.method))) {
    const own = drawn.filter((row) => row.method === method)
      .sort((a, b) => a.speeds[cost.name][0] - b.speeds[cost.name][0]);
    const line = make("g", { class: "line", "data-method": method }, make("path", { fill: "none",
      stroke: colourOf(own[0]), opacity: .6, "stroke-dasharray": styleOf(own[0]).dash,
      d: "M" + own.map((r) => place(r.speeds[cost.name][0], r.accuracy[0]).join(" ")).join("L") }));
    svg.append(line);
    for (const row of own) {
      const [x, y] = [row.speeds[cost.name], row.accuracy];
      line.append(make("path", { stroke: colourOf(row), opacity: .35, fill: "none", d:
        `M${place(x[1], y[0]).join(" ")}L${place(x[2], y[0]).join(" ")}` +
        `M${place(x[0], y[1]).join(" ")}L${place(x[0], y[2]).join(" ")}` }));
    }
  }
}
function drawMark(svg, { x, y, rows, label }) {
  const row = rows[0].row;
  const title = rows.map((one) => `${one.index + 1}. ${labelOf(one.row)}: accuracy ` +
    `${one.row.accuracy[0].toFixed(3)}, ${one.row.speeds[cost.name][0].toFixed(2)} ${cost.speed}`);
  const method = row.method;
  const alone = (chosen) => () => svg.querySelectorAll(".line").forEach((line) =>
    line.classList.toggle("faded", chosen !== null && line.dataset.method !== chosen));
  const group = make("g", { class: "line", "data-method": method, onmouseenter: alone(method),
    onmouseleave: alone(null) }, make("title", {}, title.join("\n")));
  if (label && label.far > 12) {
    const nearest = Math.max(label.left, Math.min(x, label.right));
    group.append(make("line", { class: "leader", x1: x, y1: y, x2: nearest, y2: label.y }));
  }
  group.append(glyph(row, x, y, rows.length > 1 ? 7 : 5.5));
  if (label) group.append(make("text", { x: label.left + 2, y: label.y + 4 }, label.label));
  svg.append(group);
}

// When results are decided ---------------------------------------------------------------------
/** Points of the share of examples that have come so far, by step. */
function sharesOf(counts) {
  const steps = Object.keys(counts).map(Number).sort((a, b) => a - b);
  const total = steps.reduce((sum, step) => sum + counts[step], 0);
  let sum = 0;
  return [[0, 0], ...steps.flatMap((step) => [[step, sum / total], [step, (sum += counts[step]) / total]])];
}
function drawDecided() {
  const rows = task.rows.filter((row) => row.decided);
  byId("decided-section").hidden = !rows.length;
  if (!rows.length) return;
  const width = Math.max(320, byId("decided").clientWidth);
  const [height, frame] = [262, { left: 40, right: width - 12, top: 12, bottom: 236 }];
  const last = Math.max(...rows.flatMap((row) => Object.keys(row.decided.ended).map(Number)));
  const place = (x, y) => [frame.left + (frame.right - frame.left) * x / last,
    frame.bottom - (frame.bottom - frame.top) * y];
  const svg = make("svg", { viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": "Share of the results that are decided, by step" });
  for (const y of [0, .5, 1]) {
    svg.append(make("line", { class: "grid", x1: frame.left, x2: frame.right, y1: place(0, y)[1],
      y2: place(0, y)[1] }), make("text", { x: frame.left - 6, y: place(0, y)[1] + 4,
      "text-anchor": "end", class: "soft" }, y.toFixed(1)));
  }
  for (const x of new Set([0, Math.round(last / 2), last])) {
    svg.append(make("text", { x: place(x, 0)[0], y: frame.bottom + 18, class: "soft",
      "text-anchor": x === last ? "end" : x ? "middle" : "start" }, `step ${x}`));
  }
  for (const row of rows) {
    for (const [name, dash] of [["decided", null], ["ended", "5 4"]]) {
      const points = sharesOf(row.decided[name]).map(([x, y]) => place(x, y).join(" "));
      svg.append(make("path", { fill: "none", stroke: colourOf(row), "stroke-width": 1.8,
        "stroke-dasharray": dash, d: "M" + points.join("L") },
      make("title", {}, `${labelOf(row)}: ${name}`)));
    }
  }
  byId("decided").replaceChildren(svg, make("p", { class: "soft" }, ...rows.flatMap((row) =>
    [dot(row), ` ${labelOf(row)}: ${(100 * row.decided.by_half).toFixed(0)} % decided at half of ` +
      "its steps. "])));
}

// The examples --------------------------------------------------------------------------------
function scoreOf(answers) {
  const scores = (answers ?? []).map((one) => one.score).filter((score) => score !== null);
  return scores.length ? scores.reduce((a, b) => a + b) / scores.length : null;
}
function matches(example) {
  const words = byId("search").value.toLowerCase();
  const answers = example.cells.flatMap((cell) => cell ?? []);
  if (words && ![example.id, example.prompt, String(example.target), ...answers.map((a) => a.text)]
    .some((text) => text.toLowerCase().includes(words))) return false;
  const under = byId("under").value;
  const cells = under === "any" ? example.cells : [example.cells[Number(under)]];
  const scores = cells.map(scoreOf).filter((score) => score !== null);
  const all = example.cells.map(scoreOf).filter((score) => score !== null);
  switch (byId("filter").value) {
    case "wrong": return scores.some((score) => score < 1);
    case "right": return scores.some((score) => score >= 1);
    case "disagree": return new Set(all).size > 1;
    case "differ": return new Set(answers.map((one) => one.text)).size > 1;
    case "error": return answers.some((one) => one.error);
    case "missing": return isMissing(example);
    default: return true;
  }
}
function isMissing(example) {
  return example.cells.some((cell, index) => (cell ?? []).length < task.rows[index].keys.length);
}
function chip(answers, index) {
  const score = scoreOf(answers);
  const [kind, mark] = !answers ? ["none", "?"] : answers.some((one) => one.error) ? ["no", "!"] :
    score === null ? ["", "-"] : score >= 1 ? ["yes", "\u2713"] : score > 0 ?
      ["part", score.toFixed(2)] : ["no", "\u2717"];
  const said = !answers ? "missing" : score === null ? "no score" : `score ${score.toFixed(2)}`;
  return make("span", { class: `chip ${kind}`, title: `${index + 1}. ${labelOf(task.rows[index])}: ` +
    said, "aria-label": `${index + 1}: ${said}` }, mark);
}
function drawExample(example) {
  const details = make("details", { class: "example", id: `example-${example.id}` },
    make("summary", {}, make("span", { class: "chips" }, ...example.cells.map(chip)),
      make("span", { class: "begin" }, example.prompt || example.id)));
  details.addEventListener("toggle", () => {
    if (details.open && details.children.length === 1) details.append(bodyOf(example));
  });
  return details;
}
function bodyOf(example) {
  const boxes = [];
  const link = example.replay === null ? "" : make("a", { class: "button replay", href: example.replay },
    "Replay");
  const follow = () => {
    const chosen = boxes.filter((box) => box.checked).map((box) => box.value);
    if (link) link.href = example.replay + (chosen.length ? `#show=${chosen.join(",")}` : "");
    if (link) link.textContent = chosen.length ? `Replay the chosen ${chosen.length}` : "Replay all";
  };
  const lines = example.cells.flatMap((answers, index) => {
    const row = task.rows[index];
    const seeds = (answers ?? []).length > 1;
    return (answers ?? [{ text: "", error: "missing", length: null, seed: 0 }]).map((one, nth) => {
      const box = make("input", { type: "checkbox", value: row.keys.join(), onchange: follow,
        "aria-label": `Choose setting ${index + 1} for the replay` });
      if (nth === 0 && example.replay !== null && answers) boxes.push(box);
      const cost = one.length === null ? "" : ` ${one.length} tokens, ${one.nfe} forwards`;
      return make("div", { class: "answer" }, nth === 0 && example.replay !== null && answers ? box : "",
        make("div", { class: "mono" }, chip(answers ? [one] : null, index),
          ` ${index + 1}. ${labelOf(row)}${seeds ? `, seed ${one.seed}` : ""}`,
          make("div", { class: "soft" }, cost)),
        make("div", { class: one.error ? "text wrong" : "text" }, one.error ?? one.text));
    });
  });
  follow();
  return make("div", { class: "body" }, make("dl", {}, make("dt", {}, "id"), make("dd", {}, example.id),
    make("dt", {}, "prompt"), make("dd", {}, example.prompt), make("dt", {}, "target"),
    make("dd", {}, String(example.target))), ...lines, make("p", {}, link));
}
function drawExamples() {
  const found = task.examples.filter(matches);
  byId("examples").replaceChildren(...found.slice(0, numShown).map(drawExample));
  byId("more").hidden = found.length <= numShown;
  const missing = Math.max(...task.rows.map((row) => row.missing));
  byId("count").textContent = `${found.length} of ${task.examples.length}` +
    (missing ? ` (unfinished: up to ${missing} are missing)` : "");
  byId("under").disabled = !["wrong", "right"].includes(byId("filter").value);
}
/** Opens the example that a link names, whatever the filters say. */
function openNamed() {
  const id = new URLSearchParams(location.hash.slice(1)).get("example");
  const at = content.tasks.findIndex((one) => one.examples.some((example) => example.id === id));
  if (id === null || at < 0) return;
  choose(at);
  numShown = Math.max(numShown, task.examples.findIndex((example) => example.id === id) + 1);
  drawExamples();
  const details = byId(`example-${id}`);
  details.open = true;
  details.scrollIntoView();
  details.firstChild.focus();
}

/** Returns the paragraphs of a Markdown text, whose tables become tables. */
function paragraphsOf(text) {
  const line = (name, cells) => make("tr", {},
    ...cells.map((cell) => make(name, {}, cell.replaceAll("`", ""))));
  return text.split("\n\n").filter(Boolean).map((part) => {
    if (!part.startsWith("| ")) return make("p", { class: "soft" }, part);
    const [head, , ...rows] = part.split("\n").map((cells) => cells.slice(2, -2).split(" | "));
    return make("div", { class: "scroll" },
      make("table", {}, line("th", head), ...rows.map((cells) => line("td", cells))));
  });
}

/** Shows bold settings, advice and picture by a cost. */
function chooseCost(name) {
  cost = content.costs[name];
  byId("cost").value = name;
  byId("advice").textContent = task.advice[name];
  byId("advice").hidden = !task.advice[name];
  byId("origin").textContent = task.origin;
  byId("tables").replaceChildren(...paragraphsOf(task.tables));
  byId("tables").hidden = !task.tables;
  byId("bold").textContent = `Bold: no other setting is better in accuracy and in ${cost.axis}.`;
  drawTable();
  drawPicture();
}
function choose(index) {
  task = content.tasks[index];
  byId("task").value = String(index);
  byId("under").replaceChildren(make("option", { value: "any" }, "any setting"),
    ...task.rows.map((row, at) => make("option", { value: String(at) }, `${at + 1}. ${labelOf(row)}`)));
  byId("legend").textContent = "Marks are settings in the order of the table: " +
    "\u2713 right, \u2717 wrong, ! error, ? missing.";
  sorted = { column: null, down: false };
  numShown = PAGE_LENGTH;
  chooseCost(task.cost);
  drawDecided();
  drawExamples();
}
byId("cost").append(...Object.values(content.costs).map((one) =>
  make("option", { value: one.name }, one.name)));
byId("cost").addEventListener("change", () => chooseCost(byId("cost").value));
byId("task").append(...content.tasks.map((one, index) =>
  make("option", { value: String(index) }, `${one.task}, ${one.model}`)));
byId("task").addEventListener("change", () => choose(Number(byId("task").value)));
byId("task").disabled = content.tasks.length === 1;
for (const id of ["search", "filter", "under"]) {
  byId(id).addEventListener("input", () => { numShown = PAGE_LENGTH; drawExamples(); });
}
byId("more").addEventListener("click", () => { numShown += PAGE_LENGTH; drawExamples(); });
document.addEventListener("keydown", (event) => {
  if (isTyping(event)) { if (event.key === "Escape") event.target.blur(); return; }
  const heads = [...document.querySelectorAll(".example > summary")];
  const here = heads.findIndex((head) => head.parentNode.contains(document.activeElement));
  if (event.key === "/") byId("search").focus();
  else if (event.key === "j" && heads.length) heads[Math.min(here + 1, heads.length - 1)].focus();
  else if (event.key === "k" && heads.length) heads[Math.max(here - 1, 0)].focus();
  else if (event.key === "r" && here >= 0) {
    const replay = task.examples.find((one) => `example-${one.id}` === heads[here].parentNode.id).replay;
    if (replay) location.href = replay;
    return;
  } else return;
  event.preventDefault();
});
window.addEventListener("hashchange", openNamed);
window.addEventListener("resize", drawPicture);
notify(content.notice);
choose(0);
openNamed();
