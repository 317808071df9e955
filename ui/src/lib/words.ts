/**
 * Marks snap to words: all tokens of a word have the count of its strongest one, so that a word is one piece of paint.
 * Punctuation is not part of a word, since methods keep it for its own sake; behind a word it is as strong at least.
 * Text without spaces between words (Chinese, Japanese, Thai) stays as its tokens are.
 *
 *     text     v o l u n t e e r s .
 *     tokens   v o l u n t e|e r s|.
 *     counts         3        9    1
 *     snapped        9        9    9
 */
import { isSpace } from './blocks'
import type { Tokens } from './runs'

const LETTER = /[\p{L}\p{N}\p{M}_]/u
const UNSPACED = /[\p{sc=Han}\p{sc=Hira}\p{sc=Kana}\p{sc=Thai}\p{sc=Laoo}\p{sc=Khmr}\p{sc=Mymr}\p{sc=Tibt}]/u
/** Between two letters they are part of the word; a point and a comma only between digits. */
const JOINS = "'’-‐‑·&@"
const JOINS_DIGITS = '.,:/'
/** Behind a word, without a space. */
const CLOSES = '.,;:!?)]}"\'”’»…%'

const isAscii = (code: number) =>
  (code >= 48 && code <= 57) || (code >= 97 && code <= 122) || (code >= 65 && code <= 90)
const isDigit = (code: number) => code >= 48 && code <= 57

/** Whether the character that contains the UTF-16 unit at `at` is of a word with others beside it. */
function isLetter(text: string, at: number): boolean {
  const code = text.charCodeAt(at)
  if (code < 128) return isAscii(code) || code === 95
  if (Number.isNaN(code)) return false
  const low = code >= 0xdc00 && code <= 0xdfff
  const character = String.fromCodePoint(text.codePointAt(low ? at - 1 : at) ?? 0)
  return LETTER.test(character) && !UNSPACED.test(character)
}

/** Whether the sign at `at` joins the letters on both sides to one word. */
function joins(text: string, at: number): boolean {
  const sign = text[at]
  if (sign === undefined) return false
  if (JOINS_DIGITS.includes(sign)) return isDigit(text.charCodeAt(at - 1)) && isDigit(text.charCodeAt(at + 1))
  return JOINS.includes(sign) && isLetter(text, at - 1) && isLetter(text, at + 1)
}

/** Whether a word continues across the border before `at`. */
export function isInside(text: string, at: number): boolean {
  if (at <= 0 || at >= text.length) return false
  // Most tokens begin with a space.
  if (isSpace(text.charCodeAt(at)) || isSpace(text.charCodeAt(at - 1))) return false
  if (isLetter(text, at - 1)) return isLetter(text, at) || joins(text, at)
  return isLetter(text, at) && joins(text, at - 1)
}

/** The words of a text: one past the last token of each, and whether it closes the word before it. */
interface Words {
  text: string
  stops: Uint32Array
  closes: Uint8Array
}

const words = new WeakMap<Uint32Array, Words>()

/** The words that the tokens with these ends make; the same result while both are the same. */
function wordsOf(text: string, ends: Uint32Array): Words {
  const known = words.get(ends)
  if (known?.text === text) return known
  const stops: number[] = []
  const closes: number[] = []
  let before = 0
  for (let i = 0; i < ends.length; i++) {
    const end = ends[i]!
    const start = i > 0 ? ends[i - 1]! : 0
    // A piece of a character that the next token completes, or of a word that goes on.
    if (i + 1 < ends.length && (end === start || isInside(text, end))) continue
    closes.push(Number(stops.length > 0 && closing(text, before, end)))
    stops.push(i + 1)
    before = end
  }
  const found = { text, stops: Uint32Array.from(stops), closes: Uint8Array.from(closes) }
  words.set(ends, found)
  return found
}

/** The counts of `tokens` with every word as strong as its strongest token. */
export function snap(text: string, { ends, counts }: Tokens): Uint16Array {
  const { stops, closes } = wordsOf(text, ends)
  const snapped = new Uint16Array(counts.length)
  let [first, before] = [0, 0]
  for (let word = 0; word < stops.length; word++) {
    const stop = stops[word]!
    let most = closes[word] === 1 ? before : 0
    for (let i = first; i < stop; i++) if (counts[i]! > most) most = counts[i]!
    for (let i = first; i < stop; i++) snapped[i] = most
    first = stop
    before = most
  }
  return snapped
}

/** Whether all of `from..to` closes what is before it; white space at its end (a line break) does not count. */
function closing(text: string, from: number, to: number): boolean {
  const first = text.charCodeAt(from)
  if (first === 32 || isAscii(first) || !CLOSES.includes(text[from] ?? ' ') || isSpace(text.charCodeAt(from - 1)))
    return false
  for (let at = from + 1; at < to; at++) if (!CLOSES.includes(text[at]!) && !isSpace(text.charCodeAt(at))) return false
  return true
}

const known = new WeakMap<Tokens, { text: string; tokens: Tokens }>()

/** `tokens` snapped to the words of `text`; the same result while both are the same. */
export function snapped<T extends Tokens>(text: string, tokens: T): Tokens {
  const found = known.get(tokens)
  if (found?.text === text) return found.tokens
  const result = { ends: tokens.ends, counts: snap(text, tokens), slots: tokens.slots }
  known.set(tokens, { text, tokens: result })
  return result
}

/** The tokens of the word that contains `token`: the first, one past the last, and the strongest. */
export function wordAt(
  text: string,
  { ends, counts }: Tokens,
  token: number,
): { first: number; end: number; strongest: number } {
  const joined = (i: number) => ends[i] === (i > 0 ? ends[i - 1]! : 0) || isInside(text, ends[i]!)
  let first = token
  while (first > 0 && joined(first - 1)) first--
  let end = token + 1
  while (end < ends.length && joined(end - 1)) end++
  let strongest = token
  for (let i = first; i < end; i++) if (counts[i]! > counts[strongest]!) strongest = i
  return { first, end, strongest }
}
