// A table that follows its rows: each keeps its elements for as long as it is there, found by its key.
//
// A column has a title; `text(row)` is what a cell says, or `fill(cell, row)` fills it. With `value(row)` a reader may
// order by it. `hint` explains the title, `left` aligns, `css` are classes of its cells.
class Table {
  constructor(place, name, columns, { key, order = null, cards = false, first = () => false }) {
    Object.assign(this, { place, columns, key, order, first });
    this.rows = new Map();
    this.reordered = () => {};
    this.body = element("tbody", { role: "rowgroup" });
    this.heads = columns.map((column, index) => this.head(column, index));
    this.empty = element("p", { class: "empty soft" });
    this.table = element("table", { role: "table", "aria-label": name, class: cards ? "cards" : "" },
      element("thead", { role: "rowgroup" }, element("tr", { role: "row" }, ...this.heads)), this.body);
    place.append(this.table, this.empty);
    this.markOrder();
  }

  head(column, index) {
    const head = element("th", { scope: "col", role: "columnheader", class: column.left ? "left" : "" });
    if (column.hint) head.title = column.hint;
    if (!column.value || !this.order) {
      head.append(column.title);
      return head;
    }
    const button = element("button", { type: "button" }, column.title);
    button.addEventListener("click", () => {
      const same = this.order.column === index;
      this.orderBy(index, same ? !this.order.falling : !column.left);
    });
    head.append(button);
    return head;
  }

  orderBy(column, falling) {
    this.order = { column, falling };
    this.markOrder();
    this.reordered();
  }

  markOrder() {
    if (!this.order) return;
    this.heads.forEach((head, index) => {
      if (index === this.order.column) setAttribute(head, "aria-sort", this.order.falling ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
  }

  ordered(rows) {
    if (!this.order) return rows;
    const { value } = this.columns[this.order.column];
    const sign = this.order.falling ? -1 : 1;
    return rows.map((row, place) => ({ row, place, at: value(row) })).sort((a, b) => {
      if (a.at === b.at) return a.place - b.place;
      if (a.at === null || b.at === null) return a.at === null ? 1 : -1;
      return a.at < b.at ? -sign : sign;
    }).map(({ row }) => row);
  }

  // Shows the rows, in the order that the reader chose, and no more than `limit`.
  show(rows, { limit = Infinity, nothing = "none" } = {}) {
    const shown = this.ordered(rows).slice(0, limit);
    const kept = new Map();
    let at = this.body.firstChild;
    shown.forEach((row, index) => {
      const key = this.key(row);
      const line = this.rows.get(key) ?? this.line();
      kept.set(key, line);
      if (line.node === at) at = at.nextSibling;
      else this.body.insertBefore(line.node, at);
      line.node.className = this.first(row, shown[index - 1]) ? "first" : "";
      this.columns.forEach((column, position) => {
        const cell = line.cells[position];
        if (column.fill) column.fill(cell, row);
        else {
          const text = column.text(row);
          setText(cell, text);
          cell.classList.toggle("unknown", text === NOTHING);
        }
      });
    });
    for (const [key, line] of this.rows) if (!kept.has(key)) line.node.remove();
    this.rows = kept;
    this.table.hidden = !shown.length;
    this.empty.hidden = shown.length > 0;
    setText(this.empty, nothing);
  }

  line() {
    const cells = this.columns.map((column, index) => {
      const classes = [column.left ? "left" : "", column.css ?? ""].join(" ").trim();
      if (!index) return element("th", { scope: "row", role: "rowheader", class: classes });
      return element("td", { role: "cell", class: classes, "data-label": column.title });
    });
    return { node: element("tr", { role: "row" }, ...cells), cells };
  }
}

const PARTS = new WeakMap();

// A part of a cell that is made once and kept for as long as the cell is.
function kept(cell, make) {
  let part = PARTS.get(cell);
  if (!part) {
    part = make();
    PARTS.set(cell, part);
    cell.append(part.node ?? part);
  }
  return part;
}

function pill(cell, state) {
  const part = kept(cell, () => element("span"));
  setAttribute(part, "class", `pill is-${state}`);
  setText(part, state);
}
