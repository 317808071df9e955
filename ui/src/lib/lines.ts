/**
 * The marks of Markdown at the beginnings of lines: fences, bullets, boxes to tick, quotes. As shown they have the same
 * length (`inline.ts`).
 */
import type { MarkdownPart } from './headings'

/** What a block of Markdown is: only text has marks inside its lines. */
export type Shape = 'text' | 'code' | 'table' | 'quote'

/** Its width is zero. */
const NOTHING = '\u200b'
const ROWS = /^(?:\|[^\n]*(?:\n|$))+$/
const QUOTE = /^(?: {0,3}>[^\n]*(?:\n|$))+$/
const INDENTED = /^(?:(?: {4}|\t)[^\n]*(?:\n|$))+$/
const ITEM = /^[ \t]*(?:[-*+]|\d{1,9}[.)])[ \t]/

/** How far above a block the item is looked for that it may belong to. */
const FAR = 4000

const hidden = (words: string) => NOTHING.repeat(words.length)

/** What the block of `text` from `start` to `end` in `part` is. */
export function shapeOf(text: string, start: number, end: number, part: MarkdownPart): Shape {
  const words = text.slice(start, end)
  if (part.code) return 'code'
  if (ROWS.test(words)) return 'table'
  if (QUOTE.test(words)) return 'quote'
  if (!INDENTED.test(words)) return 'text'
  // Below an item of a list, indented lines belong to it.
  const above = text.slice(Math.max(part.start, start - FAR), start).split('\n')
  const last = above.findLast((line) => /^\S/.test(line))
  return last !== undefined && ITEM.test(last) ? 'text' : 'code'
}

/** The block of `text` from `start` to `end`, a block of `shape` in `part`, without the marks of its lines. */
export function withoutLineMarks(words: string, start: number, end: number, shape: Shape, part: MarkdownPart): string {
  switch (shape) {
    case 'code': {
      if (!part.code) return words
      const opened = start <= part.start ? words.replace(/^ {0,3}(?:```|~~~)[^\n]*(?:\n|$)/, hidden) : words
      return end >= part.end - 1 ? opened.replace(/(?:\n|^) {0,3}(?:```|~~~)\s*$/, hidden) : opened
    }
    case 'table':
      return words
    case 'quote':
      return words.replace(/^(?: {0,3}> ?)+/gm, hidden)
    case 'text':
      return words.replace(/^([ \t]*)[-*+] (\[[ xX]\] )?/gm, (mark, indent: string, box: string | undefined) => {
        const sign = box === undefined ? '\u2022' : box[1] === ' ' ? '\u2610' : '\u2611'
        return `${indent}${sign} ${NOTHING.repeat(mark.length - indent.length - 2)}`
      })
  }
}
