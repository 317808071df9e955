/**
 * Headings written with the marks of Markdown: `## Title`. Markdown has them, and so has the text of office files, books
 * and web pages. On the page a heading is a block of its own, and its marks have no width.
 */
import type { DocumentPart } from './contract'

export interface Heading {
  start: number
  /** Where the title begins: the marks and the space after them are before it. */
  title: number
  /** The end of its title; marks may follow (`## Title ##`). */
  last: number
  /** The end of its line. */
  end: number
  /** From 1. */
  level: number
}

export interface MarkdownPart {
  start: number
  end: number
  code: boolean
}

/** Kinds of documents in which `# ` begins a line for other reasons. */
const OTHERS = new Set(['text', 'code', 'pdf'])

/** A heading, or the fence of a block of code, also of one in a list. */
const LINE = /^(?:(#{1,6})[ \t]+(?=\S)|[ \t]*(```|~~~))/gm
/** Data about a document at its beginning, as some programs write them. */
const FRONT = /^---[ \t]*\r?\n[\w-]+:[^]*?\n---[ \t]*(?:\r?\n|$)/

/** The headings of `text`, in order. */
export function headingsOf(text: string, kind: string, documents: readonly DocumentPart[] = []): Heading[] {
  const parts = documents.length > 0 ? documents : [{ kind, start: 0, end: text.length }]
  return parts.filter((part) => !OTHERS.has(part.kind)).flatMap((part) => within(text, part.start, part.end))
}

/** The parts of Markdown documents, in order: blocks of code, with their fences, and what is between them. */
export function markdownOf(text: string, kind: string, documents: readonly DocumentPart[] = []): MarkdownPart[] {
  const parts = documents.length > 0 ? documents : [{ kind, start: 0, end: text.length }]
  return parts.filter((part) => part.kind === 'markdown').flatMap((part) => partsOf(text, part.start, part.end))
}

function partsOf(text: string, start: number, end: number): MarkdownPart[] {
  const parts: MarkdownPart[] = []
  let at = start
  const close = (to: number, code: boolean) => {
    if (to > at) parts.push({ start: at, end: to, code })
    at = to
  }
  close(start + frontOf(text, start, end), true)
  let open = false
  for (const line of linesOf(text, start, end)) {
    if (line.opens) close(line.at, false)
    if (line.closes) close(text.indexOf('\n', line.at) + 1 || end, true)
    open = line.opens || (open && !line.closes)
  }
  close(end, open)
  return parts
}

function within(text: string, start: number, end: number): Heading[] {
  const headings: Heading[] = []
  for (const { at, all, marks, code } of linesOf(text, start, end)) {
    if (code || marks === undefined) continue
    const found = text.indexOf('\n', at)
    const stop = found < 0 || found > end ? end : found
    const title = at + all.length
    const last = title + text.slice(title, stop).replace(/[ \t]+#*[ \t\r]*$/, '').length
    headings.push({ start: at, title, last, end: stop, level: marks.length })
  }
  return headings
}

const frontOf = (text: string, start: number, end: number) => FRONT.exec(text.slice(start, end))?.[0].length ?? 0

/** The lines with marks: of a heading, or the fence that opens or closes a block of code; `code` is inside of one. */
function* linesOf(text: string, start: number, end: number) {
  let fence: string | null = null
  const from = start + frontOf(text, start, end)
  for (const line of text.slice(from, end).matchAll(LINE)) {
    const [all, marks, mark] = line
    const opens = mark !== undefined && fence === null
    const closes = mark !== undefined && fence === mark
    yield { at: from + line.index, all, marks, opens, closes, code: fence !== null }
    if (opens) fence = mark
    if (closes) fence = null
  }
}
