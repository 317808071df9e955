/**
 * The marks of Markdown at the beginnings of lines: fences, bullets, boxes to tick, quotes; and which lines are one
 * paragraph. As shown they have the same length (`inline.ts`).
 */
import type { MarkdownPart } from './headings'

/** Two lines without a blank line between them. White space at the end of a line is not part of it. */
export interface Pair {
  start: number
  end: number
  /** Start of the next line, including its indentation. */
  next: number
  nextEnd: number
}

/** What a block of Markdown is: only text has marks inside its lines. */
export type Shape = 'text' | 'code' | 'table' | 'quote'

/** Its width is zero. */
const NOTHING = '\u200b'
const ROWS = /^(?:\|[^\n]*(?:\n|$))+$/
const QUOTE = /^(?: {0,3}>[^\n]*(?:\n|$))+$/
const INDENTED = /^(?:(?: {4}|\t)[^\n]*(?:\n|$))+$/
const ITEM = /^[ \t]*(?:[-*+]|\d{1,9}[.)])[ \t]/

/** The two ways to break a line inside a paragraph. */
const BROKEN = /(?: {2}|\\)\r?$/
/** The marks of quotes before a line, and its indentation. */
const BEFORE = /^(?:[ \t]*>)*[ \t]*/
/** A line of its own: below a title, across the page, a fence or a heading in a quote, HTML, cells. */
const ALONE = /^(?:(?:=+|-+|(?:[-_*][ \t]*){3,}|\[!\w+\])$|```|~~~|#{1,6}\s|<(?:\/?[a-z][a-z\d-]*[\s/>]|!))|\|/i
/** The first line of an item, or of the definition of a link. */
const BEGINS = /^(?:[-*+](?:\s|$)|\[[^\]]+\]:)/
const NUMBER = /^[ \t>]*(\d{1,9})[.)](?:\s|$)/m
/** Code below an item of a list. */
const DEEP = /^(?: {6}|\t\t)/
const FENCES = /^[ \t>]*(?:```|~~~)/gm

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

/** Whether two lines of Markdown are of one paragraph: the break between them is not shown. */
export function isOneParagraph(text: string, pair: Pair): boolean {
  const { start, end, next, nextEnd } = pair
  if (BROKEN.test(text.slice(start, next - 1))) return false
  const [first, second] = [text.slice(start, end), text.slice(next, nextEnd)]
  if (DEEP.test(first) && DEEP.test(second)) return false
  const [before, below] = [first, second].map((line) => BEFORE.exec(line)![0])
  const depth = (marks = '') => marks.replace(/[^>]/g, '').length
  if (depth(before) !== depth(below)) return false
  const [one, other] = [first.slice(before!.length), second.slice(below!.length)]
  if (one === '' || other === '' || ALONE.test(one) || ALONE.test(other) || BEGINS.test(other)) return false
  const number = NUMBER.exec(other)
  if (depth(before) === 0 && !number) return true
  const above = text.slice(Math.max(0, start - FAR), next)
  const block = above.slice(above.lastIndexOf('\n\n') + 1)
  if ((block.match(FENCES)?.length ?? 0) % 2 === 1) return false
  // Inside a paragraph, a list begins with 1.
  const list = NUMBER.exec(block)
  return !number || (number[1] !== '1' && list?.[1] !== '1' && (list?.index ?? 2) > 1)
}

/** How long the marks and the indentation of the second line are. */
export function marksOf(text: string, { next, nextEnd }: Pair): number {
  return BEFORE.exec(text.slice(next, nextEnd))![0].length
}

/** The block of `text` from `start` to `end`, a block of `shape` in `part`, without the marks of its lines. */
export function withoutLineMarks(words: string, start: number, end: number, shape: Shape, part: MarkdownPart): string {
  switch (shape) {
    case 'code': {
      if (!part.code) return words
      const opened = start <= part.start ? words.replace(/^[ \t]*(?:```|~~~)[^\n]*(?:\n|$)/, hidden) : words
      return end >= part.end - 1 ? opened.replace(/(?:\n|^)[ \t]*(?:```|~~~)\s*$/, hidden) : opened
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
