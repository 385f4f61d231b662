// The list of runs and the page of one run. Texts come from files of runs and are hostile: they become text nodes only.
(() => {
  "use strict";
  const home = document.getElementById("runs-live");
  const source = document.getElementById("runs-data");
  if (!home || !source) return;
  const data = JSON.parse(source.textContent);
  const count = data.names.length;
  const PAGE = 50;
  const SVG = "http://www.w3.org/2000/svg";
  const NOTHING = "\u2013";
  const text = (name, run) => data.texts[name].of[data.texts[name].at[run]];
  const value = (name, run) => (data.values[name] ? data.values[name][run] : null);

  function make(tag, attributes, ...children) {
    const element = document.createElement(tag);
    for (const [name, given] of Object.entries(attributes || {})) {
      if (name === "class") element.className = given;
      else if (given !== null && given !== undefined) element.setAttribute(name, given);
    }
    element.append(...children.filter((child) => child !== null && child !== undefined));
    return element;
  }

  function draw(tag, attributes, ...children) {
    const element = document.createElementNS(SVG, tag);
    for (const [name, given] of Object.entries(attributes)) element.setAttribute(name, given);
    element.append(...children);
    return element;
  }

  // 12345.6 as 12 345.6, with a true minus sign; what is not known is a dash.
  function figure(number) {
    if (number === null || number === undefined) return NOTHING;
    const size = Math.abs(number);
    if (size !== 0 && (size < 1e-3 || size >= 1e12)) {
      return number.toExponential().replace("e+", "e").replaceAll("-", "\u2212");
    }
    const [whole, part] = String(size).split(".");
    const apart = whole.length > 4 ? whole.replace(/\B(?=(\d{3})+$)/g, "\u202f") : whole;
    return (number < 0 ? "\u2212" : "") + apart + (part ? "." + part : "");
  }

  const withUnit = (number, unit) => (number === null || number === undefined ? NOTHING : figure(number) + (unit ? "\u202f" + unit : ""));
  const workers = (run) => (data.workers[run] === null ? "?" : data.nodes[run] > 1 ? `${figure(data.workers[run])} on ${figure(data.nodes[run])} nodes` : figure(data.workers[run]));
  const moment = (told) => told.replace("T", " ").replace(/\.\d+(?=[+Z-]|$)/, "").replace(/(\+00:00|Z)$/, " UTC");
  const fixed = (number, digits) => (number === null || Math.abs(number) >= 1000 ? figure(number) : number.toFixed(digits));

  // ------------------------------------------------------------------------------------------------ the list
  const COLUMNS = [
    { title: "Run", key: (run) => data.names[run], cell: (run) => link(run) },
    { title: "Series", key: (run) => run, cell: (run) => [text("series", run), make("small", {}, text("setting", run))] },
    { title: "Workers", number: true, key: (run) => data.workers[run], cell: (run) => [workers(run)] },
    { title: "Repeat", number: true, key: (run) => data.repeat[run], cell: (run) => [figure(data.repeat[run])] },
    { title: "Status", key: (run) => text("status", run), cell: (run) => [make("span", { class: text("status", run) === "done" ? "" : "missing" }, text("status", run))] },
    { title: "samples/s", number: true, key: (run) => value("samples_per_s", run), cell: (run) => [figure(value("samples_per_s", run))] },
    { title: "Speedup", number: true, key: (run) => value("speedup_plain", run), cell: (run) => [fixed(value("speedup_plain", run), 2)] },
    { title: "Step, ms", number: true, key: (run) => value("step_s", run), cell: (run) => [fixed(value("step_s", run), 2)] },
    { title: "Started", still: true, key: (run) => text("started", run), cell: (run) => [text("started", run).replace("T", " ").slice(0, 16)] },
  ];
  const haystack = data.names.map((name, run) =>
    [name, text("series", run), text("setting", run), text("partition", run), text("status", run), text("reason", run), text("hosts", run)].join("\n").toLowerCase());
  const state = { sort: 1, falling: false, shown: PAGE, order: [], open: -1 };

  function link(run) {
    return [make("a", { href: "#run=" + encodeURIComponent(data.names[run]), "data-run": run }, data.names[run])];
  }

  function choice(title, name, all) {
    const select = make("select", { id: "runs-" + name }, make("option", { value: "" }, all));
    const texts = data.texts[name].of;
    texts.forEach((each, place) => select.append(make("option", { value: place }, each || "(none)")));
    return [make("label", {}, title, select), select];
  }

  const search = make("input", { type: "search", id: "runs-search", autocomplete: "off", spellcheck: "false" });
  const [seriesLabel, seriesChoice] = choice("Series", "series", "all series");
  const [statusLabel, statusChoice] = choice("Status", "status", "any status");
  const counts = [...new Set(data.workers)].filter((each) => each !== null).sort((a, b) => a - b);
  const workersChoice = make("select", { id: "runs-workers" }, make("option", { value: "" }, "any number"), ...counts.map((each) => make("option", { value: each }, figure(each))));
  const asked = make("div", { class: "runs-asked", role: "search", "aria-label": "Runs" },
    make("label", { class: "wide-field" }, "Name, host, reason ...", search), seriesLabel,
    make("label", {}, "Workers", workersChoice), statusLabel);
  const head = COLUMNS.map((column, place) => {
    const button = make("button", { type: "button" }, column.title);
    button.addEventListener("click", () => {
      state.falling = state.sort === place ? !state.falling : false;
      state.sort = place;
      state.shown = PAGE;
      list();
    });
    return make("th", { scope: "col", class: column.number ? "n" : null }, button);
  });
  const body = make("tbody");
  const status = make("p", { class: "note", role: "status" });
  const more = make("button", { type: "button" });
  more.addEventListener("click", () => {
    const first = state.shown;
    state.shown += 2 * PAGE;
    list(first);
    body.rows[first]?.querySelector("a").focus();
  });
  const region = make("div", { class: "scroll runs-list", role: "region", "aria-label": "List of runs", tabindex: "0" },
    make("table", { class: "flat broad", "aria-label": "Runs" }, make("thead", {}, make("tr", {}, ...head)), body));
  const place = make("div", { id: "run-place" });
  home.append(place, asked, region, make("div", { class: "runs-more" }, status, more));

  function ordered() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const chosen = [];
    for (let run = 0; run < count; run++) {
      if (seriesChoice.value !== "" && data.texts.series.at[run] !== Number(seriesChoice.value)) continue;
      if (statusChoice.value !== "" && data.texts.status.at[run] !== Number(statusChoice.value)) continue;
      if (workersChoice.value !== "" && data.workers[run] !== Number(workersChoice.value)) continue;
      if (words.every((word) => haystack[run].includes(word))) chosen.push(run);
    }
    const key = COLUMNS[state.sort].key;
    const way = state.falling ? -1 : 1;
    return chosen.sort((a, b) => {
      const [x, y] = [key(a), key(b)];
      if (x === y) return a - b;
      if (x === null || x === undefined) return 1; // what is not known stands last, both ways
      if (y === null || y === undefined) return -1;
      return (x < y ? -1 : 1) * way;
    });
  }

  function row(run) {
    const cells = COLUMNS.map((column, number) =>
      number === 0 ? make("th", { scope: "row" }, ...column.cell(run)) : make("td", { class: column.number ? "n" : column.still ? "still" : null }, ...column.cell(run)));
    return make("tr", { class: run === state.open ? "open" : null }, ...cells);
  }

  function list(from = 0) {
    if (!from) {
      state.order = ordered();
      body.replaceChildren();
    }
    body.append(...state.order.slice(from, state.shown).map(row));
    head.forEach((cell, number) => {
      if (number === state.sort) cell.setAttribute("aria-sort", state.falling ? "descending" : "ascending");
      else cell.removeAttribute("aria-sort");
    });
    const found = state.order.length;
    const shown = Math.min(state.shown, found);
    status.textContent = found ? `${shown < found ? `The first ${figure(shown)} of ${figure(found)}` : figure(found)} ${found === 1 ? "run" : "runs"}${found < count ? ` of ${figure(count)} in all` : ""}.` : "No run is like that.";
    more.hidden = shown >= found;
    more.textContent = `Show ${figure(Math.min(2 * PAGE, found - shown))} more`;
  }

  for (const field of [search, seriesChoice, statusChoice, workersChoice]) {
    field.addEventListener("input", () => {
      state.shown = PAGE;
      list();
    });
  }

  // ------------------------------------------------------------------------------------------------ the page of a run
  function facts(run) {
    const told = [
      ["Status", text("status", run) + (text("reason", run) ? ": " + text("reason", run) : "")],
      ["Cell", `${text("series", run)}, ${text("setting", run)}, ${data.workers[run] === 1 ? "1 worker" : workers(run) + (data.nodes[run] > 1 ? "" : " workers")}`],
      ["Repeat", figure(data.repeat[run])],
      ["Study, partition", [text("study", run), text("partition", run)].filter(Boolean).join(", ")],
      ["Hosts", text("hosts", run)],
      ["Time", [text("started", run), text("finished", run)].filter(Boolean).map(moment).join(" to ")],
      ["Launched by", text("launcher", run)],
      ["Left out of the window", text("excluded_by", run)],
      ["Energy of", text("energy_of", run)],
      ["No account of its steps", text("why_not", run)],
    ];
    const found = make("dl", { class: "run-facts" });
    for (const [name, words] of told) if (words) found.append(make("dt", {}, name), make("dd", {}, words));
    return found;
  }

  function numbers(run) {
    const found = make("div", { class: "run-numbers" });
    for (const [title, fields] of data.groups) {
      const rows = fields.filter(([name]) => value(name, run) !== null).map(([name, words, unit, meaning]) =>
        make("div", {}, make("dt", {}, words), make("dd", { class: "n" }, withUnit(value(name, run), unit)), make("dd", { class: "meaning" }, meaning)));
      if (rows.length) found.append(make("div", {}, make("h4", {}, title), make("dl", {}, ...rows)));
    }
    return found;
  }

  function laps(run) {
    const parts = data.laps.map(([title, color, ms], lap) => ({ title, color, ms: ms[run], open: lap === data.laps.length - 1 }));
    const known = parts.filter((part) => part.ms !== null && part.ms > 0);
    const whole = known.reduce((sum, part) => sum + part.ms, 0);
    if (!whole) return null;
    const swatch = (tag, part) => {
      const element = make(tag, { class: part.open ? "open-part" : null });
      element.style.background = part.color;
      return element;
    };
    const bar = make("div", { class: "run-bar", role: "img", "aria-label": "Parts of the mean step: " + known.map((part) => `${part.title} ${figure(part.ms)} ms`).join(", ") });
    for (const part of known) {
      const piece = swatch("span", part);
      piece.style.flex = `${part.ms} 0 0`;
      bar.append(piece);
    }
    const legend = make("ul", { class: "run-laps" }, ...parts.map((part) =>
      make("li", {}, swatch("i", part), `${part.title} `, part.ms === null ? "not known" : make("strong", {}, `${figure(part.ms)}\u202fms`), part.ms === null ? "" : ` (${figure(Number((100 * part.ms / whole).toPrecision(3)))}\u202f%)`)));
    return make("div", {}, make("h4", {}, "Inside the mean step"), bar, legend);
  }

  function course(run) {
    const own = data.profiles.runs[run];
    const found = make("div", {}, make("h4", {}, "Over the timed window"));
    if (!own) {
      found.append(make("p", { class: "note" }, "No step of the window is recorded with a time."));
      return found;
    }
    const parts = Array.isArray(own.first_step) ? own.first_step.length : 1;
    const of = (name) => (own[name] === undefined ? null : Array.isArray(own[name]) ? own[name] : Array(parts).fill(own[name]));
    const begins = of("begin_s");
    if (!begins || begins.some((each) => each === null)) {
      found.append(make("p", { class: "note" }, "When its steps were made is not recorded."));
      return found;
    }
    const edges = [...begins, own.end_s ?? begins[parts - 1]];
    const plots = make("div", { class: "run-lines" });
    const there = data.lines.filter(([columns]) => of(columns[0]));
    for (const [columns, title, unit, color] of there) plots.append(plot(edges, columns.map(of).filter(Boolean), title, unit, color));
    found.append(plots);
    if (data.profiles.every > 1) found.append(make("p", { class: "note" }, `One part in ${data.profiles.every} is shown; run_profiles.csv has all.`));
    if (!there.some(([columns]) => !/^(step|sync)_s/.test(columns[0]))) found.append(make("p", { class: "note" }, "The run has no samples of its machine (processor, memory, GPUs, power) in the window."));
    const details = make("details", {}, make("summary", {}, "The numbers behind these lines"));
    details.addEventListener("toggle", () => {
      if (!details.open || details.querySelector("table")) return;
      const shown = there.flatMap(([columns, title, unit]) => columns.map((name, place) => [of(name), (place ? "90 % of steps within" : title.split(":")[0]) + `, ${unit}`]).filter(([values]) => values));
      const steps = of("first_step");
      details.append(make("div", { class: "scroll", role: "region", "aria-label": "Course of the run in numbers", tabindex: "0" },
        make("table", { class: "flat" }, make("thead", {}, make("tr", {}, ...["From step", "At, s", ...shown.map(([, name]) => name)].map((name) => make("th", { scope: "col", class: "n" }, name)))),
          make("tbody", {}, ...begins.map((at, part) => make("tr", {}, make("th", { scope: "row", class: "n" }, figure(steps[part])), make("td", { class: "n" }, figure(at)), ...shown.map(([values]) => make("td", { class: "n" }, figure(values[part])))))))));
    });
    found.append(details);
    return found;
  }

  function plot(edges, lines, title, unit, color) {
    const [width, height, left, bottom, top] = [330, 104, 44, 17, 6];
    const all = lines.flat().filter((each) => each !== null);
    const [low, high] = [Math.min(...all), Math.max(...all)];
    const [first, last] = [edges[0], edges[edges.length - 1]];
    const ceiling = nice(high || 1);
    const x = (at) => left + (width - left - 2) * (last > first ? (at - first) / (last - first) : 0);
    const y = (each) => height - bottom - (height - bottom - top) * (each / ceiling);
    const line = lines[0];
    const words = low === high ? `${figure(low)} ${unit} throughout` : `between ${figure(Math.min(...line.filter((each) => each !== null)))} and ${figure(Math.max(...line.filter((each) => each !== null)))} ${unit}`;
    const art = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${title}: ${words}` });
    for (const each of [0, ceiling / 2, ceiling]) {
      art.append(draw("line", { class: "axis", x1: left, x2: width - 2, y1: y(each), y2: y(each) }),
        draw("text", { x: left - 5, y: y(each) + 3.5, "text-anchor": "end" }, figure(each)));
    }
    art.append(draw("text", { x: left, y: height - 3 }, `${figure(first)} s`), draw("text", { x: width - 2, y: height - 3, "text-anchor": "end" }, `${figure(last)} s`));
    if (lines.length > 1) {
      for (const [from, after] of stretches(line)) {
        const band = `${stairs(line, edges, from, after, x, y)}${stairs(lines[1], edges, from, after, x, y, true)}Z`;
        const element = draw("path", { class: "band", d: band });
        element.style.fill = `var(${color})`;
        art.append(element);
      }
    }
    for (const [from, after] of stretches(line)) {
      const element = draw("path", { class: "course", d: stairs(line, edges, from, after, x, y) });
      element.style.stroke = `var(${color})`;
      art.append(element);
    }
    return make("figure", {}, make("figcaption", {}, `${title}, ${unit}`), art);
  }

  function nice(high) {
    const power = 10 ** Math.floor(Math.log10(high));
    return Number(([1, 1.2, 1.6, 2, 2.4, 3, 4, 5, 6, 8, 10].find((each) => each * power >= high * (1 - 1e-9)) * power).toPrecision(3));
  }

  function stretches(values) {
    const found = [];
    values.forEach((each, place) => {
      if (each === null) return;
      if (place && values[place - 1] !== null) found[found.length - 1][1] = place + 1;
      else found.push([place, place + 1]);
    });
    return found;
  }

  function stairs(values, edges, from, after, x, y, back = false) {
    const points = [];
    for (let place = from; place < after; place++) points.push([x(edges[place]), y(values[place] ?? 0)], [x(edges[place + 1]), y(values[place] ?? 0)]);
    if (back) points.reverse();
    return points.map(([a, b], place) => `${place || back ? "L" : "M"}${a.toFixed(1)} ${b.toFixed(1)}`).join("");
  }

  function doubts(run) {
    const named = data.doubts.of.filter((_, place) => data.doubts.at[place].includes(run));
    return make("div", {}, make("h4", {}, "Doubts that name this run"),
      named.length ? make("ul", { class: "doubts" }, ...named.map((words) => make("li", {}, words))) : make("p", { class: "note" }, "None."));
  }

  function ranks(run) {
    const [of, rows] = data.ranks[run] || [0, []];
    if (!of) return null;
    const names = ["Rank", "Steps", "Step, ms", ...data.laps.map(([title]) => title + ", ms")];
    return make("details", {}, make("summary", {}, `Mean step of ${of === 1 ? "its rank" : `its ${figure(of)} ranks`}`),
      make("div", { class: "scroll", role: "region", "aria-label": "Mean step of each rank", tabindex: "0" },
        make("table", { class: "flat broad" }, make("thead", {}, make("tr", {}, ...names.map((name) => make("th", { scope: "col", class: "n" }, name)))),
          make("tbody", {}, ...rows.map(([rank, ...others]) => make("tr", {}, make("th", { scope: "row", class: "n" }, figure(rank)), ...others.map((each) => make("td", { class: "n" }, figure(each)))))))),
      rows.length < of ? make("p", { class: "note" }, `The first ${figure(rows.length)} of ${figure(of)}; accounting.csv has all.`) : null);
  }

  function open(run, focus = true) {
    state.open = run;
    const heading = make("h3", { id: "run-heading", tabindex: "-1" }, data.names[run]);
    const at = state.order.indexOf(run);
    const step = (words, to) => {
      const button = make("button", { type: "button" }, words);
      if (at < 0 || state.order[to] === undefined) button.disabled = true;
      else button.addEventListener("click", () => go(state.order[to]));
      return button;
    };
    const close = make("button", { type: "button" }, "Close");
    close.addEventListener("click", shut);
    const command = data.commands[run].replaceAll("\u0001", data.names[run]);
    const page = make("article", { class: "run-page", id: "run-page", "aria-labelledby": "run-heading" }, heading,
      make("div", { class: "run-tools" }, step("Run before", at - 1), step("Next run", at + 1), close),
      facts(run),
      doubts(run),
      laps(run), course(run), make("h4", {}, "Numbers"), numbers(run), ranks(run),
      command ? make("h4", {}, data.workers[run] === 1 ? "Its command" : "The command of each of its workers, under the launcher") : null,
      command ? make("pre", { tabindex: "0" }, make("code", {}, command)) : null);
    page.addEventListener("keydown", (event) => {
      if (event.key === "Escape") shut();
    });
    place.replaceChildren(page);
    mark();
    if (focus) {
      page.scrollIntoView({ block: "start" });
      heading.focus({ preventScroll: true });
    }
  }

  const mark = () => [...body.rows].forEach((each) => each.classList.toggle("open", Number(each.querySelector("a").dataset.run) === state.open));

  function go(run) {
    location.hash = "run=" + encodeURIComponent(data.names[run]);
  }

  function shut() {
    const run = state.open;
    state.open = -1;
    place.replaceChildren();
    mark();
    history.replaceState(null, "", "#runs");
    const back = body.querySelector(`a[data-run="${run}"]`);
    if (back) back.focus();
    else search.focus();
  }

  function look() {
    const wanted = location.hash.startsWith("#run=") ? location.hash.slice(5) : null;
    if (wanted === null) {
      if (state.open >= 0 && location.hash !== "") {
        state.open = -1;
        place.replaceChildren();
        mark();
      }
      return;
    }
    let name = wanted;
    try {
      name = decodeURIComponent(wanted);
    } catch { /* what is no encoding is a name as it is */ }
    const run = data.names.indexOf(name);
    if (run >= 0) open(run);
    else place.replaceChildren(make("p", { class: "alert", role: "status" }, `There is no run called ${name} in this report.`));
  }

  document.querySelector(".runs-plain")?.remove();
  list();
  look();
  addEventListener("hashchange", look);
})();
