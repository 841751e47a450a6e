// Creates elements from data. Text is added as text nodes only: no code of the page parses HTML.

/** An element. `attributes`: `class`, `on<event>` functions, `data-…`, booleans; `children`: nodes, texts, lists; null is skipped. */
export function h(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** An SVG element; see `h`. */
export function svg(tag, attributes, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(Infinity).filter((c) => c !== null && c !== undefined && c !== false));
  return element;
}

/** A part of the page that is redrawn only when its data has changed, so that focus, selection and open details stay. */
export class Section {
  constructor(draw, attributes = {}) {
    this.element = h("section", attributes);
    this.draw = draw;
    this.shown = undefined;
  }

  show(data) {
    const text = JSON.stringify(data);
    if (text === this.shown) return;
    this.shown = text;
    const open = new Set([...this.element.querySelectorAll("details[open][data-key]")].map((d) => d.dataset.key));
    const drawn = this.draw(data);
    this.element.replaceChildren(...(Array.isArray(drawn) ? drawn.flat(Infinity).filter(Boolean) : drawn ? [drawn] : []));
    for (const details of this.element.querySelectorAll("details[data-key]")) {
      if (open.has(details.dataset.key)) details.open = true;
    }
    this.element.hidden = this.element.childNodes.length === 0;
  }
}

/** A card with a heading. */
export function card(title, ...content) {
  return [h("h2", {}, title), ...content];
}

/** A table. `columns`: [heading, class]; `rows`: lists of cells (node, text or null). On a narrow screen each row is a
 * block, with the headings beside the cells. */
export function table(columns, rows, caption) {
  return h(
    "div",
    { class: "scroll" },
    h(
      "table",
      {},
      h("caption", { class: "unseen" }, caption),
      h("thead", {}, h("tr", {}, columns.map(([title, kind]) => h("th", { scope: "col", class: kind }, title)))),
      h(
        "tbody",
        {},
        rows.map((cells) =>
          h(
            "tr",
            {},
            cells.map((cell, i) =>
              h("td", { class: columns[i][1], "data-title": columns[i][0] }, cell ?? h("span", { class: "none" }, "–")),
            ),
          ),
        ),
      ),
    ),
  );
}

const notices = document.getElementById("notices");

/** A message in the corner. `kind`: "good", "bad" or "wait"; returns a function that replaces it. */
export function notice(kind, text, detail = "") {
  const close = h("button", { class: "close", "aria-label": "Dismiss", onclick: () => box.remove() }, "×");
  const box = h("div", {});
  const show = (nextKind, nextText, nextDetail = "") => {
    box.className = `notice ${nextKind}`;
    box.replaceChildren(
      h("div", {}, h("strong", {}, nextText), nextDetail ? h("p", {}, nextDetail) : null),
      close,
    );
    if (nextKind === "good") setTimeout(() => box.remove(), 12000);
    if (!box.isConnected) notices.append(box);
  };
  show(kind, text, detail);
  return show;
}
