/**
 * Finding words in the document: all matches at once, one of them the current. Case is ignored, any white space
 * matches any other, so that a match may span a line break, and what is plain on a keyboard matches its other forms: a
 * letter those with accents, a quote or hyphen the typographic ones. Offsets are those of the text; the text is not in reactive
 * state.
 */
import type { FoundPiece } from './contract'
import { firstAbove } from './runs'

export interface Found {
  start: number
  end: number
  current: boolean
}

/** The other forms of a character that is plain on a keyboard. */
const FORMS: Record<string, string> = (() => {
  const forms: Record<string, string> = { "'": '’‘‚', '"': '“”„«»', '-': '‐‑–—' }
  const latin = [...Array(0x190).keys()].map((i) => 0xc0 + i).concat([...Array(0x100).keys()].map((i) => 0x1e00 + i))
  for (const code of latin) {
    const letter = String.fromCodePoint(code)
    const [plain, ...marks] = letter.normalize('NFD')
    if (marks.length > 0 && plain !== undefined) forms[plain] = (forms[plain] ?? '') + letter
  }
  return forms
})()

/** A pattern for one character of a query. */
function patternOf(character: string): string {
  const escaped = character.replace(/[.*+?^${}()|[\]\\/-]/, '\\$&')
  const forms = FORMS[character]
  // A letter may be followed by an accent of its own.
  return forms === undefined ? escaped : `[${escaped}${forms}]\\p{M}*`
}

/** Maximum number of matches listed. */
export const MOST_PLACES = 100_000

/** The matches of `query` in `text`, ascending: starts and ends. */
export function placesOf(text: string, query: string, most = MOST_PLACES): { starts: number[]; ends: number[] } {
  const starts: number[] = []
  const ends: number[] = []
  const words = query.trim().split(/\s+/)
  if (words[0] === '') return { starts, ends }
  const pattern = words.map((word) => [...word].map(patternOf).join('')).join('\\s+')
  for (const match of text.matchAll(new RegExp(pattern, 'giu'))) {
    starts.push(match.index)
    ends.push(match.index + match[0].length)
    if (starts.length >= most) break
  }
  return { starts, ends }
}

export class Find {
  open = $state(false)
  query = $state('')
  /** Index of the current match, from 0; -1 without any. */
  index = $state(-1)
  #places = $state.raw<{ starts: number[]; ends: number[] }>({ starts: [], ends: [] })

  get count(): number {
    return this.#places.starts.length
  }

  get current(): { start: number; end: number } | null {
    const { starts, ends } = this.#places
    return this.index < 0 ? null : { start: starts[this.index]!, end: ends[this.index]! }
  }

  /** Searches for `query` in `text`; the current match is the first at or after `from`, or else the first of all. */
  search(text: string, query: string, from: number): void {
    this.query = query
    this.#places = placesOf(text, query)
    const at = firstAbove(this.#places.starts, from - 1)
    this.index = this.count === 0 ? -1 : at % this.count
  }

  /** Searches for the first hit of a found passage; the current match is the one in the passage. */
  searchPassage(text: string, pieces: readonly FoundPiece[]): void {
    const passage = pieces.map((piece) => piece.text).join('')
    // It was cut out of the text: an ellipsis at an end is not part of it.
    const from = placesOf(text, passage.replace(/^…|…$/g, ''), 1).starts[0] ?? 0
    this.search(text, pieces.find((piece) => piece.hit)?.text ?? '', from)
  }

  /** Moves by `step` matches, with wrap-around. */
  go(step: number): void {
    if (this.count > 0) this.index = (this.index + step + this.count) % this.count
  }

  /** The matches that overlap `start` to `end`. */
  within(start: number, end: number): Found[] {
    if (!this.open || this.count === 0) return []
    const { starts, ends } = this.#places
    const found: Found[] = []
    for (let i = firstAbove(ends, start); i < starts.length && starts[i]! < end; i++) {
      found.push({ start: starts[i]!, end: ends[i]!, current: i === this.index })
    }
    return found
  }

  /** Ends the search. */
  close(): void {
    this.open = false
    this.index = -1
    this.#places = { starts: [], ends: [] }
  }
}
