// Drafts to a picture of their scores: a point each, the best so far as a line, the draft shown as a mark.
import { short, svg } from "./dom.js";

const HEIGHT = 132;
const EDGE = { left: 34, right: 14, top: 16, bottom: 22 };

/** The SVG; `pick` is called with the number of the draft that was clicked. */
export function curve(drafts, shown, best, width, pick) {
  const scores = drafts.flatMap((draft) => [draft.score, draft.best.score]).filter(Number.isFinite);
  const [low, high] = padded(Math.min(0, ...scores), Math.max(0, ...scores));
  const across = width - EDGE.left - EDGE.right;
  const x = (number) => EDGE.left + (drafts.length > 1 ? (number * across) / (drafts.length - 1) : across / 2);
  const y = (score) => EDGE.top + ((high - Math.min(high, Math.max(low, score ?? low))) / (high - low)) * (HEIGHT - EDGE.top - EDGE.bottom);
  const said = `Scores of ${drafts.length} drafts, from ${short(drafts[0].score)} to ${short(drafts.at(-1).score)}; the best so far has ${short(drafts[shown].best.score)}.`;
  const picture = svg("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, width, height: HEIGHT, role: "img", "aria-label": said });

  for (const score of ticks(low, high)) {
    picture.append(
      svg("line", { class: score === 0 ? "zero" : "grid", x1: EDGE.left, x2: width - EDGE.right, y1: y(score), y2: y(score) }),
      svg("text", { class: "tick", x: EDGE.left - 8, y: y(score) + 4, "text-anchor": "end" }, String(score)),
    );
  }
  for (const [number, draft] of drafts.entries()) {
    if (number && draft.block !== drafts[number - 1].block) {
      const between = (x(number) + x(number - 1)) / 2;
      picture.append(svg("line", { class: "block", x1: between, x2: between, y1: EDGE.top, y2: HEIGHT - EDGE.bottom }));
    }
  }
  picture.append(
    svg("line", { class: "now", x1: x(shown), x2: x(shown), y1: EDGE.top - 6, y2: HEIGHT - EDGE.bottom }),
    svg("path", { class: "best", d: steps(drafts, x, y) }),
    svg("path", { class: "scores", d: line(drafts, x, y) }),
    ...drafts.map((draft, number) =>
      svg("circle", { class: draft.satisfied ? "point yes" : "point no", cx: x(number), cy: y(draft.score), r: number === shown ? 5 : 3.5 }),
    ),
    svg("circle", { class: "ring", cx: x(best), cy: y(drafts[best].score), r: 8 }),
    svg("text", { class: "tick", x: EDGE.left, y: HEIGHT - 5 }, `draft ${drafts[0].draft}`),
    ...(drafts.length > 1 ? [svg("text", { class: "tick", x: width - EDGE.right, y: HEIGHT - 5, "text-anchor": "end" }, String(drafts.at(-1).draft))] : []),
  );
  picture.addEventListener("click", (click) => {
    const place = click.clientX - picture.getBoundingClientRect().left - EDGE.left;
    pick(Math.round((place / across) * (drafts.length - 1)));
  });
  return picture;
}

const padded = (low, high) => [low - 0.06 * (high - low || 1), high + 0.06 * (high - low || 1)];

/** Two to five round numbers between. */
function ticks(low, high) {
  const rough = (high - low) / 4;
  const unit = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((times) => times * unit).find((size) => size >= rough);
  const found = [];
  for (let score = Math.ceil(low / step) * step; score <= high; score += step) found.push(Number(score.toFixed(6)) || 0);
  return found;
}

const line = (drafts, x, y) => drafts.map((draft, number) => `${number ? "L" : "M"}${x(number)} ${y(draft.score)}`).join("");

/** The best so far stays until it changes, and begins anew with a block. */
function steps(drafts, x, y) {
  return drafts
    .map((draft, number) => {
      const begins = !number || draft.block !== drafts[number - 1].block;
      return begins ? `M${x(number)} ${y(draft.best.score)}` : `H${x(number)}V${y(draft.best.score)}`;
    })
    .join("");
}
