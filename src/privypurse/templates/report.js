"use strict";
// Draws every chart in the page's own colours, those of the reader's light or dark, and again when that changes.
const dark = matchMedia("(prefers-color-scheme: dark)");
const documents = new Map();
const places = [...document.querySelectorAll(".chart")];

function coloured(place) {
  const style = getComputedStyle(document.body);
  let text = place.dataset.chart;
  for (const [token, name] of Object.entries(JSON.parse(place.dataset.tokens))) {
    text = text.replaceAll(`"${token}"`, JSON.stringify(style.getPropertyValue(`--${name}`).trim()));
  }
  return JSON.parse(text);
}

function show(button) {
  for (const each of documents.get(button.dataset.of).roots()[0].renderers) {
    if (each.name === button.dataset.series) each.visible = button.getAttribute("aria-pressed") === "true";
  }
}

// A picture is nothing to stop at with the keyboard: its numbers stand below it, as a table.
function unfocused(node) {
  if (node.tabIndex >= 0) node.tabIndex = -1;
  for (const child of [...node.children, ...(node.shadowRoot?.children ?? [])]) unfocused(child);
}

async function draw(place) {
  place.replaceChildren();
  const item = coloured(place);
  await Bokeh.embed.embed_item(item, place.id);
  const drawn = Bokeh.documents.find((each) => each.roots()[0].id === item.root_id);
  documents.set(place.id, drawn);
  for (const button of document.querySelectorAll(`[data-of="${place.id}"]`)) show(button);
  for (const child of place.children) unfocused(child);
  const ready = () => { place.dataset.ready = "true"; };
  if (drawn.is_idle) ready(); else drawn.idle.connect(ready);
}

function drawAll() {
  Bokeh.documents.splice(0);
  for (const place of places) delete place.dataset.ready;
  places.forEach(draw);
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-series]");
  if (!button) return;
  button.setAttribute("aria-pressed", String(button.getAttribute("aria-pressed") !== "true"));
  show(button);
});
Bokeh.set_log_level("warn");
drawAll();
dark.addEventListener("change", drawAll);
