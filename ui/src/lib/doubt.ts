/**
 * Whether an answer's figures give clear reason for doubt. A wrong doubt is worse than none: everything that is not
 * clear is no doubt. Of right answers that the benchmarks measured, up to a third cite no passage (docs/benchmarks.md,
 * "Passages"), so that a missing citation alone is none either: the evidence must also be scattered.
 */
import type { Choice, Turn } from './contract'
import { THRESHOLD } from './map.svelte'

export type Doubt = 'forgotten' | 'unseen'

/** A passage is forgotten if it is remembered this much less than the text as a whole. */
const OF_MEAN = 0.5
/** Evidence is scattered if no passage has this share of it. */
const CLEAR = 0.2

/** A doubt in words. */
export const DOUBTS: Record<Doubt, string> = {
  forgotten: 'The passage this answer points to is mostly forgotten.',
  unseen: 'This answer stands on no passage the model clearly looked at.',
}

/** Share of the text that was remembered when the turn was answered; 1 without figures. */
export function rememberedBy({ facts }: Turn): number {
  return facts && facts.promptTokens > 0 ? Math.min(1, facts.rows / facts.promptTokens) : 1
}

/** `chatting`: the conversation has no document. */
export function doubtOf(turn: Turn, chatting: boolean): Doubt | null {
  const { facts, sources, state } = turn
  const share = rememberedBy(turn)
  // Earlier versions stored turns without a cache type, and without citations.
  if (chatting || state !== 'done' || !facts || facts.finish !== 'end' || facts.cache === '') return null
  if (turn.answer.trim() === '') return null
  const cited = new Set(facts.citations.map(({ source }) => source))
  const used = cited.size > 0 ? sources.filter((_, i) => cited.has(i)) : sources
  const most = Math.min(THRESHOLD, share * OF_MEAN)
  if (share < 1 && used.length > 0 && used.every(({ kept }) => kept < most)) return 'forgotten'
  return cited.size === 0 && sources.every(({ weight }) => weight < CLEAR) ? 'unseen' : null
}

/** Up to this many tokens, all of a prompt costs little: memory of a few dozen MiB with small models. */
const SHORT = 2048

/** The turn's own choice with twice the memory, with all of it for a short text; null if it had all. */
export function withMore(turn: Turn): Choice | null {
  const share = rememberedBy(turn)
  if (share >= 1) return null
  const short = (turn.facts?.promptTokens ?? Infinity) <= SHORT
  const budget = short ? '100%' : `${Math.min(100, Math.max(2, Math.ceil(share * 200)))}%`
  return { method: turn.method, parameters: turn.parameters, budget }
}
