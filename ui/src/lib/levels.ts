/**
 * What a question would keep with less memory, for the budgets that are known: the page under each of them without
 * computing anything. Shares are of all layer-head slots.
 */
import { meanShare, tokenAt, type Tokens } from './runs'

export interface Level extends Tokens {
  /** The budget, in percent of the prompt. */
  percent: number
  /** Mean share kept over the document, 0 to 1. */
  mean: number
}

/** The budgets of the levels, in percent: `LEVELS` of the engine. Methods that need more lack the smallest. */
export const LEVELS = [2, 4, 6, 8, 10, 15, 20, 25, 30, 40, 50, 60, 75]

/** A share of all slots, as a byte. */
export const FULL = 255

/**
 * The levels in an answer of `map_levels`, the smallest budget first, with that of 100 % at the end; none if none is
 * known, or if they are of other tokens.
 */
export function levelsOf(bytes: ArrayBuffer, ends: Uint32Array): Level[] {
  const all = new Uint8Array(bytes)
  const many = all[0] ?? 0
  const cells = ends.length
  if (many === 0 || all.length !== 1 + many * (1 + cells)) return []
  const levels = Array.from({ length: many }, (_, i) => {
    const from = 1 + many + i * cells
    return level(all[1 + i]!, ends, Uint16Array.from(all.subarray(from, from + cells)))
  })
  return [...levels, level(100, ends, new Uint16Array(cells).fill(FULL))]
}

function level(percent: number, ends: Uint32Array, counts: Uint16Array): Level {
  const tokens = { ends, counts, slots: FULL }
  return { percent, mean: meanShare(tokens), ...tokens }
}

/** The least budget of the scale, in percent. */
export const LEAST = 2

/** The place of a budget on the scale, 0 to 1: logarithmic, since most happens at small budgets. */
export function placeOf(percent: number): number {
  return Math.max(0, Math.min(1, Math.log(percent / LEAST) / Math.log(100 / LEAST)))
}

/** The stop that is nearest to a place on the scale. */
export function stopAt(stops: readonly number[], place: number): number {
  return stops.reduce((best, stop) => (Math.abs(placeOf(stop) - place) < Math.abs(placeOf(best) - place) ? stop : best))
}

/** Nearer than this, a level and the answer's own budget are the same, in percent. */
const SAME = 0.75

/** The budgets that can be chosen, ascending: those of levels, and the answer's own in place of its nearest. */
export function stopsOf(levels: readonly number[], own: number): number[] {
  const others = levels.filter((percent) => Math.abs(percent - own) > SAME)
  return [...others, own].sort((a, b) => a - b)
}

/** The words of `from..to` that at least `least` slots hold, and all of them. `tokens` are snapped to words. */
export function wordsLeft(
  text: string,
  { ends, counts }: Tokens,
  from: number,
  to: number,
  least: number,
): { left: number; all: number } {
  let [left, all] = [0, 0]
  for (const word of text.slice(from, to).matchAll(/[\p{L}\p{N}\p{M}]+/gu)) {
    all++
    if ((counts[tokenAt(ends, from + word.index)] ?? 0) >= least) left++
  }
  return { left, all }
}
