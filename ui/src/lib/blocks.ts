/**
 * Cuts a document's text into the blocks that are drawn one by one: paragraphs, at most about 2,000 characters each.
 * Knows nothing of tokens or pixels. Every offset is a UTF-16 index into the text; blocks ascend and never overlap.
 */
import type { PageRange } from './contract'

export interface Block {
  start: number
  /** The line break that ends the block is not part of it. */
  end: number
  /** The number of the page that begins with this block, for its heading; null otherwise. */
  page: number | null
  /** An empty line stands before this block. */
  gap: boolean
}

const MAXIMUM = 2000

/** The blocks of `text`. Characters between blocks are white space only. */
export function blocksOf(text: string, pages: readonly PageRange[], maximum = MAXIMUM): Block[] {
  const blocks: Block[] = []
  const first = pages[0]?.start ?? text.length
  if (first > 0) cut(text, 0, first, null, maximum, blocks)
  pages.forEach((page, i) => {
    const end = pages[i + 1]?.start ?? text.length
    cut(text, page.start, Math.max(page.start, end), page.number, maximum, blocks)
  })
  return blocks
}

/** The block that holds `offset`, or the nearest one before it; 0 when there are none. */
export function blockAt(blocks: readonly Block[], offset: number): number {
  let low = 0
  let high = blocks.length - 1
  while (low < high) {
    const middle = (low + high + 1) >> 1
    if (blocks[middle]!.start <= offset) low = middle
    else high = middle - 1
  }
  return low
}

/** The page that holds `offset`; null for a document without pages. */
export function pageAt(pages: readonly PageRange[], offset: number): number | null {
  let found: number | null = null
  let low = 0
  let high = pages.length - 1
  while (low <= high) {
    const middle = (low + high) >> 1
    const page = pages[middle]!
    if (page.start <= offset) {
      found = page.number
      low = middle + 1
    } else high = middle - 1
  }
  return found
}

function cut(text: string, from: number, to: number, page: number | null, maximum: number, blocks: Block[]) {
  const before = blocks.length
  let heading = page
  let gap = false
  let start = -1
  let end = from

  const close = () => {
    if (start < 0) return
    blocks.push({ start, end, page: heading, gap: gap && blocks.length > 0 })
    heading = null
    gap = false
    start = -1
  }

  for (let line = from; line < to;) {
    const found = text.indexOf('\n', line)
    const stop = found < 0 || found >= to ? to : found
    const next = Math.min(to, stop + 1)
    if (blank(text, line, stop)) {
      close()
      gap = true
    } else if (stop - line > maximum) {
      close()
      // One long line: pieces at white space. The last piece may grow by the lines after it.
      let piece = line
      while (stop - piece > maximum) {
        start = piece
        end = breakBefore(text, piece, piece + maximum)
        piece = end
        close()
      }
      start = piece
      end = stop
    } else {
      if (start >= 0 && stop - start > maximum) close()
      if (start < 0) start = line
      end = stop
    }
    line = next
  }
  close()
  // A page without text keeps its heading.
  if (blocks.length === before && page !== null) blocks.push({ start: from, end: from, page, gap: false })
}

function blank(text: string, from: number, to: number): boolean {
  for (let i = from; i < to; i++) if (!isSpace(text.charCodeAt(i))) return false
  return true
}

/** White space, as UTF-16 unit. */
export function isSpace(code: number): boolean {
  return code === 32 || (code >= 9 && code <= 13) || code === 0xa0 || code === 0x3000 || code === 0xfeff
}

/** The last place in the second half of `from..limit` where a line may end; `limit` itself (never inside a surrogate pair) if none. */
function breakBefore(text: string, from: number, limit: number): number {
  const least = from + ((limit - from) >> 1)
  for (let i = limit; i > least; i--) if (isSpace(text.charCodeAt(i - 1))) return i
  const code = text.charCodeAt(limit)
  return code >= 0xdc00 && code <= 0xdfff ? limit - 1 : limit
}
