/**
 * The map as a grid: a row per layer, which unfolds into a row per KV head, and a column per stretch of tokens. Numbers
 * and pixels, no DOM.
 */
import { cividis } from './colours'

/** A picture of the map, as in `map_picture`: `[rows][columns]` of the tokens `from..to`, 255 is everything. */
export interface Picture {
  shares: Uint8Array
  columns: number
  from: number
  to: number
}

/** The columns of a picture with `rows` rows. */
export function pictureOf(bytes: ArrayBuffer, rows: number, from: number, to: number): Picture | null {
  const shares = new Uint8Array(bytes)
  const columns = rows > 0 ? shares.length / rows : 0
  return columns >= 1 && Number.isInteger(columns) ? { shares, columns, from, to } : null
}

export interface Row {
  layer: number
  /** From 0; null for the layer as a whole. */
  head: number | null
}

/** The rows: every layer, and below an unfolded one its heads. */
export function rowsOf(layers: number, heads: number, unfolded: ReadonlySet<number>): Row[] {
  return Array.from({ length: layers }, (_, layer) => layer).flatMap((layer) => [
    { layer, head: null },
    ...(unfolded.has(layer) ? Array.from({ length: heads }, (_, head) => ({ layer, head })) : []),
  ])
}

/** Rows that are named, a name being as tall as `every` rows; without room for heads, those of layers. */
export function namedRows(rows: readonly Row[], every: number): { row: Row; i: number }[] {
  let next = 0
  return rows.flatMap((row, i) => {
    if (i < next || (every > 1 && row.head !== null)) return []
    next = i + every
    return [{ row, i }]
  })
}

/** The share of a row at a column, 0 to 255. */
export function shareAt(layers: Picture, heads: Picture | null, kvHeads: number, row: Row, column: number): number {
  if (row.head === null) return layers.shares[row.layer * layers.columns + column] ?? 0
  return heads?.shares[(row.layer * kvHeads + row.head) * heads.columns + column] ?? 0
}

/** The column of a picture that contains a token, and the tokens of a column. */
export function columnOf({ columns, from, to }: Picture, token: number): number {
  return Math.max(0, Math.min(columns - 1, Math.floor(((token - from + 1) * columns - 1) / Math.max(1, to - from))))
}

export function tokensOf({ columns, from, to }: Picture, column: number): { from: number; to: number } {
  const edge = (at: number) => from + Math.floor(((to - from) * at) / columns)
  return { from: edge(column), to: edge(column + 1) }
}

/** 256 colours of the shares up to `most`, which has the last one, as RGBA words. */
export function scale(most: number): Uint32Array {
  const words = new Uint32Array(256)
  const bytes = new Uint8Array(words.buffer)
  for (let share = 0; share < 256; share++) bytes.set([...cividis(share / Math.max(1, most)), 255], share * 4)
  return words
}

/** Draws the rows into RGBA words of one pixel for each cell. */
export function drawRows(
  words: Uint32Array,
  rows: readonly Row[],
  layers: Picture,
  heads: Picture | null,
  kvHeads: number,
  most: number,
) {
  const colours = scale(most)
  const { columns } = layers
  rows.forEach((row, y) => {
    for (let x = 0; x < columns; x++) words[y * columns + x] = colours[shareAt(layers, heads, kvHeads, row, x)]!
  })
}

/** Share of the cells that may be above the strongest colour, and the least share that has it. */
const ABOVE = 0.002
const LEAST_MOST = 8

/** The share that has the strongest colour: few cells have more. */
export function mostOf({ shares }: Picture): number {
  const many = new Uint32Array(256)
  for (const share of shares) many[share]!++
  let reached = 0
  for (let share = 255; share > LEAST_MOST; share--) {
    reached += many[share]!
    if (reached > shares.length * ABOVE) return share
  }
  return LEAST_MOST
}

/** The tokens `from..to` closer or further away by `factor`, around the token at `share` of them; within `tokens`. */
export function zoomed(
  { from, to }: { from: number; to: number },
  tokens: number,
  factor: number,
  share: number,
): { from: number; to: number } {
  const length = Math.max(Math.min(tokens, 32), Math.min(tokens, Math.round((to - from) * factor)))
  const middle = from + share * (to - from)
  const start = Math.max(0, Math.min(tokens - length, Math.round(middle - share * length)))
  return { from: start, to: start + length }
}

/** The same stretch `by` tokens further. */
export function moved({ from, to }: { from: number; to: number }, tokens: number, by: number) {
  const start = Math.max(0, Math.min(tokens - (to - from), from + Math.round(by)))
  return { from: start, to: start + to - from }
}
