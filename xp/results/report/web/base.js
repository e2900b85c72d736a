"use strict";
// Elements, numbers and the page's state. Text reaches the page through text nodes alone: nothing of a report is parsed
// as HTML, so that what a model or a server wrote stays text.
const XP = {};

(() => {
  const SVG = "http://www.w3.org/2000/svg";

  const fill = (node, children) => {
    for (const child of children.flat(Infinity)) {
      if (child !== null && child !== undefined && child !== false) {
        node.append(child instanceof Node ? child : document.createTextNode(String(child)));
      }
    }
    return node;
  };

  const dress = (node, attributes) => {
    for (const [name, value] of Object.entries(attributes)) {
      if (value === null || value === undefined || value === false) continue;
      if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else node.setAttribute(name, value === true ? "" : String(value));
    }
    return node;
  };

  // An element with attributes, listeners (`onclick`) and children.
  XP.h = (tag, attributes = {}, ...children) => fill(dress(document.createElement(tag), attributes), children);
  XP.svg = (tag, attributes = {}, ...children) => fill(dress(document.createElementNS(SVG, tag), attributes), children);
  XP.fill = (node, ...children) => {
    node.replaceChildren();
    return fill(node, children);
  };
  XP.section = (id, title, ...children) =>
    XP.h("section", { id, "aria-labelledby": `${id}-title` }, XP.h("h2", { id: `${id}-title` }, title), children);

  XP.num = (value, digits = 4) => {
    if (value === null || value === undefined) return "–";
    if (typeof value !== "number") return String(value);
    if (Number.isInteger(value)) return value.toLocaleString("en");
    const size = Math.abs(value);
    if (size >= 1000) return Math.round(value).toLocaleString("en");
    if (size !== 0 && size < 0.001) return value.toExponential(2);
    return String(Number(value.toPrecision(digits)));
  };
  XP.reward = (value) => (value === null || value === undefined ? "void" : value.toFixed(3).replace(/\.?0+$/, "") || "0");
  XP.time = (seconds) => {
    if (seconds === null || seconds === undefined) return "–";
    if (seconds < 90) return `${XP.num(seconds, 3)} s`;
    return seconds < 5400 ? `${(seconds / 60).toFixed(1)} min` : `${(seconds / 3600).toFixed(1)} h`;
  };
  // A mean with its 95 % interval, [value, low, high].
  XP.estimate = (found) => {
    if (!found) return "–";
    const [value, low, high] = found;
    return [XP.h("span", { class: "reward" }, value.toFixed(3)), low === null ? null : XP.h("span", { class: "interval", title: "95 % interval of the mean, clustered by task" }, `${low.toFixed(3)} to ${high.toFixed(3)}`)];
  };
  XP.colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  XP.lineColour = (number) => XP.colour(`line-${number % 8}`);

  // What is looked at; kept in the address, so that the browser's Back works and a place can be sent to a colleague.
  XP.state = {};
  const listeners = [];
  XP.onState = (listener) => listeners.push(listener);
  const NUMBERS = ["run", "step", "row", "page"];

  const read = () => {
    const found = {};
    for (const [name, value] of new URLSearchParams(location.hash.slice(1))) {
      if (!NUMBERS.includes(name)) found[name] = value;
      else if (/^\d{1,9}$/.test(value)) found[name] = Number(value);
    }
    return found;
  };
  const tell = () => listeners.forEach((listener) => listener(XP.state));

  XP.go = (changes) => {
    const next = { ...XP.state, ...changes };
    const kept = Object.entries(next).filter(([, value]) => value !== null && value !== undefined && value !== "");
    const hash = `#${new URLSearchParams(kept)}`;
    XP.state = Object.fromEntries(kept);
    if (hash !== location.hash) history.pushState(null, "", hash);
    tell();
  };
  XP.start = () => {
    XP.state = read();
    for (const event of ["hashchange", "popstate"]) {
      window.addEventListener(event, () => {
        XP.state = read();
        tell();
      });
    }
    tell();
  };

  // A table whose columns sort by a click on their head. Columns: {title, value(row), show(row), isNumber, isName, isMinor, kind};
  // a narrow screen leaves minor ones out.
  // Its `update(rows)` shows other rows in the same order.
  XP.table = (columns, given, { onRow, most = 200, caption } = {}) => {
    const body = XP.h("tbody");
    const more = XP.h("p", { class: "note" });
    let rows = given;
    let order = { column: -1, sign: 1 };
    let shownRows = most;

    const sorted = () => {
      if (order.column < 0) return rows;
      const { value } = columns[order.column];
      const rank = (row) => {
        const found = value(row);
        return found === null || found === undefined ? -Infinity : found;
      };
      const compare = (one, other) => (one < other ? -1 : one > other ? 1 : 0);
      return [...rows].sort((one, other) => order.sign * compare(rank(one), rank(other)));
    };
    const kindOf = (column) => [column.isNumber ? "number" : column.isName ? "name" : "", column.isMinor ? "minor" : ""].join(" ").trim() || null;
    const line = (row) => {
      const cells = columns.map((column) =>
        XP.h("td", { class: column.kind || kindOf(column) }, column.show ? column.show(row) : XP.num(column.value(row))));
      if (!onRow) return XP.h("tr", {}, cells);
      const open = () => onRow(row);
      return XP.h("tr", { tabindex: 0, class: "open", onclick: open, onkeydown: (event) => event.key === "Enter" && open() }, cells);
    };
    // A row that did not change keeps its element, and the keyboard's focus.
    const lines = new WeakMap();
    const lineOf = (row) => {
      if (!lines.has(row)) lines.set(row, line(row));
      return lines.get(row);
    };
    const draw = () => {
      const focused = body.contains(document.activeElement) ? document.activeElement : null;
      XP.fill(body, sorted().slice(0, shownRows).map(lineOf));
      focused?.focus({ preventScroll: true });
      const left = rows.length - shownRows;
      const onclick = () => { shownRows += most; draw(); };
      XP.fill(more, left > 0 ? XP.h("button", { onclick }, `${left.toLocaleString("en")} more`) : null);
    };
    const head = columns.map((column, number) => {
      const cell = XP.h("th", { scope: "col", class: kindOf(column) });
      const sort = () => {
        order = { column: number, sign: order.column === number ? -order.sign : column.isNumber ? -1 : 1 };
        head.forEach((one) => one.removeAttribute("aria-sort"));
        cell.setAttribute("aria-sort", order.sign > 0 ? "ascending" : "descending");
        draw();
      };
      return XP.fill(cell, column.title && XP.h("button", { class: "sort", onclick: sort }, column.title));
    });
    draw();
    const table = XP.h("table", {}, caption && XP.h("caption", {}, caption), XP.h("thead", {}, XP.h("tr", {}, head)), body);
    const element = XP.h("div", {}, XP.h("div", { class: "wide", tabindex: 0 }, table), more);
    element.update = (fresh) => { rows = fresh; draw(); };
    return element;
  };
})();
