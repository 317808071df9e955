/**
 * Splits a document's text into blocks that are rendered one by one: headings, and paragraphs of at most about 2,000
 * characters, or twice that where a block would otherwise end at a soft line break (`reflow.ts`).
 * Independent of tokens and pixels. Every offset is a UTF-16 index into the text; blocks ascend and never overlap.
 */
import type { DocumentFacts, DocumentPart, PageRange } from './contract'
import type { Heading } from './headings'

export interface Block {
  start: number
  /** Excludes the line break that ends the block. */
  end: number
  /** The number of the page that begins with this block, for its heading; null otherwise. */
  page: number | null
  /** The name of the document that begins with this block, for its heading, if there are several documents. */
  document: string | null
  /** Whether an empty line precedes this block. */
  gap: boolean
  /** The heading that it is, if it is one. */
  heading?: Heading
}

const MAXIMUM = 2000

/**
 * The blocks of `text`. Characters between blocks are white space only. `isSoft` tells whether the break before the line
 * at an offset is soft, and `groupOf` what a line is in, such as a table or a block of code: each has blocks of its own.
 */
export function blocksOf(
  text: string,
  pages: readonly PageRange[],
  documents: readonly DocumentPart[] = [],
  maximum = MAXIMUM,
  isSoft: (line: number) => boolean = () => false,
  headings: readonly Heading[] = [],
  groupOf: (line: number, end: number) => unknown = () => null,
): Block[] {
  const blocks: Block[] = []
  const titles = new Map(headings.map((heading) => [heading.start, heading]))
  // A block begins at the start of every page and document, and ends with its document; text between documents has
  // blocks of its own.
  const edges: { start: number; page: number | null; document: string | null }[] = []
  const known = new Map<number, (typeof edges)[number]>()
  const edge = (start: number) => {
    const found = known.get(start) ?? { start, page: null, document: null }
    if (!known.has(start)) edges.push(found)
    known.set(start, found)
    return found
  }
  if (documents.length > 0 || (pages[0]?.start ?? 1) > 0) edge(0)
  for (const { name, start, end } of documents) {
    edge(start).document = name
    if (end < text.length) edge(end)
  }
  if (documents.length === 0) {
    for (const { number, start } of pages) edges.push({ start, page: number, document: null })
  } else {
    for (const { number, start } of pages) edge(start).page = number
    edges.sort((a, b) => a.start - b.start)
  }
  edges.forEach(({ start, page, document }, i) => {
    const end = edges[i + 1]?.start ?? text.length
    const before = blocks.length
    cut(text, start, Math.max(start, end), page, maximum, isSoft, groupOf, titles, blocks)
    const first = blocks[before]
    if (first) first.document = document
  })
  return blocks
}

/** The block or page that contains `offset`, or the nearest one before it; 0 without any. */
export function blockAt(blocks: readonly { start: number }[], offset: number): number {
  let low = 0
  let high = blocks.length - 1
  while (low < high) {
    const middle = (low + high + 1) >> 1
    if (blocks[middle]!.start <= offset) low = middle
    else high = middle - 1
  }
  return low
}

/** The page that contains `offset`; null for a document without pages. */
export function pageAt(pages: readonly PageRange[], offset: number): number | null {
  const page = pages[blockAt(pages, offset)]
  return page && page.start <= offset ? page.number : null
}

/** Those of `documents` that lie after everything that a map covers: they were added after its question. */
export function addedLater(documents: readonly DocumentPart[], ends: Uint32Array | undefined): DocumentPart[] {
  const last = ends?.at(-1)
  return last === undefined ? [] : documents.filter((part) => part.start >= last)
}

/** The document that contains `offset`, if there are several. */
export function partAt(documents: readonly DocumentPart[], offset: number): DocumentPart | null {
  return documents.find((part) => offset >= part.start && offset < part.end) ?? null
}

/** The kind of the document, or of that of several documents which contains the offset. */
export function kindAt({ kind, documents }: Pick<DocumentFacts, 'kind' | 'documents'>, offset: number): string {
  return partAt(documents, offset)?.kind ?? kind
}

/** `page 3`, or `slide 3`: what a page of `document` is called. */
export function pageName(document: { pageNoun: string } | null, page: number): string {
  return `${document?.pageNoun ?? 'page'} ${page}`
}

/** The page of `document` that contains `offset`; with several documents, of the one that contains it. */
export function pageOf(
  document: { pages: readonly PageRange[]; documents: readonly DocumentPart[] } | null,
  offset: number,
): number | null {
  if (document === null) return null
  const { pages, documents } = document
  if (documents.length === 0) return pageAt(pages, offset)
  const part = partAt(documents, offset)
  if (part === null || part.pages === 0) return null
  return pageAt(pages, offset)
}

function cut(
  text: string,
  from: number,
  to: number,
  page: number | null,
  maximum: number,
  isSoft: (line: number) => boolean,
  groupOf: (line: number, end: number) => unknown,
  titles: ReadonlyMap<number, Heading>,
  blocks: Block[],
) {
  const before = blocks.length
  let heading = page
  let gap = false
  let start = -1
  let end = from
  /** What the lines since `start` are in. */
  let group: unknown = null

  const close = () => {
    if (start < 0) return
    blocks.push({ start, end, page: heading, document: null, gap: gap && blocks.length > 0 })
    heading = null
    gap = false
    start = -1
  }

  for (let line = from; line < to;) {
    const found = text.indexOf('\n', line)
    const stop = found < 0 || found >= to ? to : found
    const next = Math.min(to, stop + 1)
    const title = titles.get(line)
    if (title && stop - line <= maximum) {
      close()
      ;[start, end] = [line, stop]
      close()
      blocks[blocks.length - 1]!.heading = title
    } else if (blank(text, line, stop)) {
      close()
      gap = true
    } else if (stop - line > maximum) {
      close()
      // One long line: split at white space. The last piece may be extended by the lines after it.
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
      const here = groupOf(line, stop)
      if (start >= 0 && here !== group) close()
      group = here
      const long = start >= 0 && stop - start > maximum
      if (long && (stop - start > 2 * maximum || !isSoft(line))) close()
      if (start < 0) start = line
      end = stop
    }
    line = next
  }
  close()
  // A page without text still has its heading.
  if (blocks.length === before && page !== null)
    blocks.push({ start: from, end: from, page, document: null, gap: false })
}

function blank(text: string, from: number, to: number): boolean {
  for (let i = from; i < to; i++) if (!isSpace(text.charCodeAt(i))) return false
  return true
}

/** Whether a UTF-16 unit is white space. */
export function isSpace(code: number): boolean {
  return code === 32 || (code >= 9 && code <= 13) || code === 0xa0 || code === 0x3000 || code === 0xfeff
}

/**
 * The last position in the second half of `from..limit` where a line may break; `limit` itself (never inside a
 * surrogate pair) if none.
 */
function breakBefore(text: string, from: number, limit: number): number {
  const least = from + ((limit - from) >> 1)
  for (let i = limit; i > least; i--) if (isSpace(text.charCodeAt(i - 1))) return i
  const code = text.charCodeAt(limit)
  return code >= 0xdc00 && code <= 0xdfff ? limit - 1 : limit
}
