"use strict";
// Tables that sort and filter, lists of which only the rows in sight are drawn, and files of what is shown.

document.documentElement.classList.add("js");

const ROW = 30; // pixels, as in the style sheet
const MARGIN = 12; // rows drawn above and below those in sight

// "★ 1,234 ± 5" -> 1234; no number at the beginning -> NaN
const numberOf = (text) => {
  const found = /^[^\d.+-]{0,3}\s*([+-]?[\d,]*\.?\d+(?:e[+-]?\d+)?)/i.exec(text);
  return found ? Number(found[1].replaceAll(",", "")) : NaN;
};

// Numbers by size, then words; what is unknown comes last in both directions.
const compare = (a, b, down) => {
  const none = (value) => value === null || value === "";
  if (none(a) || none(b)) return none(a) - none(b);
  if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
  const order = typeof a === "number" ? a - b : a.localeCompare(b, "en", { numeric: true });
  return down ? -order : order;
};

// A filter: every word of it somewhere in the row; name=value in that column, exactly.
const matcher = (text, columns) => {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const tests = words.map((word) => {
    const at = word.indexOf("=");
    const place = at > 0 ? columns.findIndex((name) => name.toLowerCase().startsWith(word.slice(0, at))) : -1;
    if (place < 0) return (cells) => cells.join("\u0001").includes(word);
    const wanted = word.slice(at + 1);
    return (cells) => cells[place] === wanted || cells[place].startsWith(wanted + " ");
  });
  return (cells) => tests.every((test) => test(cells));
};

const save = (name, text, kind) => {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: kind }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
};

const csv = (rows) =>
  rows.map((row) => row.map((value) => {
    const text = value === null ? "" : String(value);
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  }).join(",")).join("\n") + "\n";

const turn = (headers, place) => {
  const down = headers[place].getAttribute("aria-sort") === "ascending";
  headers.forEach((header) => header.removeAttribute("aria-sort"));
  headers[place].setAttribute("aria-sort", down ? "descending" : "ascending");
  return down;
};

const counted = (shown, all) => (shown === all ? `${all.toLocaleString("en")} rows` : `${shown.toLocaleString("en")} of ${all.toLocaleString("en")} rows`);

// A table whose rows are all there.
const sortable = (grid) => {
  const headers = [...grid.querySelectorAll("thead th")];
  const body = grid.querySelector("tbody");
  const rows = [...body.rows];
  const texts = rows.map((row) => [...row.cells].map((cell) => cell.textContent.trim()));
  const lower = texts.map((cells) => cells.map((text) => text.toLowerCase()));
  const numbers = headers.map((_, place) => texts.filter((cells) => !Number.isNaN(numberOf(cells[place] ?? ""))).length * 2 > texts.length);
  headers.forEach((header, place) => header.firstElementChild.addEventListener("click", () => {
    const down = turn(headers, place);
    const key = (index) => {
      const text = texts[index][place] ?? "";
      const number = numberOf(text);
      return numbers[place] && !Number.isNaN(number) ? number : text;
    };
    const order = rows.map((_, index) => index).sort((a, b) => compare(key(a), key(b), down) || a - b);
    body.append(...order.map((index) => rows[index]));
  }));
  const input = grid.querySelector("input");
  if (!input) return;
  const names = headers.map((header) => header.textContent);
  const count = grid.querySelector(".count");
  const filter = () => {
    const fits = matcher(input.value, names);
    let shown = 0;
    rows.forEach((row, index) => {
      row.hidden = !fits(lower[index]);
      shown += !row.hidden;
    });
    count.textContent = counted(shown, rows.length);
  };
  input.addEventListener("input", filter);
  filter();
};

// A list of thousands of rows: the table holds those in sight, between two gaps as high as the rest.
const virtual = (grid) => {
  const { columns, values } = JSON.parse(grid.querySelector("script").textContent);
  const length = values.length ? values[0].length : 0;
  const text = (value) => (value === null ? "" : typeof value === "number" ? value.toLocaleString("en", { maximumSignificantDigits: 5, useGrouping: Math.abs(value) >= 1e4 }) : value);
  const view = grid.querySelector(".view");
  const table = document.createElement("table");
  table.setAttribute("aria-rowcount", length + 1);
  const caption = table.createCaption();
  caption.className = "sr";
  caption.textContent = view.getAttribute("aria-label");
  const widths = columns.map((name, place) => {
    let most = name.length + 2;
    for (let row = 0; row < length; row += Math.max(1, length >> 9)) most = Math.max(most, text(values[place][row]).length);
    return Math.min(most, 46) + 3;
  });
  const group = document.createElement("colgroup");
  for (const width of widths) group.appendChild(document.createElement("col")).style.width = `${width}ch`;
  table.style.minWidth = `${widths.reduce((sum, width) => sum + width, 0)}ch`;
  table.append(group);
  const head = table.createTHead().insertRow();
  const headers = columns.map((name) => {
    const header = document.createElement("th");
    header.scope = "col";
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = name;
    header.append(button);
    head.append(header);
    return header;
  });
  const body = table.createTBody();
  view.append(table);

  const every = Array.from({ length }, (_, row) => row);
  let order = every;
  let lower = null; // made when first filtered
  let drawn = "";
  const gap = (rows) => {
    const row = document.createElement("tr");
    row.className = "gap";
    row.setAttribute("aria-hidden", "true");
    const cell = row.insertCell();
    cell.colSpan = columns.length;
    cell.style.height = `${rows * ROW}px`;
    return row;
  };
  const draw = () => {
    const first = Math.max(0, Math.floor(view.scrollTop / ROW) - MARGIN);
    const last = Math.min(order.length, Math.ceil((view.scrollTop + view.clientHeight) / ROW) + MARGIN);
    if (drawn === `${first} ${last}`) return;
    drawn = `${first} ${last}`;
    const rows = order.slice(first, last).map((index, place) => {
      const row = document.createElement("tr");
      row.setAttribute("aria-rowindex", first + place + 2);
      columns.forEach((_, column) => {
        const value = values[column][index];
        const cell = row.insertCell();
        cell.textContent = text(value);
        if (typeof value === "number") cell.className = "n";
        else if (value && value.length > 24) cell.title = value;
        if (columns[column] === "status" && value !== "ok") cell.className = "failed";
      });
      return row;
    });
    body.replaceChildren(...(first ? [gap(first)] : []), ...rows, ...(last < order.length ? [gap(order.length - last)] : []));
  };
  const again = () => {
    drawn = "";
    view.scrollTop = 0;
    draw();
  };
  headers.forEach((header, place) => header.firstElementChild.addEventListener("click", () => {
    const down = turn(headers, place);
    order = order.slice().sort((a, b) => compare(values[place][a], values[place][b], down) || a - b);
    again();
  }));
  const count = grid.querySelector(".count");
  const input = grid.querySelector("input");
  input.addEventListener("input", () => {
    lower ??= every.map((row) => values.map((column) => (column[row] === null ? "" : String(column[row]).toLowerCase())));
    const fits = matcher(input.value, columns);
    const kept = new Set(every.filter((row) => fits(lower[row])));
    const sorted = headers.findIndex((header) => header.hasAttribute("aria-sort"));
    order = every.filter((row) => kept.has(row));
    if (sorted >= 0) {
      const down = headers[sorted].getAttribute("aria-sort") === "descending";
      order.sort((a, b) => compare(values[sorted][a], values[sorted][b], down) || a - b);
    }
    count.textContent = counted(order.length, length);
    again();
  });
  grid.querySelector("button.file").addEventListener("click", () => {
    const rows = order.map((row) => values.map((column) => column[row]));
    save(`${grid.dataset.name}.csv`, csv([columns, ...rows]), "text/csv");
  });
  view.addEventListener("scroll", () => requestAnimationFrame(draw), { passive: true });
  new ResizeObserver(() => requestAnimationFrame(draw)).observe(view);
  count.textContent = counted(length, length);
  draw();
};

for (const grid of document.querySelectorAll(".grid")) {
  if (grid.classList.contains("listing")) virtual(grid);
  else if (grid.querySelector("tbody")) sortable(grid);
}

// The section in sight, in the navigation.
const links = new Map([...document.querySelectorAll("nav a")].map((link) => [link.hash.slice(1), link]));
const sections = [...document.querySelectorAll("main > section")];
const mark = () => {
  const current = sections.findLast((section) => section.getBoundingClientRect().top < innerHeight / 3) ?? sections[0];
  for (const [name, link] of links) {
    if (name === current?.id) link.setAttribute("aria-current", "true");
    else link.removeAttribute("aria-current");
  }
};
addEventListener("scroll", () => requestAnimationFrame(mark), { passive: true });
// Who goes to a section wants to see what is in it.
for (const link of links.values()) link.addEventListener("click", () => {
  const fold = document.querySelector(`${link.hash} > details`);
  if (fold) fold.open = true;
});
mark();

// On paper, nothing is folded.
let folded = [];
addEventListener("beforeprint", () => {
  folded = [...document.querySelectorAll("details:not([open])")];
  for (const one of folded) one.open = true;
});
addEventListener("afterprint", () => folded.forEach((one) => (one.open = false)));
