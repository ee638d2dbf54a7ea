// Elements and small plots. Whatever comes from the service is set as text, never as markup.
const SVG = "http://www.w3.org/2000/svg";
const PLOT_WIDTH = 100;
const PLOT_HEIGHT = 40;

function element(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

function vector(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

function filled(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

// Touches the document only where something changed: what is selected stays so.
function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function setAttribute(node, name, value) {
  if (node.getAttribute(name) !== value) node.setAttribute(name, value);
}

// A plot of up to two lines over the same time; the first has its area filled.
class Sparkline {
  constructor(lines, label) {
    this.paths = [];
    this.node = vector("svg", {
      class: "spark", viewBox: `0 0 ${PLOT_WIDTH} ${PLOT_HEIGHT}`, preserveAspectRatio: "none",
      role: "img", "aria-label": label,
    });
    this.node.append(vector("line", { x1: 0, x2: PLOT_WIDTH, y1: PLOT_HEIGHT, y2: PLOT_HEIGHT }));
    this.area = vector("path", { class: "area" });
    this.node.append(this.area);
    for (let line = 0; line < lines; line += 1) {
      this.paths.push(vector("path", line ? { class: "second" } : {}));
    }
    this.node.append(...this.paths.slice().reverse());
  }

  // `positions` are 0 (left) to 1 (right); a value of null leaves a gap. Returns the largest value.
  draw(positions, ...lines) {
    const top = Math.max(0, ...lines.flat().filter((value) => value !== null));
    const scale = top > 0 ? (PLOT_HEIGHT - 2) / top : 0;
    lines.forEach((values, line) => {
      const pieces = pieces_of(positions, values, scale);
      const drawn = pieces.map((piece) => `M${piece.map((at) => at.join(" ")).join("L")}`).join("");
      setAttribute(this.paths[line], "d", drawn);
      if (line === 0) setAttribute(this.area, "d", pieces.map(below).join(""));
    });
    return top;
  }
}

function pieces_of(positions, values, scale) {
  const pieces = [[]];
  values.forEach((value, index) => {
    const piece = pieces[pieces.length - 1];
    if (value === null) {
      if (piece.length) pieces.push([]);
    } else {
      const x = positions[index] * PLOT_WIDTH;
      piece.push([x.toFixed(1), (PLOT_HEIGHT - value * scale).toFixed(1)]);
    }
  });
  return pieces.filter((piece) => piece.length);
}

function below(piece) {
  const [first, last] = [piece[0][0], piece[piece.length - 1][0]];
  return `M${first} ${PLOT_HEIGHT}L${piece.map((at) => at.join(" ")).join("L")}L${last} ${PLOT_HEIGHT}Z`;
}

// A bar that is a share of its cell.
class Bar {
  constructor() {
    this.rect = vector("rect", { height: 5, rx: 1 });
    this.node = vector("svg", { class: "bar", "aria-hidden": "true" }, this.rect);
  }

  draw(part, kind) {
    setAttribute(this.rect, "width", `${(Math.max(0, Math.min(1, part)) * 100).toFixed(1)}%`);
    setAttribute(this.rect, "class", kind);
  }
}
