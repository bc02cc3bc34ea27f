/* Where the marks of one lane go: none covers another. Up to a few side by side, more as one mark with a count; the
   small grey ones grow into a bar. Pure: signs and a scale in, places out. */

export const SIZE = 17, GAP = 2;
const SLOT = SIZE + GAP, PILL = 40, BESIDE = 4, GREY = 7;
const STRENGTH = ["accuses", "clears", "soft"];

export const numbered = sign => sign.n > 0;

/** Groups [{signs, stance, x, width}] of the numbered signs of one lane, by place. */
export function groups(signs, X, right) {
  const sorted = signs.filter(numbered).sort((a, b) => X(a) - X(b) || a.n - b.n), found = [];
  let free = -Infinity;
  for (let k = 0; k < sorted.length;) {
    const start = Math.max(X(sorted[k]), free + SLOT / 2);
    let end = k + 1;
    while (end < sorted.length && X(sorted[end]) < start + Math.max(PILL, SLOT * (end - k))) end += 1;
    const near = sorted.slice(k, end);
    const room = near.length <= BESIDE && start + SLOT * (near.length - 1) <= right;
    const made = room ? near.map((sign, n) => alone(sign, start + n * SLOT)) : [together(near, start, right)];
    found.push(...made);
    free = made.at(-1).x + made.at(-1).width / 2 + GAP;
    k = end;
  }
  return found;
}

function alone(sign, x) { return { signs: [sign], stance: sign.stance, x, width: SIZE }; }

function together(signs, start, right) {
  const stance = STRENGTH.find(s => signs.some(sign => sign.stance === s)) || "context";
  const x = Math.min(start - SIZE / 2 + PILL / 2, right + SIZE / 2 - PILL / 2);
  return { signs, stance, x, width: PILL };
}

/** Bars [{signs, from, to}] of the small grey marks of one lane; alone a bar is a dot. */
export function bars(signs, X) {
  const found = [];
  for (const sign of signs.filter(s => !numbered(s)).sort((a, b) => X(a) - X(b))) {
    const last = found.at(-1), x = X(sign);
    if (last && x - last.to < GREY) { last.signs.push(sign); last.to = Math.max(last.to, x); }
    else found.push({ signs: [sign], from: x, to: x });
  }
  return found;
}
