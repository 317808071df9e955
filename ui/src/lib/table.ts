/**
 * Tables as columns. Markdown has rows of `| a | b |`; the text of office files, web pages and PDFs has `a | b`, and CSV
 * `a,"b"`. A row is cut into cells that have all its characters: borders are the end of the cell before them, and have no
 * width.
 */
import { blockAt, type Block } from './blocks'
import type { DocumentFacts } from './contract'
import type { MarkdownPart } from './headings'
import { withoutMarks } from './inline'

/** Its width is zero. */
const NOTHING = '\u200b'
/** The border of two cells of Markdown, with the spaces around it, or an escaped one. */
const BORDER = /[ \t]*\\?\|[ \t]*/g
/** That of other documents. */
const BAR = /(?:^| )\|(?: |(?=\r?$))/g
/** The line below the titles. */
const LINE = /^\|[ \t:|-]*-[ \t:|-]*\r?$/
/** A row of Markdown, and of other documents. */
const FRAMED = /^\|/
const BARE = /(?:^| )\|(?: |\r?$)/

/** So many rows show the widths of a table. */
const MEASURED = 5000
/** Sizes of the letters, in pixels: a wide table has smaller ones. */
const SIZES = [13, 12, 11]
/**
 * In widths of a digit: the widest table of the largest letters, and how narrow a column may get before the letters get
 * smaller. First words stay whole, then some are broken, in a table of many columns more of them.
 */
const WIDEST = 66
const NARROWEST = [null, 8, 5]
/** Longer words may be broken before the letters get smaller. */
const LONGEST = 12

/** How rows are written: with a frame, with bars between cells, or with the separator of CSV. */
export type Style = 'framed' | 'bars' | ',' | ';' | '\t'

/** A document, or one of several, or a part of Markdown, and how its tables are written. */
export interface Styled {
  start: number
  end: number
  /** Null if it has none. */
  style: Style | null
}

/** The documents of `text` in order, with the parts of those in Markdown (`markdownOf`). */
export function stylesOf(
  text: string,
  { kind, name, documents }: Pick<DocumentFacts, 'kind' | 'name' | 'documents'>,
  markdown: readonly MarkdownPart[],
): Styled[] {
  const parts = documents.length > 0 ? documents : [{ kind, name, start: 0, end: text.length }]
  const others = parts.filter(({ kind }) => kind !== 'markdown')
  const styles = [
    ...others.map(({ kind, name, start, end }) => ({ start, end, style: styleOf(kind, name, text.slice(start, end)) })),
    ...markdown.map(({ start, end, code }) => ({ start, end, style: code ? null : ('framed' as const) })),
  ]
  return styles.sort((a, b) => a.start - b.start)
}

function styleOf(kind: string, name: string, text: string): Style | null {
  if (kind === 'code') return separatorOf(name, text)
  return kind === 'text' ? null : 'bars'
}

/** The separator of CSV: the one that its first line has most often outside quotes. */
function separatorOf(name: string, text: string): Style | null {
  if (!/\.(csv|tsv)$/i.test(name)) return null
  const titles = text.slice(0, text.indexOf('\n') + 1 || text.length).replace(/"[^"]*"/g, '')
  const counts = (['\t', ';', ','] as const).map((style) => ({ style, count: titles.split(style).length - 1 }))
  const most = counts.reduce((a, b) => (b.count > a.count ? b : a))
  return most.count > 0 ? most.style : null
}

function styleAt(styles: readonly Styled[], offset: number): Style | null {
  const at = styles[blockAt(styles, offset)]
  return at && offset >= at.start && offset < at.end ? at.style : null
}

/** Whether the line of `text` from `start` to `end` is a row of a table. */
export function isRowAt(text: string, styles: readonly Styled[], start: number, end: number): boolean {
  const style = styleAt(styles, start)
  if (style === null) return false
  const line = text.slice(start, end)
  if (style === 'framed') return FRAMED.test(line)
  return style === 'bars' ? BARE.test(line) : line.trim() !== ''
}

export interface Row {
  cells: string[]
  /** The line below the titles. */
  line: boolean
}

/** The rows of a table, without their line breaks; `shown` is `table` with marks that have no width. */
export function rowsOf(table: string, style: Style, shown = table): Row[] {
  let at = 0
  return table.split('\n').map((row) => {
    const looks = shown.slice(at, at + row.length)
    at += row.length + 1
    if (style === 'framed' && LINE.test(row)) return { cells: [NOTHING.repeat(row.length)], line: true }
    if (style === 'framed') return { cells: barred(row, looks, BORDER), line: false }
    return { cells: style === 'bars' ? barred(row, looks, BAR) : separated(row, style), line: false }
  })
}

/** `words`, a passage of Markdown, without its marks and with points between the cells of a table. */
export function plainOf(words: string): string {
  const looks = withoutMarks(words)
  let at = 0
  const lines = words.split('\n').map((line) => {
    const shown = looks.slice(at, at + line.length)
    at += line.length + 1
    if (!FRAMED.test(line)) return shown
    const cells = rowsOf(line, 'framed', shown)[0]!.cells.map((cell) => cell.replaceAll(NOTHING, '').trim())
    return cells.filter((cell) => cell !== '').join(' · ')
  })
  return lines.join('\n').replaceAll(NOTHING, '').trim()
}

/** The cells of `row`, as `looks`. */
function barred(row: string, looks: string, borders: RegExp): string[] {
  const cells: string[] = []
  let cell = ''
  let at = 0
  for (const { 0: border, index } of row.matchAll(borders)) {
    if (border.includes('\\')) continue
    cell += looks.slice(at, index) + NOTHING.repeat(border.length)
    at = index + border.length
    // The frame.
    if (borders === BORDER && index === 0) continue
    cells.push(cell)
    cell = ''
  }
  cell += looks.slice(at)
  // A carriage return is no cell.
  if (cells.length > 0 && cell.trim() === '') cells[cells.length - 1] += cell
  else cells.push(cell)
  return cells
}

/** The cells of CSV: quotes around a cell have no width, and one of two inside. */
function separated(row: string, separator: string): string[] {
  const cells = ['']
  let quoted = false
  for (let i = 0; i < row.length; i++) {
    const sign = row[i]!
    const last = cells.length - 1
    if (sign === '"' && quoted && row[i + 1] === '"') {
      cells[last] += NOTHING + sign
      i++
    } else if (sign === '"' && (quoted || cells[last]!.trim() === '')) {
      quoted = !quoted
      cells[last] += NOTHING
    } else if (sign === separator && !quoted) {
      cells[last] += NOTHING
      cells.push('')
    } else cells[last] += sign
  }
  return cells
}

/** The columns of a table. */
export interface Columns {
  style: Style
  widths: readonly number[]
  /** Of its letters, in pixels. */
  size: number
}

/** The columns of each block that is a part of a table; those of one table are the same. */
export function columnsOf(text: string, blocks: readonly Block[], styles: readonly Styled[]): Map<number, Columns> {
  const found = new Map<number, Columns>()
  let table: number[] = []
  let words: number[] = []
  let first = -1
  let rows = 0
  let titled = false
  let of: Style | null = null
  const close = (end: number) => {
    // A bar also stands in prose: one row is no table, nor is one of Markdown without a line below its titles.
    const is = of === 'framed' ? titled : of !== 'bars' || rows > 1
    const fit = is ? fitting(table, words) : null
    if (of && fit) for (let i = first; i < end; i++) found.set(i, { style: of, ...fit })
    table = []
    words = []
    of = null
    rows = 0
    titled = false
  }
  blocks.forEach((block, i) => {
    const style = styleAt(styles, block.start)
    const isTable = !block.heading && isRows(text, styles, block)
    if (!isTable || block.gap || block.page !== null || block.document !== null) close(i)
    if (!isTable || style === null) return
    if (of === null) [of, first] = [style, i]
    if (rows > MEASURED) return
    const source = text.slice(block.start, block.end)
    for (const { cells, line } of rowsOf(source, style, style === 'framed' ? withoutMarks(source) : source)) {
      rows++
      titled ||= line
      if (line) continue
      cells.forEach((cell, c) => {
        const looks = cell.replaceAll(NOTHING, '').trimEnd()
        table[c] = Math.max(table[c] ?? 0, looks.length)
        words[c] = Math.max(words[c] ?? 0, ...looks.split(' ').map((word) => Math.min(word.length, LONGEST)))
      })
    }
  })
  close(blocks.length)
  return found
}

/** A block is of rows or has none (`blocks.ts`), but for very long lines. */
function isRows(text: string, styles: readonly Styled[], { start, end }: Block): boolean {
  let at = start
  while (at < end) {
    const found = text.indexOf('\n', at)
    const stop = found < 0 || found > end ? end : found
    if (!isRowAt(text, styles, at, stop)) return false
    at = stop + 1
  }
  return end > start
}

/**
 * The widths with long cells in several lines, so that all fit side by side, and the size of the letters; null if they do
 * not. Words, at most as long as `words`, stay whole if they can.
 */
function fitting(widths: readonly number[], words: readonly number[]): Pick<Columns, 'widths' | 'size'> | null {
  if (widths.length === 0) return null
  for (const least of NARROWEST)
    for (const size of SIZES)
      for (let most = WIDEST; most >= (least ?? 1); most--) {
        const cut = widths.map((width, c) => Math.min(width, least === null ? Math.max(most, words[c]!) : most))
        if (widthOf({ widths: cut, size }) <= (WIDEST * SIZES[0]!) / size) return { widths: cut, size }
      }
  return null
}

/** The width of a column of so many characters, some of which are wider than a digit; a wide table has none to spare. */
export const columnOf = (width: number, size: number) => (size === SIZES[0] ? width * 1.1 + 1 : width * 1.05 + 0.5)

/** The gap between two columns. */
export const gapOf = (size: number) => (size - 9) / 2

/** The width of a table. */
export function widthOf({ widths, size }: Pick<Columns, 'widths' | 'size'>): number {
  return widths.reduce((sum, width) => sum + columnOf(width, size) + gapOf(size), -gapOf(size))
}
