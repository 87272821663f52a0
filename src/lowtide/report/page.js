"use strict";
/* Hover, sort, open: all that moves on a report. The numbers are in the JSON beside it, the pictures in the page. */
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const all = (query, within = document) => [...within.querySelectorAll(query)];
  const make = (tag, text, name) => {
    const found = document.createElement(tag);
    if (text !== undefined) found.textContent = text;
    if (name) found.className = name;
    return found;
  };

  const three = (n) => n.toFixed(n < 9.995 ? 2 : n < 99.95 ? 1 : 0);
  const bytes = (n) => {
    if (n < 1024) return `${n} B`;
    for (const unit of ["KiB", "MiB", "GiB"]) {
      n /= 1024;
      if (n < 1023.5) return `${three(n)} ${unit}`;
    }
    return `${three(n / 1024)} TiB`;
  };
  const seconds = (s) =>
    s < 0.9995e-3 ? `${(s * 1e6).toFixed(0)} us` : s < 0.99995 ? `${(s * 1e3).toFixed(1)} ms` : `${s.toFixed(2)} s`;

  /* Which step is shown: the others are hidden, in the picture and in the tables. */
  let shown = 0;
  const show = (index) => {
    shown = index;
    all("[data-step]").forEach((part) => part.toggleAttribute("hidden", Number(part.dataset.step) !== index));
    all("[data-not-step]").forEach((part) => part.toggleAttribute("hidden", Number(part.dataset.notStep) === index));
    all("[data-show]").forEach((button) => button.setAttribute("aria-pressed", Number(button.dataset.show) === index));
    if (pinned === null) rest();
    else read(pinned);
  };
  all("[data-show]").forEach((button) => button.addEventListener("click", () => show(Number(button.dataset.show))));

  /* The timeline: what lives at the moment under the pointer. */
  const plot = document.getElementById("plot");
  const cursor = document.getElementById("cursor");
  const readout = document.getElementById("readout");
  let pinned = null;
  let column = 0;
  const instantAt = (step, at) => {
    let low = 0;
    let high = step.at.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (step.at[middle] <= at) low = middle;
      else high = middle - 1;
    }
    return low;
  };
  const phaseAt = (step, moment) => step.phases.filter(([, start]) => start <= moment).pop()?.[0] ?? "";
  const moment = (step, t) => (step.timed ? seconds(t) : `op ${Math.floor(t) + 1}`);
  const row = (words, size, kind) => {
    const line = make("tr", undefined, kind === undefined ? "" : "kind");
    const name = make("td");
    if (kind !== undefined) {
      const dot = make("i", "", "dot");
      dot.style.setProperty("--k", data.colours[kind]);
      name.append(dot);
    }
    name.append(words);
    line.append(name, make("td", bytes(size)));
    return line;
  };
  /* Kinds, the largest first, each with its largest layers. */
  const rows = (step, sums, held) => {
    const found = [];
    const order = step.kinds.map((kind, i) => [kind, sums[i]]).filter(([, size]) => size > 0);
    order.sort(([, a], [, b]) => b - a);
    for (const [kind, size] of order) {
      found.push(row(data.kinds[kind], size, kind));
      for (let i = 0; i < held.length; i += 3) {
        if (held[i + 1] === kind) found.push(row(data.layers[held[i]] || "(the model itself)", held[i + 2]));
      }
    }
    return found;
  };
  const read = (at) => {
    const step = data.steps[shown];
    if (!step || !step.at.length) return;
    column = Math.max(0, Math.min(at, step.columns - 1));
    const index = instantAt(step, column);
    const [t, total, op, sums, held] = step.instants[index];
    cursor.hidden = false;
    cursor.style.left = `${(100 * (column + 0.5)) / data.columns}%`;
    const head = make("p", `${bytes(total)} `, "big");
    head.append(make("span", `${index === step.top ? "at the peak, " : ""}${moment(step, t)}, ${phaseAt(step, t)}`, "quiet"));
    const table = make("table");
    table.append(...rows(step, sums, held));
    readout.replaceChildren(head);
    if (op >= 0) {
      const [target, layer, source] = data.ops[op];
      const doing = make("p", "runs ", "quiet");
      doing.append(make("code", target));
      if (layer) doing.append(" of ", make("code", layer));
      if (source) doing.append(`, ${source}`);
      readout.append(doing);
    }
    const other = data.steps[1 - shown];
    if (other) {
      const there = column < other.columns ? bytes(other.instants[instantAt(other, column)][1]) : "it has ended";
      readout.append(make("p", `${other.name} at this time: ${there}`, "quiet"));
    }
    readout.append(table);
  };
  const rest = () => {
    const step = data.steps[shown];
    if (!step || !step.at.length) return;
    read(step.at[step.top]);
    cursor.hidden = true;
  };
  if (plot) {
    const where = (event) => {
      const box = plot.getBoundingClientRect();
      return Math.floor((data.columns * (event.clientX - box.left)) / box.width);
    };
    plot.addEventListener("pointermove", (event) => pinned === null && read(where(event)));
    plot.addEventListener("pointerleave", () => (pinned === null ? rest() : read(pinned)));
    plot.addEventListener("click", (event) => {
      pinned = pinned === null || event.pointerType === "touch" ? where(event) : null;
      read(where(event));
    });
    plot.addEventListener("keydown", (event) => {
      const step = data.steps[shown];
      const far = event.shiftKey ? 25 : 1;
      const index = instantAt(step, column);
      const to = {
        ArrowLeft: () => step.at[Math.max(0, index - far)],
        ArrowRight: () => step.at[Math.min(step.at.length - 1, index + far)],
        Home: () => 0,
        End: () => step.columns - 1,
        p: () => step.at[step.top],
      }[event.key];
      if (event.key === "Escape") {
        pinned = null;
        rest();
      } else if (to) {
        event.preventDefault();
        pinned = to();
        read(pinned);
      }
    });
  }

  /* Tables: a click on a heading sorts, a click on a row opens it. Rows that were opened travel with theirs. */
  const value = (line, place) => {
    const cell = line.cells[place];
    return place ? Number(cell?.dataset.v ?? 0) : cell.textContent;
  };
  all("table.sorts").forEach((table) => {
    const body = table.tBodies[0];
    const heads = all("th[data-sort]", table);
    const sort = (head) => {
      const place = head.cellIndex;
      const down = head.getAttribute("aria-sort") ? head.getAttribute("aria-sort") !== "descending" : head.dataset.sort !== "up";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const groups = [];
      [...body.rows].forEach((line) => (line.classList.contains("inner") ? groups[groups.length - 1].push(line) : groups.push([line])));
      groups.sort(([a], [b]) => {
        const [x, y] = [value(a, place), value(b, place)];
        return (down ? -1 : 1) * (typeof x === "number" ? x - y : x.localeCompare(y, undefined, { numeric: true }));
      });
      body.append(...groups.flat());
      limit(table);
    };
    heads.forEach((head) => {
      head.tabIndex = 0;
      head.addEventListener("click", () => sort(head));
      head.addEventListener("keydown", (event) => {
        if (event.key === "Enter" || event.key === " ") {
          event.preventDefault();
          sort(head);
        }
      });
    });
  });
  const inner = (line) => {
    const found = [];
    for (let next = line.nextElementSibling; next?.classList.contains("inner"); next = next.nextElementSibling) found.push(next);
    return found;
  };
  const open = (button, yes) => {
    button.setAttribute("aria-expanded", yes);
    inner(button.closest("tr")).forEach((line) => (line.hidden = !yes));
  };
  all(".open").forEach((button) =>
    button.addEventListener("click", () => open(button, button.getAttribute("aria-expanded") !== "true")),
  );
  /* Long tables show their first rows until asked for all. */
  const limit = (table) => {
    const most = table.dataset.all ? Infinity : Number(table.dataset.most);
    if (!most) return;
    const lines = all("tbody > tr:not(.inner)", table);
    lines.forEach((line, i) => {
      line.hidden = i >= most;
      const opened = line.querySelector(".open")?.getAttribute("aria-expanded") === "true";
      inner(line).forEach((other) => (other.hidden = i >= most || !opened));
    });
  };
  all("[data-all-of]").forEach((button) => {
    const table = document.getElementById(button.dataset.allOf);
    button.addEventListener("click", () => {
      table.dataset.all = "yes";
      limit(table);
      button.remove();
    });
  });
  all("table[data-most]").forEach(limit);

  /* The frontier: a point says what it is and lights its line in the table. */
  const light = (name, words) => {
    all("[data-line]").forEach((line) => line.classList.toggle("lit", line.dataset.line === name));
    document.getElementById("told").textContent = words;
  };
  all("[data-spot]").forEach((spot) => {
    const on = () => light(spot.dataset.spot, spot.title);
    ["pointerenter", "focus", "click"].forEach((event) => spot.addEventListener(event, on));
    ["pointerleave", "blur"].forEach((event) => spot.addEventListener(event, () => light("", "")));
  });

  show(0);
})();
