/**
 * What a method forgot while it answered, token by token of the answer: with the map at the end of the answer it gives the
 * map at any moment of it.
 */
import type { Attended } from './contract'
import type { Glow } from './attended'
import { firstAbove, type Tokens } from './runs'
import { snapped, wordAt } from './words'

export interface Replay {
  /** The moments are 0, before the answer, to `steps`, after it. */
  steps: number
  /** Tokens of the answer in a step. */
  every: number
  /** Of each entry, in order of the steps: its step, the entry of the map, the slots that it lost. */
  step: Uint32Array
  token: Uint32Array
  slots: Uint32Array
}

/** The replay in an answer of `map_evictions`; null if nothing was forgotten, or other tokens were. */
export function replayOf(bytes: ArrayBuffer, ends: Uint32Array): Replay | null {
  const words = new Uint32Array(bytes)
  const [tokens = 0, every = 0] = words
  const many = Math.floor((words.length - 2) / 3)
  if (every === 0 || many <= 0) return null
  const column = (at: number) => Uint32Array.from({ length: many }, (_, i) => words[2 + 3 * i + at]!)
  const [step, token, slots] = [column(0), column(1), column(2)]
  if (token.some((one) => one >= ends.length)) return null
  return { steps: Math.ceil(tokens / every), every, step, token, slots }
}

/** The first entry of a step or of a later one. */
const entryAt = ({ step }: Replay, wanted: number): number => firstAbove(step, wanted - 1)

/** The counts at a moment; `counts` are those at the end. */
export function countsAt(replay: Replay, counts: Uint16Array, moment: number): Uint16Array {
  const found = counts.slice()
  for (let i = entryAt(replay, moment); i < replay.step.length; i++) found[replay.token[i]!]! += replay.slots[i]!
  return found
}

/** A word that lost slots: `weight` is the share of all slots that its tokens lost, at most 1. */
export interface Lost extends Glow {
  /** It was remembered before, and is not any more. */
  forgotten: boolean
}

/** The words that lost slots from one moment to a later one; fewer than `least` slots count as forgotten. */
export function lostWords(
  text: string,
  before: Tokens,
  after: Tokens,
  tokens: Iterable<number>,
  least: number,
): Lost[] {
  const [was, is] = [snapped(text, before).counts, snapped(text, after).counts]
  const { ends, slots } = before
  const found = new Map<number, Lost>()
  for (const token of tokens) {
    const { first, end } = wordAt(text, before, token)
    if (found.has(first)) continue
    const from = first > 0 ? ends[first - 1]! : 0
    const piece = text.slice(from, ends[end - 1]!)
    if (!/[\p{L}\p{N}]/u.test(piece)) continue
    const start = from + piece.length - piece.trimStart().length
    let lost = 0
    for (let i = first; i < end; i++) lost += before.counts[i]! - after.counts[i]!
    const forgotten = was[first]! >= least && is[first]! < least
    found.set(first, { start, end: start + piece.trim().length, weight: Math.min(1, lost / slots), forgotten })
  }
  return [...found.values()]
}

/** The entries of the map that lost slots in the steps between two moments. */
export const lostTokens = (replay: Replay, from: number, to: number): Set<number> =>
  new Set(replay.token.subarray(entryAt(replay, from), entryAt(replay, to)))

/** The answer as far as it was written at a moment. `attended` has an entry for each of its tokens, and one for its end. */
export function saidAt({ every }: Replay, attended: readonly Attended[], answer: string, moment: number): string {
  if (moment === 0) return ''
  return answer.slice(0, attended[Math.min(moment * every, attended.length - 1)]?.said ?? answer.length)
}
