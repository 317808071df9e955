/**
 * Reflows wrapped prose for display. PDF text, and books wrapped at some column, end every line of a paragraph with a
 * line break. Such a soft break is shown as a space; the others stay. In Markdown, all breaks inside a paragraph are soft
 * (`lines.ts`). The shown text has the same length, so that offsets are the same in both.
 *
 *     the keeper counts every page twice and writes↵     soft: the next word did not fit
 *     the number in the margin.↵                         hard: the last line of a paragraph
 *     1. Keys↵                                           hard: a list
 *
 * Lengths are in columns: a Chinese or Japanese character has two.
 */
import { isSpace } from './blocks'
import type { DocumentPart } from './contract'
import type { Heading, MarkdownPart } from './headings'
import { isOneParagraph, marksOf, type Pair } from './lines'

/** The usual length of a full line, or a text whose lines may have any. */
export type Width = number | 'markdown'

/** A document, one of several, or a part of Markdown, that is wrapped prose. */
export interface Wrap {
  start: number
  end: number
  width: Width
}

/** Fewer lines (that another line follows) show no width. */
const ENOUGH = 20
const NARROWEST = 40
const WIDEST = 200
/** This share of the lines is at most as long as the width. */
const PERCENTILE = 0.9
/** Only these first characters of a document show its width. */
const FIRST = 2_000_000
/** A line is full if it and the next word have this share of the width; lines of a PDF differ by their letters. */
const FULL = 0.85
/** The same, where a sentence and perhaps a paragraph ends. */
const FULL_SENTENCE = 0.97
/** Shorter or longer lines are not of this width. */
const SHORT = 0.6
const LONG = 1.5
/** Longer words (addresses) count as this long. */
const WORD = 20
/** Wrapped prose has at least this share of full lines, */
const FULL_LINES = 0.4
/** and this share of them continues with a small letter: in German nouns have capitals, verse and lists begin with them. */
const CONTINUED = 0.3

/** Bullets, numbers and other marks of lists, headings, page numbers, quotes, tables and references. */
const MARK = new RegExp(
  [
    /^[-–—*+•·▪◦‣●○■□➢✓]\s/,
    /^\(?(?:\d{1,3}|[A-Za-z]|[ivx]{1,5}|[IVX]{1,5})[.)]\s/,
    /^\d+(?:\.\d+)+\.?\s+\p{Lu}/u,
    /^\d+$/,
    /^(?:[#>|=]|```|~~~|\[\d+\]\s)/,
    /^(?:Chapter|CHAPTER|Part|PART|Section|SECTION)\s+[\dIVXLC]+\b/,
  ]
    .map((mark) => mark.source)
    .join('|'),
  'u',
)
const SENTENCE_END = /[.!?:;…。！？：；][)\]"'”’»」』）]*$/u
const QUOTE_END = /["'”’»」』]$/
const QUOTE_START = /^["'“‘«„「『]/
/** A line that begins in the middle of a sentence; scripts without capitals always do. */
const CONTINUES = /^["'“”‘’«»(\[]*[\p{Ll}\p{Lo}]/u
const CAPITAL = /\p{Lu}/u
const NO_CAPITAL = /[\p{Ll}\p{Lo}]/u
/** Columns of a table, or of a table of contents. */
const CELLS = /\t|\S {3,}\S|\s\|\s|\.{5}|(?:\. ){5}/
/** It is only seen at the end of a line, and no space follows it. */
const SOFT_HYPHEN = 0xad

/** Kinds of documents that are not shown in a monospaced font. */
export function isProse(kind: string): boolean {
  return kind !== 'code'
}

/** The parts of `text` that are wrapped prose, in order; `markdown` are those of `markdownOf`. */
export function wrapsOf(
  text: string,
  documents: readonly DocumentPart[] = [],
  markdown: readonly MarkdownPart[] = [],
): Wrap[] {
  const parts = documents.length > 0 ? documents : [{ kind: 'text', start: 0, end: text.length }]
  return parts.flatMap(({ kind, start, end }): Wrap[] => {
    if (!isProse(kind)) return []
    const inside = markdown.filter((part) => part.start >= start && part.end <= end)
    if (inside.length > 0)
      return inside.filter(({ code }) => !code).map(({ start, end }) => ({ start, end, width: 'markdown' }))
    const width = widthOf(text, start, end)
    return width === null ? [] : [{ start, end, width }]
  })
}

/** The width of the wrap that contains `offset`; null if none does. */
export function widthAt(wraps: readonly Wrap[], offset: number): Width | null {
  return wraps.find((wrap) => offset >= wrap.start && offset < wrap.end)?.width ?? null
}

/** Whether the break before the line at `next` is soft. */
export function isSoftAt(text: string, wraps: readonly Wrap[], next: number): boolean {
  const width = widthAt(wraps, next)
  if (width === null || next === 0) return false
  const start = text.lastIndexOf('\n', next - 2) + 1
  const stop = text.indexOf('\n', next)
  let soft = false
  eachBreak(text, start, stop < 0 ? text.length : stop, (pair) => (soft = isSoft(text, pair, width)))
  return soft
}

/** The text from `start` to `end` as shown, of the same length; `looks` is the same with marks that have no width. */
export function shown(
  text: string,
  start: number,
  end: number,
  width: Width | null,
  looks = text.slice(start, end),
): string {
  const block = text.slice(start, end)
  if (width === null) return looks
  let result = ''
  let at = 0
  eachBreak(block, 0, block.length, (pair) => {
    if (!isSoft(block, pair, width)) return
    // One space, and no width for the rest: a carriage return, spaces at the end of the line, the marks of a quote.
    const begin = width === 'markdown' ? pair.next + marksOf(block, pair) : pair.next
    const space = joins(block, pair.end, begin) ? '\u200b' : ' '
    result += looks.slice(at, pair.end) + space + '\u200b'.repeat(begin - pair.end - 1)
    at = begin
  })
  return result + looks.slice(at)
}

/** A heading as shown, of the same length: its marks have no width. */
export function shownHeading(text: string, { start, title, last, end }: Heading): string {
  return '\u200b'.repeat(title - start) + text.slice(title, last) + '\u200b'.repeat(end - last)
}

/** Calls `visit` for every line that another one follows. The pair is reused. */
function eachBreak(text: string, from: number, to: number, visit: (pair: Pair) => void): void {
  const pair: Pair = { start: 0, end: 0, next: from, nextEnd: from }
  for (let line = from; line < to;) {
    const found = text.indexOf('\n', line)
    const stop = found < 0 || found >= to ? to : found
    pair.start = pair.next
    pair.end = pair.nextEnd
    pair.next = line
    pair.nextEnd = stop
    while (pair.nextEnd > line && isSpace(text.charCodeAt(pair.nextEnd - 1))) pair.nextEnd--
    if (pair.end > pair.start && pair.nextEnd > line) visit(pair)
    line = stop + 1
  }
}

/** The width of wrapped prose between `from` and `end`; null for any other text. */
function widthOf(text: string, from: number, end: number): number | null {
  const to = Math.min(end, from + FIRST)
  const lengths = new Uint32Array(WIDEST + 2)
  let lines = 0
  eachBreak(text, from, to, ({ start, end }) => {
    const length = columns(text, start, end, WIDEST + 1)
    lengths[length]!++
    lines++
  })
  if (lines < ENOUGH) return null
  let width = 0
  for (let sum = lengths[0]!; sum < lines * PERCENTILE; sum += lengths[width]!) width++
  if (width < NARROWEST || width > WIDEST) return null

  let full = 0
  let continued = 0
  eachBreak(text, from, to, (pair) => {
    if (!isFull(text, pair, width, FULL)) return
    full++
    if (isSoft(text, pair, width) && CONTINUES.test(head(text, pair))) continued++
  })
  return full >= lines * FULL_LINES && continued >= full * CONTINUED ? width : null
}

/** Whether the break between two lines is only there because the next word did not fit. */
function isSoft(text: string, pair: Pair, width: Width): boolean {
  if (width === 'markdown') return isOneParagraph(text, pair)
  if (isSpace(text.charCodeAt(pair.next))) return false
  if (!isFull(text, pair, width, FULL)) return false
  const next = head(text, pair)
  if (MARK.test(next)) return false
  const line = text.slice(pair.start, pair.end)
  // One word, or a row of data.
  if (!line.includes(' ') && !isUnspaced(text.charCodeAt(pair.end - 1))) return false
  if (CELLS.test(line) || CELLS.test(next)) return false
  if (CONTINUES.test(next) && !SENTENCE_END.test(line)) return true
  if (isCapitals(line) || isCapitals(next)) return false
  // Someone else speaks.
  if (QUOTE_END.test(line) && QUOTE_START.test(next)) return false
  return !SENTENCE_END.test(line) || isFull(text, pair, width, FULL_SENTENCE)
}

/** Whether the first word of the next line would not fit on the line. */
function isFull(text: string, { start, end, next, nextEnd }: Pair, width: number, share: number): boolean {
  const length = columns(text, start, end, width * LONG + 1)
  if (length < width * SHORT || length > width * LONG) return false
  let word = next
  while (word < nextEnd && word - next < WORD && !isSpace(text.charCodeAt(word))) {
    if (isWide(text.charCodeAt(word++))) break
  }
  return length + 1 + columns(text, next, word, WORD) >= width * share
}

/** The next line, or as much of it as matters. */
function head(text: string, { next, nextEnd }: Pair): string {
  return text.slice(next, Math.min(nextEnd, next + WIDEST))
}

/** Whether all letters are capitals, as in a heading. */
function isCapitals(line: string): boolean {
  return CAPITAL.test(line) && !NO_CAPITAL.test(line)
}

/** Columns between `from` and `to`, counted up to `most`. */
function columns(text: string, from: number, to: number, most: number): number {
  let found = 0
  for (let i = from; i < to && found < most; i++) found += isWide(text.charCodeAt(i)) ? 2 : 1
  return Math.min(found, most)
}

/** Chinese, Japanese, Korean and full-width characters. */
function isWide(code: number): boolean {
  return (code >= 0x2e80 && code < 0xd800) || (code >= 0xf900 && code < 0xfb00) || (code >= 0xff00 && code < 0xff61)
}

/** Whether no space belongs between the lines. */
function joins(text: string, end: number, next: number): boolean {
  const last = text.charCodeAt(end - 1)
  return last === SOFT_HYPHEN || (isUnspaced(last) && isUnspaced(text.charCodeAt(next)))
}

/** A wide character, except Korean ones, which have spaces. */
function isUnspaced(code: number): boolean {
  return isWide(code) && !(code >= 0xac00 && code < 0xd800)
}
