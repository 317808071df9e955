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

/** Kinds of documents in which `# ` begins a line for other reasons. */
const OTHERS = new Set(['text', 'code', 'pdf'])

/** A heading, or the fence of a block of code. */
const LINE = /^(?:(#{1,6})[ \t]+(?=\S)|[ ]{0,3}(```|~~~))/gm

/** The headings of `text`, in order. */
export function headingsOf(text: string, kind: string, documents: readonly DocumentPart[] = []): Heading[] {
  const parts = documents.length > 0 ? documents : [{ kind, start: 0, end: text.length }]
  return parts.filter((part) => !OTHERS.has(part.kind)).flatMap((part) => within(text, part.start, part.end))
}

function within(text: string, start: number, end: number): Heading[] {
  const headings: Heading[] = []
  let fence: string | null = null
  for (const line of text.slice(start, end).matchAll(LINE)) {
    const [all, marks, opens] = line
    const at = start + line.index
    if (opens !== undefined) {
      if (fence === null) fence = opens
      else if (fence === opens) fence = null
    } else if (fence === null && marks !== undefined) {
      const found = text.indexOf('\n', at)
      const stop = found < 0 || found > end ? end : found
      const title = at + all.length
      const last = title + text.slice(title, stop).replace(/[ \t]+#*[ \t\r]*$/, '').length
      headings.push({ start: at, title, last, end: stop, level: marks.length })
    }
  }
  return headings
}
