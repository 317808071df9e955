/**
 * Tables as columns. Markdown has rows of `| a | b |`; the text of office files, web pages and PDFs has `a | b`. A row is
 * cut into cells that have all its characters: borders are the end of the cell before them, and have no width.
 */
import { kindAt, type Block } from './blocks'
import type { DocumentFacts } from './contract'

/** Its width is zero. */
const NOTHING = '\u200b'
/** The border of two cells, with the spaces around it, or an escaped one. */
const BORDER = /[ \t]*\\?\|[ \t]*/g
/** The line below the titles. */
const LINE = /^\|[ \t:|-]*-[ \t:|-]*$/
/** A row of Markdown, and of other documents. */
const FRAMED = /^\|/
const BARE = /(?:^| )\|(?: |$)/

/** Widths of a digit: of the widest table that is shown in columns, of the narrowest column of a wide one, and of gaps. */
const WIDEST = 66
const NARROWEST = 8
const GAP = 2

export interface Row {
  cells: string[]
  /** The line below the titles. */
  line: boolean
}

/** The rows of a table, without their line breaks; those of Markdown are framed. */
export function rowsOf(table: string, framed: boolean): Row[] {
  return table.split('\n').map((row) => {
    if (framed && LINE.test(row)) return { cells: [NOTHING.repeat(row.length)], line: true }
    const cells: string[] = []
    let shown = ''
    let at = 0
    for (const { 0: border, index } of row.matchAll(BORDER)) {
      if (border.includes('\\')) continue
      shown += row.slice(at, index) + NOTHING.repeat(border.length)
      at = index + border.length
      if (framed && index === 0) continue
      cells.push(shown)
      shown = ''
    }
    shown += row.slice(at)
    if (shown !== '' || cells.length === 0) cells.push(shown)
    return { cells, line: false }
  })
}

/** The widths of the columns of each block that is a part of a table; those of one table are the same. */
export function columnsOf(
  text: string,
  blocks: readonly Block[],
  document: Pick<DocumentFacts, 'kind' | 'documents'>,
): Map<number, readonly number[]> {
  const found = new Map<number, readonly number[]>()
  let table: number[] = []
  let first = -1
  const close = (end: number) => {
    const widths = first < 0 ? null : fitting(table)
    if (widths) for (let i = first; i < end; i++) found.set(i, widths)
    table = []
    first = -1
  }
  blocks.forEach((block, i) => {
    const words = text.slice(block.start, block.end)
    const kind = kindAt(document, block.start)
    // A block is of rows, or has none (`blocks.ts`), but for long lines.
    const is = !block.heading && words.split('\n').every((line) => isRow(line, kind))
    if (!is || block.gap || block.page !== null || block.document !== null) close(i)
    if (!is) return
    if (first < 0) first = i
    for (const { cells, line } of rowsOf(words, kind === 'markdown'))
      if (!line) cells.forEach((cell, c) => (table[c] = Math.max(table[c] ?? 0, lengthOf(cell))))
  })
  close(blocks.length)
  return found
}

/** Whether a line is a row of a table. */
export function isRow(line: string, kind: string): boolean {
  if (kind === 'text' || kind === 'code') return false
  return (kind === 'markdown' ? FRAMED : BARE).test(line)
}

const lengthOf = (cell: string) => cell.replaceAll(NOTHING, '').length

/** The widths with long cells in several lines, so that all fit side by side; null if they do not. */
function fitting(widths: readonly number[]): readonly number[] | null {
  for (let most = WIDEST; most >= NARROWEST; most--) {
    const cut = widths.map((width) => Math.min(width, most))
    if (widthOf(cut) <= WIDEST) return cut
  }
  return null
}

/** The width of a column of so many characters, some of which are wider than a digit. */
export const columnOf = (width: number) => width * 1.1 + 1

/** The width of a table. */
export function widthOf(widths: readonly number[]): number {
  return widths.reduce((sum, width) => sum + columnOf(width) + GAP, -GAP)
}
