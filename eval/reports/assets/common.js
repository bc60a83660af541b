"use strict";
const content = JSON.parse(document.getElementById("content").textContent);
const byId = (id) => document.getElementById(id);

/** Makes an element: its name, attributes (`on...` are listeners), and children or texts. */
function make(name, attributes = {}, ...children) {
  const svg = ["svg", "path", "line", "circle", "text", "title", "g", "tspan", "style"].includes(name);
  const node = svg ? document.createElementNS("http://www.w3.org/2000/svg", name)
    : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (value === true) node.setAttribute(key, "");
    else if (value !== false && value !== null) node.setAttribute(key, value);
  }
  node.append(...children);
  return node;
}
function notify(text) { byId("notice").textContent = text; byId("notice").hidden = text === ""; }
function isTyping(event) {
  return event.ctrlKey || event.metaKey || event.altKey ||
    ["INPUT", "SELECT", "TEXTAREA"].includes(event.target.tagName) && event.target.type !== "range" &&
    event.target.type !== "checkbox";
}
