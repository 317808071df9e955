/**
 * What the words of an answer looked at in the document: the words of the document that got more attention from them than
 * from the rest of the answer.
 */
import type { Attended } from './contract'
import type { Tokens } from './runs'
import { wordAt } from './words'

/** A word of the document, and how much attention it got: 0 to 1. */
export interface Glow {
  start: number
  end: number
  weight: number
}

/** Entries of the map with weights up to 255. */
export type Cells = readonly (readonly [number, number])[]

/** Share of the earlier attention that is left with every further piece of an answer that is written. */
const FADES = 0.75
/** Less than this share of the most attention is forgotten. */
const LEAST = 0.1

/** The words of `text` that contain the entries, each with its strongest one, the strongest first. */
export function glowOf(cells: Cells, text: string, tokens: Tokens): Glow[] {
  const found = new Map<number, Glow>()
  for (const [cell, weight] of cells) {
    if (cell >= tokens.ends.length) continue
    const word = wordAt(text, tokens, cell)
    let start = word.first > 0 ? tokens.ends[word.first - 1]! : 0
    const piece = text.slice(start, tokens.ends[word.end - 1]!)
    start += piece.length - piece.trimStart().length
    const end = start + piece.trim().length
    const known = found.get(start)
    if (end > start && (known === undefined || known.weight < weight / 255))
      found.set(start, { start, end, weight: weight / 255 })
  }
  return [...found.values()].sort((a, b) => b.weight - a.weight)
}

/** The entries that the tokens of `from..to` of an answer of `length` looked at. */
export function cellsOf(attended: readonly Attended[], from: number, to: number, length: number): Cells {
  const ends = (i: number) => attended[i + 1]?.said ?? length
  return attended.flatMap(({ said, cells }, i) => (said < to && ends(i) > from ? cells : []))
}

/** The words of an answer that looked at one of the entries `first..end`, each once, in order. */
export function lookersOf(attended: readonly Attended[], answer: string, first: number, end: number): string[] {
  const words = wordsIn(answer)
  const looked = attended.flatMap(({ said, cells }, i) => {
    if (!cells.some(([cell]) => cell >= first && cell < end)) return []
    const to = attended[i + 1]?.said ?? answer.length
    return words.filter((word) => word.start < to && word.end > said).map((word) => word.text)
  })
  return [...new Set(looked)]
}

let segmenter: Intl.Segmenter | null = null

/** The words of a text, in any language. */
export function wordsIn(text: string): { start: number; end: number; text: string }[] {
  segmenter ??= new Intl.Segmenter(undefined, { granularity: 'word' })
  // For WebKit a number is not like a word.
  return [...segmenter.segment(text)]
    .filter(({ segment }) => /[\p{L}\p{N}]/u.test(segment))
    .map(({ index, segment }) => ({ start: index, end: index + segment.length, text: segment }))
}

/** A word in a text node of a rendered answer. */
export interface Rendered {
  node: Text
  start: number
  end: number
  /** Offset in the answer's Markdown. */
  from: number
}

/** The words of an answer rendered from `answer`, without those of buttons. */
export function renderedWords(root: DocumentFragment, answer: string): Rendered[] {
  const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT)
  const found: Rendered[] = []
  let at = 0
  while (walker.nextNode()) {
    const node = walker.currentNode as Text
    if (node.parentElement?.closest('button')) continue
    for (const { start, end, text } of wordsIn(node.data)) {
      // Markdown only leaves signs out: its words stand in the answer in the same order.
      const from = answer.indexOf(text, at)
      if (from < 0) continue
      at = from + text.length
      found.push({ node, start, end, from })
    }
  }
  return found
}

/** Wraps every word of a rendered answer in a `span.said` with its offsets in `answer` plus `before`. */
export function withWords(root: DocumentFragment, answer: string, before: number): void {
  const words = renderedWords(root, answer)
  for (const node of new Set(words.map(({ node }) => node))) {
    const own = words.filter((word) => word.node === node)
    let done = 0
    const parts = own.flatMap(({ start, end, from }) => {
      const span = document.createElement('span')
      span.className = 'said'
      span.dataset['from'] = String(before + from)
      span.dataset['to'] = String(before + from + end - start)
      span.textContent = node.data.slice(start, end)
      const gap = document.createTextNode(node.data.slice(done, start))
      done = end
      return [gap, span]
    })
    node.replaceWith(...parts, document.createTextNode(node.data.slice(done)))
  }
}

/** What the latest pieces of an answer looked at: the weights of earlier pieces fade. */
export function trailOf(before: Cells, latest: Cells): Cells {
  const found = new Map<number, number>()
  for (const [cell, weight] of before) if (weight * FADES >= LEAST * 255) found.set(cell, weight * FADES)
  for (const [cell, weight] of latest) found.set(cell, Math.max(weight, found.get(cell) ?? 0))
  return [...found]
}
