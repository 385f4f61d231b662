// What report.html adds where scripts run: values to point at, series to hide, panels to zoom, files to save, day and
// night. The page says everything without it. Texts from files only ever become textContent or attributes.
(() => {
  "use strict";
  const NS = "http://www.w3.org/2000/svg";
  const NEAR_PX = 40; // of the pointer, within which a point answers
  const DRAG_PX = 6; // less is a click
  const LEAST = 0.002; // of a panel's side that a zoom still shows
  const root = document.documentElement;

  function make(tag, attributes = {}, text = "") {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.textContent = text;
    return made;
  }

  function save(name, type, text) {
    const address = URL.createObjectURL(new Blob([text], { type }));
    const link = make("a", { href: address, download: name });
    link.click();
    setTimeout(() => URL.revokeObjectURL(address), 10000);
  }

  const between = (value, a, b, slack = 0) => value >= Math.min(a, b) - slack && value <= Math.max(a, b) + slack;

  // ---------------------------------------------------------------------------------------------- one figure

  class Plot {
    constructor(figure, facts) {
      this.figure = figure;
      this.facts = facts;
      this.name = figure.dataset.figure;
      this.plot = figure.querySelector(".plot");
      this.canvas = figure.querySelector(".canvas");
      this.svg = this.canvas.querySelector("svg");
      this.views = facts.panels.map((panel) => [...panel.box]); // what each panel shows, in its own full coordinates
      this.hidden = new Set(); // indices of series
      this.nodes = null; // what a zoom moves, once there has been one
      this.extra = [];
      this.at = -1; // the point that the keyboard stands on
      this.title = figure.querySelector("h3").textContent;
      this.tooltip = make("div", { class: "tooltip", role: "status" });
      this.canvas.append(this.tooltip);
      this.ring = document.createElementNS(NS, "circle");
      this.ring.setAttribute("class", "ring off");
      this.ring.setAttribute("r", "6.5");
      this.svg.append(this.ring);
      this.figure.classList.add("live");
      this.addKeys();
      this.addTools();
      this.listen();
    }

    node(name) {
      return document.getElementById(`${this.name}-${name}`);
    }

    // -------------------------------------------------------------------------------------------- legend

    addKeys() {
      const { legend, crop, series, width } = this.facts;
      const cropped = crop !== null && legend.length > 0;
      const entries = legend.filter(([, label, index], place) =>
        (cropped || index >= 0) && legend.findIndex((other) => other[1] === label) === place);
      const drawn = new Set(entries.map((entry) => entry[2]));
      if (series.length > 1) series.forEach((label, index) => drawn.has(index) || entries.push(["", label, index, null]));
      if (entries.length === 0) return;
      const keys = make("div", { class: "keys", role: "group", "aria-label": `Series of ${this.title}: shown or hidden` });
      for (const [name, label, index, box] of entries) {
        const key = index >= 0 ? make("button", { type: "button", "data-series": label, "aria-pressed": "true" }) : make("span");
        const swatch = box && this.swatch(name, box);
        if (swatch) key.append(swatch);
        key.append(label);
        if (index >= 0) key.addEventListener("click", () => this.toggle(index));
        keys.append(key);
      }
      this.keys = keys;
      this.plot.after(keys);
      if (cropped) {
        document.querySelectorAll(`[id^="${this.name}-legend"]`).forEach((each) => each.classList.add("drawn-legend"));
        this.canvas.style.setProperty("--aspect", `${width} / ${Math.max(crop, 1)}`);
        this.figure.classList.add("cropped");
      }
    }

    swatch(name, box) {
      const handle = this.node(name);
      if (!handle) return null;
      const [x, y] = [(box[0] + box[2]) / 2, (box[1] + box[3]) / 2];
      const svg = document.createElementNS(NS, "svg");
      svg.setAttribute("viewBox", `${x - 15} ${y - 7} 30 14`);
      svg.setAttribute("aria-hidden", "true");
      const copy = handle.cloneNode(true);
      for (const each of [copy, ...copy.querySelectorAll("[id]")]) each.removeAttribute("id");
      svg.append(copy);
      return svg;
    }

    toggle(index, show = this.hidden.has(index)) {
      if (show) this.hidden.delete(index);
      else this.hidden.add(index);
      const label = this.facts.series[index];
      for (const key of this.keys ? this.keys.querySelectorAll("button") : []) {
        if (key.dataset.series === label) key.setAttribute("aria-pressed", String(show));
      }
      for (const [name, of] of this.facts.marked) {
        if (of === index) this.node(name)?.classList.toggle("off", !show);
      }
      this.hideTip();
    }

    // -------------------------------------------------------------------------------------------- buttons

    addTools() {
      const tools = make("div", { class: "tools", role: "group", "aria-label": `${this.title}: view and files` });
      const add = (action, text, label, act) => {
        const button = make("button", { type: "button", "data-action": action, "aria-label": label }, text);
        button.addEventListener("click", act);
        tools.append(button);
      };
      add("reset", "Reset", `Reset the view of ${this.title}`, () => this.reset());
      add("svg", "SVG", `SVG of ${this.title} as shown`, () => save(`${this.name}.svg`, "image/svg+xml", this.standalone()));
      if (this.facts.csv !== null) {
        add("csv", "CSV", `CSV of ${this.title}: data`, () => save(`${this.name}.csv`, "text/csv;charset=utf-8", this.facts.csv));
      }
      (this.keys || this.plot).after(tools);
    }

    standalone() {
      const copy = this.svg.cloneNode(true);
      copy.querySelectorAll(".off, .frame, .ring").forEach((each) => each.remove());
      copy.setAttribute("width", `${this.facts.width}pt`);
      copy.setAttribute("height", `${this.facts.height}pt`);
      const before = root.dataset.theme;
      root.dataset.theme = "light"; // a file is for paper
      const look = getComputedStyle(root);
      const text = new XMLSerializer().serializeToString(copy)
        .replace(/var\((--[\w-]+)\)/g, (all, name) => look.getPropertyValue(name).trim().replaceAll('"', "'") || all);
      if (before === undefined) delete root.dataset.theme;
      else root.dataset.theme = before;
      return `<?xml version="1.0" encoding="utf-8"?>\n${text}\n`;
    }

    reset() {
      this.facts.series.forEach((_, index) => this.hidden.has(index) && this.toggle(index, true));
      this.facts.panels.forEach((panel, place) => this.show(place, [...panel.box]));
    }

    // -------------------------------------------------------------------------------------------- zoom

    map(place) {
      const [x0, y0, x1, y1] = this.facts.panels[place].box;
      const [u0, v0, u1, v1] = this.views[place];
      return {
        x: (x) => x0 + ((x - u0) * (x1 - x0)) / (u1 - u0),
        y: (y) => y0 + ((y - v0) * (y1 - y0)) / (v1 - v0),
      };
    }

    whole(place) {
      return this.views[place].every((value, i) => value === this.facts.panels[place].box[i]);
    }

    show(place, view) {
      const box = this.facts.panels[place].box;
      const [width, height] = [box[2] - box[0], box[3] - box[1]];
      const fit = (low, high, from, to, least) => {
        const size = Math.min(Math.max(high - low, least), to - from);
        const start = Math.min(Math.max((low + high - size) / 2, from), to - size);
        return size >= to - from ? [from, to] : [start, start + size];
      };
      const [u0, u1] = fit(view[0], view[2], box[0], box[2], LEAST * width);
      const [v0, v1] = fit(view[1], view[3], box[1], box[3], LEAST * height);
      if (this.whole(place) && u0 === box[0] && u1 === box[2] && v0 === box[1] && v1 === box[3]) return;
      this.views[place] = [u0, v0, u1, v1];
      this.hideTip();
      this.move(place);
      this.figure.classList.toggle("zoomed", this.views.some((_, each) => !this.whole(each)));
    }

    read() {
      const parts = [];
      for (const [name, panel, ways, kind, ax, ay] of this.facts.parts) {
        const node = this.node(name);
        if (!node || ways === "") continue;
        const [byX, byY] = [ways.includes("x"), ways.includes("y")];
        if (kind === "whole") {
          parts.push({ panel, node, kind, byX, byY, x: ax, y: ay });
          continue;
        }
        for (const path of node.querySelectorAll("path")) {
          if (path.closest("defs")) continue;
          const d = path.getAttribute("d") || "";
          const centred = kind === "marks" ? this.middle(d) : null;
          parts.push(centred
            ? { panel, node: path, kind: "whole", byX, byY, ...centred }
            : { panel, node: path, kind: "path", byX, byY, d, x: 0, y: 0 });
        }
        for (const use of node.querySelectorAll("use")) {
          const [x, y] = [Number(use.getAttribute("x")), Number(use.getAttribute("y"))];
          const shape = kind === "shapes" && document.getElementById((use.getAttribute("xlink:href") || "").slice(1));
          parts.push(shape
            ? { panel, node: shape, kind: "path", byX, byY, d: shape.getAttribute("d") || "", x, y }
            : { panel, node: use, kind: "mark", byX, byY, x, y });
        }
      }
      return parts;
    }

    middle(d) {
      const numbers = (d.match(/-?[\d.]+(?:e-?\d+)?/g) || []).map(Number);
      const [xs, ys] = [numbers.filter((_, i) => i % 2 === 0), numbers.filter((_, i) => i % 2 === 1)];
      if (xs.length === 0) return null;
      return { x: (Math.min(...xs) + Math.max(...xs)) / 2, y: (Math.min(...ys) + Math.max(...ys)) / 2 };
    }

    move(place) {
      this.nodes ??= this.read();
      const { x: toX, y: toY } = this.map(place);
      const [x0, y0, x1, y1] = this.facts.panels[place].box;
      for (const part of this.nodes) {
        if (part.panel !== place) continue;
        const [fx, fy] = [part.byX ? toX : (x) => x, part.byY ? toY : (y) => y];
        if (part.kind === "path") {
          part.node.setAttribute("d", part.d.replace(/(-?[\d.]+(?:e-?\d+)?) (-?[\d.]+(?:e-?\d+)?)/g, (_, x, y) =>
            `${(fx(Number(x) + part.x) - part.x).toFixed(3)} ${(fy(Number(y) + part.y) - part.y).toFixed(3)}`));
          continue;
        }
        const [x, y] = [fx(part.x), fy(part.y)];
        const out = (part.byX && !between(x, x0, x1, 0.6)) || (part.byY && !between(y, y0, y1, 0.6));
        part.node.style.visibility = out && !this.whole(place) ? "hidden" : "";
        if (part.kind === "mark") {
          part.node.setAttribute("x", String(x));
          part.node.setAttribute("y", String(y));
        } else if (this.whole(place)) part.node.removeAttribute("transform");
        else part.node.setAttribute("transform", `translate(${(x - part.x).toFixed(3)} ${(y - part.y).toFixed(3)})`);
      }
      this.extra = this.extra.filter((each) => (each.panel === place ? (each.node.remove(), false) : true));
      for (const axes of this.facts.panels[place].axes) {
        this.moveTicks(place, axes.x, "x", toX, [x0, x1]);
        this.moveTicks(place, axes.y, "y", toY, [y1, y0]);
      }
    }

    moveTicks(place, axis, way, to, [start, end]) {
      const shift = (by) => (way === "x" ? `translate(${by.toFixed(3)} 0)` : `translate(0 ${by.toFixed(3)})`);
      const room = way === "x" ? 24 : 12; // between two labels
      const shown = [];
      let [pattern, longest, powers] = [null, 0, false];
      for (const [name, from] of axis.ticks) {
        const node = this.node(name);
        if (!node) continue;
        const spot = to(from);
        const inside = between(spot, start, end, 0.6);
        node.setAttribute("transform", shift(spot - from));
        node.style.display = inside ? "" : "none";
        const text = node.querySelector("text");
        if (text) {
          pattern ??= { node, from };
          longest = Math.max(longest, text.textContent.length);
          powers ||= /\de/.test(text.textContent);
        }
        if (inside && text) shown.push(spot);
      }
      if (this.whole(place) || !axis.plain || !pattern || shown.length > 3) return;
      const further = this.further(axis, to, [start, end], powers);
      // Labels too long for their margin stand inside the panel, where the title of the axis is not in their way.
      const inside = way === "y" && further.some(([, label]) => label.length > longest);
      for (const [spot, label] of further) {
        if (shown.some((other) => Math.abs(other - spot) < room)) continue;
        const copy = pattern.node.cloneNode(true);
        for (const each of [copy, ...copy.querySelectorAll("[id]")]) each.removeAttribute("id");
        copy.style.display = "";
        const text = copy.querySelector("text");
        text.textContent = label;
        if (inside) this.moveInside(text, place);
        copy.setAttribute("transform", shift(spot - pattern.from));
        pattern.node.after(copy);
        this.extra.push({ panel: place, node: copy });
        shown.push(spot);
      }
    }

    moveInside(text, place) {
      const [x0, , x1] = this.facts.panels[place].box;
      const left = getComputedStyle(text).textAnchor === "end";
      text.classList.add("halo");
      text.style.textAnchor = left ? "start" : "end";
      text.setAttribute("x", left ? x0 + 3 : x1 - 3);
      text.removeAttribute("transform");
    }

    // Round numbers inside the view of an axis: [place in the SVG, label].
    further(axis, to, [start, end], powers) {
      const log = axis.scale === "log";
      const [low, high] = log ? axis.ends.map(Math.log10) : axis.ends;
      const full = (at) => start + ((at - low) * (end - start)) / (high - low);
      const back = (spot) => {
        const [a, b] = [to(start), to(end)];
        const at = low + (((spot - a) / (b - a)) * (high - low));
        return log ? 10 ** at : at;
      };
      const [first, last] = [back(start), back(end)].sort((a, b) => a - b);
      const raw = (last - first) / 5;
      const power = 10 ** Math.floor(Math.log10(raw));
      let step = power * [1, 2, 5, 10].find((each) => each * power >= raw * 0.999);
      if (axis.whole) step = Math.max(1, Math.round(step));
      const decimals = Math.max(0, Math.ceil(-Math.log10(step) - 1e-9));
      const found = [];
      for (let i = Math.ceil(first / step - 1e-9); i * step <= last * (1 + 1e-12) + 1e-12 && found.length < 20; i += 1) {
        const value = i * step;
        if (log && value <= 0) continue;
        const text = powers ? Number(value.toPrecision(3)).toExponential() : value.toFixed(decimals);
        found.push([to(full(log ? Math.log10(value) : value)), text.replace("e+", "e").replaceAll("-", "\u2212")]);
      }
      return found;
    }

    // -------------------------------------------------------------------------------------------- pointing

    spot(tip) {
      const [index, place, x, y] = tip;
      if (this.hidden.has(index)) return null;
      const { x: toX, y: toY } = this.map(place);
      const box = this.facts.panels[place].box;
      const at = [toX(x), toY(y)];
      return between(at[0], box[0], box[2], 1) && between(at[1], box[1], box[3], 1) ? at : null;
    }

    tell(number) {
      const tip = this.facts.tips[number];
      const at = tip && this.spot(tip);
      if (!at) return this.hideTip();
      this.at = number;
      this.tooltip.replaceChildren(make("b", {}, this.facts.series[tip[0]]), tip[4]);
      this.tooltip.classList.add("shown");
      this.ring.setAttribute("class", "ring");
      this.ring.setAttribute("cx", at[0]);
      this.ring.setAttribute("cy", at[1]);
      const scale = this.svg.clientWidth / this.facts.width;
      const [x, y] = [at[0] * scale, at[1] * scale];
      const [wide, high] = [this.tooltip.offsetWidth, this.tooltip.offsetHeight];
      const left = Math.min(Math.max(x - wide / 2, 0), Math.max(this.canvas.clientWidth - wide, 0));
      const top = y - high - 12 >= 0 ? y - high - 12 : Math.min(y + 14, Math.max(this.canvas.clientHeight - high, 0));
      this.tooltip.style.transform = `translate(${left}px, ${top}px)`;
    }

    hideTip() {
      this.at = -1;
      this.tooltip.classList.remove("shown");
      this.tooltip.replaceChildren();
      this.ring.setAttribute("class", "ring off");
    }

    where(event) {
      const box = this.svg.getBoundingClientRect();
      const scale = box.width / this.facts.width;
      return { x: (event.clientX - box.left) / scale, y: (event.clientY - box.top) / scale, scale };
    }

    nearest({ x, y, scale }) {
      let [found, least] = [-1, NEAR_PX / scale];
      this.facts.tips.forEach((tip, number) => {
        const at = this.spot(tip);
        const far = at ? Math.hypot(at[0] - x, at[1] - y) : Infinity;
        if (far < least) [found, least] = [number, far];
      });
      return found;
    }

    panelAt({ x, y }) {
      return this.facts.panels.findIndex(({ box }) => between(x, box[0], box[2]) && between(y, box[1], box[3]));
    }

    // By keyboard: along a series in x, and to the next series near the same x.
    step(key) {
      const seen = this.facts.tips.map((tip, number) => ({ number, series: tip[0], panel: tip[1], at: this.spot(tip) }))
        .filter((each) => each.at);
      if (seen.length === 0) return;
      const now = seen.find((each) => each.number === this.at);
      if (!now || key === "Home") return this.tell(seen[0].number);
      if (key === "End") return this.tell(seen[seen.length - 1].number);
      const order = (a, b) => a.panel - b.panel || a.at[0] - b.at[0] || a.number - b.number;
      if (key === "ArrowLeft" || key === "ArrowRight") {
        const own = seen.filter((each) => each.series === now.series).sort(order);
        const next = own[own.indexOf(now) + (key === "ArrowRight" ? 1 : -1)];
        if (next) this.tell(next.number);
        return;
      }
      const names = [...new Set(seen.map((each) => each.series))].sort((a, b) => a - b);
      const turn = names.indexOf(now.series) + (key === "ArrowDown" ? 1 : -1);
      const others = seen.filter((each) => each.series === names[(turn + names.length) % names.length]);
      const far = (each) => (each.panel === now.panel ? 0 : 1e6) + Math.abs(each.at[0] - now.at[0]);
      this.tell(others.reduce((best, each) => (far(each) < far(best) ? each : best)).number);
    }

    scaleBy(place, factor, x, y) {
      const [u0, v0, u1, v1] = this.views[place];
      const box = this.facts.panels[place].box;
      const [u, v] = [u0 + ((x - box[0]) / (box[2] - box[0])) * (u1 - u0), v0 + ((y - box[1]) / (box[3] - box[1])) * (v1 - v0)];
      this.show(place, [u + (u0 - u) * factor, v + (v0 - v) * factor, u + (u1 - u) * factor, v + (v1 - v) * factor]);
    }

    listen() {
      const { plot, svg } = this;
      plot.tabIndex = 0;
      plot.setAttribute("role", "group");
      plot.setAttribute("aria-label", `${this.title}: arrow keys walk along the points, plus and minus zoom, 0 resets`);
      let drag = null;
      svg.addEventListener("pointermove", (event) => {
        const at = this.where(event);
        if (drag) return this.dragTo(drag, at);
        const found = this.nearest(at);
        if (found !== this.at) this.tell(found);
        svg.classList.toggle("panel-area", this.panelAt(at) >= 0);
      });
      svg.addEventListener("pointerdown", (event) => {
        const at = this.where(event);
        const place = this.panelAt(at);
        this.tell(this.nearest(at));
        if (event.pointerType === "touch" || event.button !== 0 || place < 0) return;
        drag = { place, from: at, frame: null };
        svg.setPointerCapture(event.pointerId);
        event.preventDefault(); // no selection of text
      });
      const end = (event) => {
        if (!drag) return;
        const { place, from, frame } = drag;
        drag = null;
        frame?.remove();
        if (frame && event.type === "pointerup") this.zoomTo(place, from, this.where(event));
      };
      svg.addEventListener("pointerup", end);
      svg.addEventListener("pointercancel", end);
      svg.addEventListener("pointerleave", (event) => drag || event.pointerType === "touch" || this.hideTip()); // a finger is always leaving
      svg.addEventListener("dblclick", (event) => {
        const place = this.panelAt(this.where(event));
        if (place >= 0) this.show(place, [...this.facts.panels[place].box]);
      });
      svg.addEventListener("wheel", (event) => {
        if (!event.ctrlKey) return;
        const at = this.where(event);
        const place = this.panelAt(at);
        if (place < 0) return;
        event.preventDefault();
        this.scaleBy(place, Math.exp(Math.max(-1, Math.min(1, event.deltaY / 200))), at.x, at.y);
      }, { passive: false });
      plot.addEventListener("focus", () => plot.matches(":focus-visible") && this.step("Home"));
      plot.addEventListener("blur", () => this.hideTip());
      plot.addEventListener("keydown", (event) => this.press(event));
    }

    press(event) {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const { key } = event;
      if (["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Home", "End"].includes(key)) this.step(key);
      else if (key === "Escape") this.hideTip();
      else if (key === "0") this.facts.panels.forEach((panel, place) => this.show(place, [...panel.box]));
      else if (["+", "=", "-"].includes(key)) {
        const point = this.at;
        const place = point >= 0 ? this.facts.tips[point][1] : 0;
        if (!this.facts.panels[place]) return;
        const box = this.facts.panels[place].box;
        const at = point >= 0 ? this.spot(this.facts.tips[point]) : [(box[0] + box[2]) / 2, (box[1] + box[3]) / 2];
        this.scaleBy(place, key === "-" ? 1.6 : 1 / 1.6, at[0], at[1]);
        if (point >= 0) this.tell(point);
      } else return;
      event.preventDefault();
    }

    dragTo(drag, at) {
      if (!drag.frame) {
        if (Math.hypot(at.x - drag.from.x, at.y - drag.from.y) * at.scale < DRAG_PX) return;
        this.hideTip();
        drag.frame = document.createElementNS(NS, "rect");
        drag.frame.setAttribute("class", "frame");
        this.svg.append(drag.frame);
      }
      const [a, b] = this.corners(drag.place, drag.from, at);
      drag.frame.setAttribute("x", a.x);
      drag.frame.setAttribute("y", a.y);
      drag.frame.setAttribute("width", b.x - a.x);
      drag.frame.setAttribute("height", b.y - a.y);
    }

    // A box that is thin one way zooms the other way only: it then spans the whole panel.
    corners(place, from, to) {
      const [x0, y0, x1, y1] = this.facts.panels[place].box;
      const within = (value, low, high) => Math.min(Math.max(value, low), high);
      const side = (a, b, low, high) => {
        const ends = [within(a, low, high), within(b, low, high)].sort((p, q) => p - q);
        return (ends[1] - ends[0]) * to.scale < 2 * DRAG_PX ? [low, high] : ends;
      };
      const [xs, ys] = [side(from.x, to.x, x0, x1), side(from.y, to.y, y0, y1)];
      return [{ x: xs[0], y: ys[0] }, { x: xs[1], y: ys[1] }];
    }

    zoomTo(place, from, to) {
      const [a, b] = this.corners(place, from, to);
      const [x0, y0, x1, y1] = this.facts.panels[place].box;
      const [u0, v0, u1, v1] = this.views[place];
      const u = (x) => u0 + ((x - x0) / (x1 - x0)) * (u1 - u0);
      const v = (y) => v0 + ((y - y0) / (y1 - y0)) * (v1 - v0);
      this.show(place, [u(a.x), v(a.y), u(b.x), v(b.y)]);
    }
  }

  // ---------------------------------------------------------------------------------------------- the page

  function addTheme() {
    const button = make("button", { type: "button", class: "theme", "data-action": "theme" });
    const night = matchMedia("(prefers-color-scheme: dark)");
    const dark = () => (root.dataset.theme ?? (night.matches ? "dark" : "light")) === "dark";
    const say = () => { button.textContent = dark() ? "Light" : "Dark"; button.setAttribute("aria-label", `Use ${dark() ? "light" : "dark"} colours`); };
    button.addEventListener("click", () => {
      root.dataset.theme = dark() ? "light" : "dark";
      say();
    });
    night.addEventListener("change", say);
    say();
    document.querySelector("header").append(button);
  }

  function followSections() {
    const links = new Map([...document.querySelectorAll("nav a")].map((link) => [link.hash.slice(1), link]));
    const watch = new IntersectionObserver((changes) => {
      for (const change of changes) {
        if (!change.isIntersecting) continue;
        for (const [id, link] of links) {
          if (id === change.target.id) {
            link.setAttribute("aria-current", "true");
            const list = link.closest("ul");
            list.scrollLeft = link.offsetLeft - list.clientWidth / 2;
          } else link.removeAttribute("aria-current");
        }
      }
    }, { rootMargin: "-15% 0px -75% 0px" });
    for (const id of links.keys()) {
      const section = document.getElementById(id);
      if (section) watch.observe(section);
    }
  }

  root.classList.add("live-page");
  const plots = [];
  for (const figure of document.querySelectorAll("figure[data-figure]")) {
    const facts = figure.querySelector('script[type="application/json"]');
    if (facts) plots.push(new Plot(figure, JSON.parse(facts.textContent)));
  }
  addTheme();
  followSections();

  // On paper there is no zoom; what is folded stays folded.
  let views = [];
  addEventListener("beforeprint", () => {
    views = plots.map((plot) => plot.views.map((view) => [...view]));
    plots.forEach((plot) => plot.facts.panels.forEach((panel, place) => plot.show(place, [...panel.box])));
  });
  addEventListener("afterprint", () => {
    plots.forEach((plot, number) => views[number]?.forEach((view, place) => plot.show(place, view)));
    views = [];
  });
})();
