/**
 * Two memories of one text, A and B: what both remember, only A, and only B. Their tokens may differ, as those of two
 * models do. No colours, no DOM.
 */
import { cellsOf, type Rows } from './minimap'
import type { Tokens } from './runs'

/** What remembers a piece of text. */
export const KINDS = ['both', 'a', 'b'] as const
export type Kind = (typeof KINDS)[number]

/** A memory, and the least count that is remembered. */
export interface Memory {
  tokens: Tokens
  least: number
}

export interface Difference {
  /** Where each kind is: of one slot, whose count is 1 where the text is of that kind. */
  tokens: Record<Kind, Tokens>
  /** Shares of the characters, 0 to 1. */
  shares: Record<Kind, number>
}

export function differenceOf(a: Memory, b: Memory): Difference {
  const ends: number[] = []
  const kinds: (Kind | null)[] = []
  const characters = { both: 0, a: 0, b: 0 }
  let [i, j, at] = [0, 0, 0]
  while (i < a.tokens.ends.length || j < b.tokens.ends.length) {
    const [ofA, ofB] = [a.tokens.ends[i] ?? Infinity, b.tokens.ends[j] ?? Infinity]
    const end = Math.min(ofA, ofB)
    const inA = i < a.tokens.counts.length && a.tokens.counts[i]! >= a.least
    const inB = j < b.tokens.counts.length && b.tokens.counts[j]! >= b.least
    const kind = inA && inB ? 'both' : inA ? 'a' : inB ? 'b' : null
    if (ofA === end) i++
    if (ofB === end) j++
    // Pieces of one character.
    if (end === at) continue
    if (kind !== null) characters[kind] += end - at
    at = end
    // Neighbours of one kind are one piece.
    if (kinds.at(-1) === kind && kinds.length > 0) ends[ends.length - 1] = end
    else {
      ends.push(end)
      kinds.push(kind)
    }
  }
  const all = new Uint32Array(ends)
  const of = (kind: Kind): Tokens => ({
    ends: all,
    counts: Uint16Array.from(kinds, (other) => Number(other === kind)),
    slots: 1,
  })
  const share = (kind: Kind) => characters[kind] / Math.max(1, at)
  return {
    tokens: { both: of('both'), a: of('a'), b: of('b') },
    shares: { both: share('both'), a: share('a'), b: share('b') },
  }
}

/** `[rows * width]`: the strongest kind of each cell: 0 for none, else 1 + its index in `KINDS`. */
export function kindsIn(rows: Rows, { tokens }: Difference, width: number): Uint8Array {
  const cells = KINDS.map((kind) => cellsOf(rows, tokens[kind], 1, width))
  return Uint8Array.from({ length: rows.starts.length * width }, (_, at) => {
    let [best, most] = [0, 0]
    cells.forEach((strengths, kind) => {
      if (strengths[at]! > most) [best, most] = [kind + 1, strengths[at]!]
    })
    return best
  })
}

/** Draws the kinds of cells into the RGBA words of a picture; `colours` are those of `KINDS`, 0 to 255. */
export function drawKinds(
  words: Uint32Array,
  width: number,
  height: number,
  rows: Rows,
  kinds: Uint8Array,
  pitch: number,
  colours: readonly (readonly number[])[],
) {
  const bytes = new Uint8Array([0, 0, 0, 0, ...colours.flatMap((colour) => [...colour.slice(0, 3), 255])])
  const inks = new Uint32Array(bytes.buffer)
  for (let row = 0; row < rows.starts.length; row++) {
    const top = Math.round(rows.tops[row]! * pitch)
    const bottom = Math.min(height, Math.max(top + 1, Math.round((rows.tops[row]! + 1) * pitch)))
    for (let y = top; y < bottom; y++)
      for (let x = 0; x < width; x++) words[y * width + x] = inks[kinds[row * width + x]!]!
  }
}
