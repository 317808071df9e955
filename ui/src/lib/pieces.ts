/** What is drawn of one block, in offsets of the document's text: no DOM, no pixels. */
import { isSpace } from './blocks'
import type { Found } from './find.svelte'
import type { Run } from './runs'

export interface Passage {
  start: number
  end: number
}

/** The paint of a block. */
export interface Wish {
  text: string
  start: number
  end: number
  /** Runs that cover the block; null paints none. */
  runs: readonly Run[] | null
  /** The passage that the user went to: underlined, strongly. */
  passage: Passage | null
  /** The passages that the answer stands on: underlined. */
  used?: readonly Passage[]
  /** Matches of the search. */
  found?: readonly Found[]
  /** Labels in the margin, beside the line that contains `at`. */
  notes?: readonly { at: number; label: string }[]
  /** Runs that cover the block, of all that is remembered: the rest fades. Null or none fades nothing. */
  memory?: readonly Run[] | null
  /** The map covers no more than this. */
  mapped?: number
}

/** One element to draw; all but runs have a step of 0 or less. */
export interface Piece {
  start: number
  end: number
  step: number
  label?: string
}

export const PASSAGE = 0
export const FOUND = -1
export const CURRENT = -2
export const USED = -3
export const NOTE = -4

/** The painted runs, and the parts of passages and matches inside the block. */
export function piecesOf({ text, start, end, runs, passage, used, found, notes }: Wish): Piece[] {
  const pieces: Piece[] = words(text, whole(text, start, end, runs ?? [])).filter((run) => run.step > 0)
  const underline = (of: Passage, step: number) => {
    if (of.start >= end || of.end <= start) return
    const marked = trimmed(text, Math.max(start, of.start), Math.min(end, of.end))
    if (marked.end > marked.start) pieces.push({ ...marked, step })
  }
  for (const one of used ?? []) {
    // One line under a passage, the stronger one.
    if (passage === null || one.start < passage.start || one.end > passage.end) underline(one, USED)
  }
  if (passage) underline(passage, PASSAGE)
  for (const place of found ?? []) {
    const from = Math.max(start, place.start)
    pieces.push({ start: from, end: Math.min(end, place.end), step: place.current ? CURRENT : FOUND })
  }
  for (const { at, label } of notes ?? []) {
    const from = trimmed(text, Math.max(start, at), end).start
    if (at < end && from < end && at >= start) pieces.push({ start: from, end: from + 1, step: NOTE, label })
  }
  return pieces
}

/** The forgotten text of a block: what is neither remembered nor painted nor found. */
export function fadedOf({ text, start, end, memory, mapped = end }: Wish, pieces: readonly Piece[]): Passage[] {
  if (!memory) return []
  const faded: Passage[] = []
  const clear = [...words(text, memory), ...pieces].filter(({ step }) => step > 0 || step === FOUND || step === CURRENT)
  clear.sort((a, b) => a.start - b.start)
  let at = start
  const gap = (to: number) => {
    const inner = trimmed(text, at, Math.min(to, mapped))
    if (inner.end > inner.start) faded.push(inner)
  }
  for (const piece of clear) {
    gap(piece.start)
    at = Math.max(at, piece.end)
  }
  gap(end)
  return faded
}

let segmenter: Intl.Segmenter | null = null

/**
 * The runs without a border inside a visible character (a letter with its accents, joined emoji): such a character gets
 * the strongest step of its parts.
 */
function whole(text: string, start: number, end: number, runs: readonly Run[]): readonly Run[] {
  const plain = (at: number) => text.charCodeAt(at) < 0x300 && text.charCodeAt(at - 1) < 0x300
  if (runs.every((run) => run.end >= end || plain(run.end))) return runs
  segmenter ??= new Intl.Segmenter(undefined, { granularity: 'grapheme' })
  const characters = segmenter.segment(text.slice(start, end))
  const found: Run[] = []
  let at = start
  runs.forEach((run, i) => {
    if (run.end <= at) return
    const character = run.end < end && !plain(run.end) ? characters.containing(run.end - start) : undefined
    const from = character ? start + character.index : run.end
    if (!character || from >= run.end) {
      found.push({ start: at, end: run.end, step: run.step })
      at = run.end
      return
    }
    const to = from + character.segment.length
    let step = run.step
    for (let j = i + 1; j < runs.length && runs[j]!.start < to; j++) step = Math.max(step, runs[j]!.step)
    found.push({ start: at, end: Math.max(at, from), step: run.step }, { start: Math.max(at, from), end: to, step })
    at = to
  })
  return found
}

/**
 * The runs without white space at their ends, which is not painted: tokens begin with their space. White space between
 * runs of one colour is painted.
 */
function words(text: string, runs: readonly Run[]): Run[] {
  const found: Run[] = []
  const push = (start: number, end: number, step: number) => {
    if (end <= start) return
    const last = found[found.length - 1]
    if (last && last.step === step) last.end = end
    else found.push({ start, end, step })
  }
  for (const run of runs) {
    const { start, end } = run.step > 0 ? trimmed(text, run.start, run.end) : run
    push(run.start, start, 0)
    push(start, end, run.step)
    push(end, run.end, 0)
  }
  return found
}

function trimmed(text: string, start: number, end: number): Passage {
  while (start < end && isSpace(text.charCodeAt(start))) start++
  while (end > start && isSpace(text.charCodeAt(end - 1))) end--
  return { start, end }
}
