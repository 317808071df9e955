/**
 * The whole document as rows of a few pixels: where each row begins in the text, and how much of each of its cells is
 * remembered. Paragraphs begin new rows as long as all of them fit; in longer documents only pages do, then nothing.
 * No colours, no DOM.
 */
import type { Block } from './blocks'
import { firstAbove, firstTokenAt, type Tokens } from './runs'

export interface Rows {
  /** First and last offset of each row. */
  starts: Uint32Array
  ends: Uint32Array
  /** Top of each row, in rows. */
  tops: Float32Array
  /** Characters of a full row. */
  columns: number
  /** Height of all of them, in rows. */
  total: number
}

interface Part {
  start: number
  end: number
  /** Empty rows above it. */
  gap: number
}

/** Characters of a row in a short document, and the most while paragraphs begin new rows. */
const COLUMNS = 72
const MOST_COLUMNS = 480
/** Empty rows above a paragraph after an empty line, and above a page or another document. */
const GAP = 0.75
const PAGE_GAP = 2

/** Rows of a document, at most about `most`. */
export function rowsOf(blocks: readonly Block[], length: number, most: number): Rows {
  const paragraphs = blocks.map(({ start, end, gap, page, document }, i) => {
    const above = page !== null || document !== null ? PAGE_GAP : gap ? GAP : 0
    return { start, end, gap: i === 0 ? 0 : above }
  })
  const columns = fitting(paragraphs, most, MOST_COLUMNS)
  if (columns !== null) return laid(paragraphs, columns)
  const begins = blocks.filter((block, i) => i === 0 || block.page !== null || block.document !== null)
  const pages = begins.map(({ start }, i) => ({ start, end: begins[i + 1]?.start ?? length, gap: 0 }))
  const wide = fitting(pages, most, Math.ceil((2 * length) / Math.max(1, most)))
  if (wide !== null) return laid(pages, wide)
  return laid([{ start: 0, end: length, gap: 0 }], Math.max(COLUMNS, Math.ceil(length / Math.max(1, most))))
}

const heightOf = (parts: readonly Part[], columns: number) =>
  parts.reduce((sum, { start, end, gap }) => sum + gap + Math.max(1, Math.ceil((end - start) / columns)), 0)

/** The fewest characters per row with which the parts fit; null if more than `widest`. */
function fitting(parts: readonly Part[], most: number, widest: number): number | null {
  if (heightOf(parts, widest) > most) return null
  let low = COLUMNS
  let high = Math.max(COLUMNS, widest)
  while (low < high) {
    const middle = (low + high) >> 1
    if (heightOf(parts, middle) <= most) high = middle
    else low = middle + 1
  }
  return low
}

function laid(parts: readonly Part[], columns: number): Rows {
  const [starts, ends, tops]: [number[], number[], number[]] = [[], [], []]
  let top = 0
  for (const { start, end, gap } of parts) {
    top += gap
    for (let at = start; at < end || at === start; at += columns) {
      starts.push(at)
      ends.push(Math.min(end, at + columns))
      tops.push(top++)
    }
  }
  return {
    starts: new Uint32Array(starts),
    ends: new Uint32Array(ends),
    tops: new Float32Array(tops),
    columns,
    total: top,
  }
}

/** The height of an offset of the text, in rows. */
export function topOf({ starts, ends, tops }: Rows, offset: number): number {
  if (starts.length === 0) return 0
  const row = Math.max(0, firstAbove(starts, offset) - 1)
  const length = Math.max(1, ends[row]! - starts[row]!)
  return tops[row]! + Math.max(0, Math.min(1, (offset - starts[row]!) / length))
}

/** The row at a height, and the offset of the text there. */
export function placeAt({ starts, ends, tops }: Rows, top: number): { start: number; end: number; offset: number } {
  if (starts.length === 0) return { start: 0, end: 0, offset: 0 }
  const row = Math.max(0, firstAbove(tops, top) - 1)
  const [start, end] = [starts[row]!, ends[row]!]
  const share = Math.max(0, Math.min(1, top - tops[row]!))
  return { start, end, offset: start + Math.floor(share * (end - start)) }
}

/** A cell has at least this share of its strongest token, and a painted one at least this strength. */
const OF_STRONGEST = 0.7
const LEAST = 0.35

/**
 * `[rows * width]`: strength of each cell, 0 to 1: the mean over its characters, so that neither much weak paint nor a
 * single strong word gets lost. Tokens in fewer than `least` slots are forgotten.
 */
export function cellsOf(rows: Rows, { ends, counts, slots }: Tokens, least: number, width: number): Float32Array {
  const { starts, ends: stops, columns } = rows
  const cells = new Float32Array(starts.length * width)
  const strongest = new Float32Array(cells.length)
  const wide = width / columns
  let row = 0
  for (let i = 0; i < counts.length && row < starts.length; i++) {
    const count = counts[i]!
    if (count < least) continue
    const share = Math.min(1, count / slots)
    let from = i > 0 ? ends[i - 1]! : 0
    const to = ends[i]!
    while (row < starts.length && stops[row]! <= from) row++
    for (let at = row; at < starts.length && from < to; at++) {
      const [start, stop] = [starts[at]!, Math.min(to, stops[at]!)]
      from = Math.max(from, start)
      if (stop > from) spread(cells, strongest, at * width, (from - start) * wide, (stop - start) * wide, share, width)
      from = Math.max(from, stops[at]!)
    }
  }
  for (let i = 0; i < cells.length; i++) {
    const most = strongest[i]!
    if (most > 0) cells[i] = Math.min(1, Math.max(LEAST, cells[i]!, OF_STRONGEST * most))
  }
  return cells
}

/** Adds a share to the cells of one row from `x0` to `x1`, in cells. */
function spread(
  cells: Float32Array,
  strongest: Float32Array,
  offset: number,
  x0: number,
  x1: number,
  share: number,
  width: number,
) {
  const last = Math.min(width - 1, Math.ceil(x1) - 1)
  for (let x = Math.min(width - 1, Math.floor(x0)); x <= last; x++) {
    cells[offset + x]! += share * (Math.min(x1, x + 1) - Math.max(x0, x))
    if (share > strongest[offset + x]!) strongest[offset + x] = share
  }
}

/** Mean share over the tokens with text in `from..to`, and the largest count; as `MapGrid::share_of` of the engine. */
export function shareIn({ ends, counts, slots }: Tokens, from: number, to: number): { mean: number; most: number } {
  let [sum, many, most] = [0, 0, 0]
  if (ends.length === 0 || ends.at(-1)! <= from || to <= from) return { mean: 0, most: 0 }
  for (let i = firstTokenAt(ends, from); i < counts.length && (i > 0 ? ends[i - 1]! : 0) < to; i++) {
    sum += counts[i]!
    many++
    most = Math.max(most, counts[i]!)
  }
  return { mean: many > 0 && slots > 0 ? Math.min(1, sum / (many * slots)) : 0, most }
}

/** Tokens in a row of a sentence that say whether a question is about it. */
const IN_A_ROW = 12

/** The share of the slots that hold the best kept tokens in a row of a part of the text: 0 to 1. */
export function mostIn({ ends, counts, slots }: Tokens, from: number, to: number): number {
  if (slots === 0) return 0
  let [sum, most] = [0, 0]
  const first = firstTokenAt(ends, from)
  for (let i = first; i < counts.length && (i > 0 ? ends[i - 1]! : 0) < to; i++) {
    sum += counts[i]! - (i - IN_A_ROW >= first ? counts[i - IN_A_ROW]! : 0)
    most = Math.max(most, sum)
  }
  return Math.min(1, most / (IN_A_ROW * slots))
}

/** Rows lower than this, in pixels of the screen, are dense. */
const DENSE = 3

export interface Ink {
  /** Red, green and blue of the marks, 0 to 255, and their opacity at full strength. */
  mark: readonly number[]
  strength: number
  /** Likewise of the lines of text. */
  ink: readonly number[]
  faint: number
}

/** Draws rows and cells (null: none) into the RGBA words of a picture of `width` by `height` pixels. */
export function draw(
  words: Uint32Array,
  width: number,
  height: number,
  rows: Rows,
  cells: Float32Array | null,
  pitch: number,
  colours: Ink,
) {
  // Dense lines together are darker than single ones.
  const faint = colours.faint * (pitch < DENSE ? 0.6 : 1)
  const [plain, lined] = [scale(colours, 0), scale(colours, faint)]
  const thick = Math.max(1, Math.round(pitch / 3))
  for (let row = 0; row < rows.starts.length; row++) {
    const top = Math.round(rows.tops[row]! * pitch)
    const bottom = Math.min(height, Math.max(top + 1, Math.round((rows.tops[row]! + 1) * pitch)))
    const line = top + Math.floor((bottom - top - thick) / 2)
    const inked = Math.round(((rows.ends[row]! - rows.starts[row]!) / rows.columns) * width)
    for (let y = top; y < bottom; y++) {
      const ink = y >= line && y < line + thick
      for (let x = 0; x < width; x++) {
        const level = cells ? Math.round(cells[row * width + x]! * 255) : 0
        words[y * width + x] = (ink && x < inked ? lined : plain)[level]!
      }
    }
  }
}

/** 256 strengths of the mark as RGBA words, with ink of opacity `faint` over it. */
function scale({ mark, strength, ink }: Ink, faint: number): Uint32Array {
  const words = new Uint32Array(256)
  const bytes = new Uint8Array(words.buffer)
  for (let level = 0; level < 256; level++) {
    const under = (level / 255) * strength
    const alpha = faint + under * (1 - faint)
    const mixed = mark.map((m, i) => (alpha > 0 ? (ink[i]! * faint + m * under * (1 - faint)) / alpha : 0))
    bytes.set([...mixed, alpha * 255].map(Math.round), level * 4)
  }
  return words
}
