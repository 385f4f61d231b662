// What report.html adds where scripts run: it says everything without. Texts only become textContent or attributes.
(() => {
  "use strict";
  const root = document.documentElement;

  function make(tag, attributes = {}, text = "") {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.textContent = text;
    return made;
  }

  function save(name, type, text) {
    const address = URL.createObjectURL(new Blob([text], { type }));
    make("a", { href: address, download: name }).click();
    setTimeout(() => URL.revokeObjectURL(address), 10000);
  }

  // A mouse is shown the title of a spot by the browser; whoever has none walks along the spots, or taps near one.
  function addTips(plot, svg, title) {
    let [spots, at] = [[], -1];
    const find = () => (spots = [...svg.querySelectorAll(".spot:not(.gone)")]).length; // nothing is told of a hidden series
    const tip = make("div", { class: "tooltip", role: "status" });
    svg.parentElement.append(tip);
    const hide = () => { tip.classList.remove("shown"); tip.textContent = ""; svg.querySelector(".here")?.classList.remove("here"); at = -1; };
    const tell = (next) => {
      hide();
      at = Math.min(Math.max(next, 0), spots.length - 1);
      const [box, from] = [spots[at].getBoundingClientRect(), svg.getBoundingClientRect()];
      spots[at].classList.add("here");
      tip.textContent = spots[at].querySelector("title").textContent;
      tip.classList.add("shown");
      const [x, y] = [box.x - from.x + box.width / 2 - tip.offsetWidth / 2, box.y - from.y - tip.offsetHeight - 4];
      tip.style.transform = `translate(${Math.min(Math.max(x, 0), Math.max(from.width - tip.offsetWidth, 0))}px, ${Math.max(y, 0)}px)`;
    };
    const steps = { ArrowRight: () => at + 1, ArrowLeft: () => at - 1, Home: () => 0, End: () => spots.length };
    for (const [name, value] of [["tabindex", "0"], ["role", "group"], ["aria-label", `${title}: arrow keys walk along the points`]]) plot.setAttribute(name, value);
    plot.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || find() === 0) return;
      if (event.key === "Escape") hide();
      else if (steps[event.key]) tell(steps[event.key]());
      else return;
      event.preventDefault();
    });
    plot.addEventListener("blur", hide);
    svg.addEventListener("pointerdown", (event) => {
      if (event.pointerType !== "touch" || find() === 0) return;
      let [near, least] = [-1, 40];
      spots.forEach((spot, place) => {
        const box = spot.getBoundingClientRect();
        const far = Math.hypot(box.x + box.width / 2 - event.clientX, box.y + box.height / 2 - event.clientY);
        if (far < least) [near, least] = [place, far];
      });
      (near < 0 ? hide : tell)(near);
    });
  }

  // An entry of the legend hides its series, and shows it again.
  function addToggles(svg) {
    for (const text of svg.querySelectorAll("[data-legend] text")) {
      const parts = svg.querySelectorAll(`[data-series="${text.parentElement.dataset.legend}"]`);
      const turn = (event) => {
        if (![undefined, "Enter", " "].includes(event.key)) return;
        event.preventDefault(); // the space bar would scroll, too
        const hidden = text.ariaPressed === "true";
        text.ariaPressed = `${!hidden}`;
        for (const part of parts) part.classList.toggle("gone", hidden);
      };
      for (const [name, value] of [["role", "button"], ["tabindex", "0"], ["aria-pressed", "true"]]) text.setAttribute(name, value);
      for (const kind of ["click", "keydown"]) text.addEventListener(kind, turn);
      svg.setAttribute("role", "group"); // a picture could hold nothing to press
    }
  }

  // The drawing as a file: in light colours, which are those of paper.
  function standalone(svg) {
    const before = root.dataset.theme;
    root.dataset.theme = "light";
    const look = getComputedStyle(root);
    const text = new XMLSerializer().serializeToString(svg)
      .replace(/var\((--[\w-]+)\)/g, (all, name) => look.getPropertyValue(name).trim().replaceAll('"', "'") || all);
    if (before === undefined) delete root.dataset.theme;
    else root.dataset.theme = before;
    return `<?xml version="1.0" encoding="utf-8"?>\n${text}\n`;
  }

  function addTools(figure, plot, svg, title) {
    const tools = make("div", { class: "tools", role: "group", "aria-label": `${title}: files` });
    const [name, data] = [figure.dataset.figure, figure.querySelector('script[type="application/json"]')];
    const add = (kind, type, text) => {
      const button = make("button", { type: "button", "data-action": kind, "aria-label": `${kind.toUpperCase()} of ${title}` }, kind.toUpperCase());
      button.addEventListener("click", () => save(`${name}.${kind}`, type, text()));
      tools.append(button);
    };
    add("svg", "image/svg+xml", () => standalone(svg));
    if (data) add("csv", "text/csv;charset=utf-8", () => JSON.parse(data.textContent));
    else tools.append(make("a", { class: "button", "data-action": "csv", href: `figures/${name}.csv`, download: "", "aria-label": `CSV of ${title}` }, "CSV"));
    plot.after(tools);
  }

  function addTheme() {
    const button = make("button", { type: "button", class: "theme", "data-action": "theme" });
    const night = matchMedia("(prefers-color-scheme: dark)");
    const dark = () => (root.dataset.theme ?? (night.matches ? "dark" : "light")) === "dark";
    const say = () => { button.textContent = dark() ? "Light" : "Dark"; button.setAttribute("aria-label", `Use ${dark() ? "light" : "dark"} colours`); };
    button.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; say(); });
    night.addEventListener("change", say);
    say(); document.querySelector("header").append(button);
  }

  root.classList.add("live-page");
  for (const figure of document.querySelectorAll("figure[data-figure]")) {
    const [plot, svg] = [figure.querySelector(".plot"), figure.querySelector(".canvas > svg")];
    const title = figure.querySelector("h3").textContent;
    addTips(plot, svg, title);
    addToggles(svg);
    addTools(figure, plot, svg, title);
  }
  addTheme();
})();
