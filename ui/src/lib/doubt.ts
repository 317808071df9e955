/** What is said of an answer that its figures make doubtful (src-tauri/src/state/doubt.rs), and what can be done. */
import type { Choice, Doubt, Turn } from './contract'

/** A doubt in words. */
export const DOUBTS: Record<Doubt, string> = {
  forgotten: 'The passage this answer points to is mostly forgotten.',
  unseen: 'This answer stands on no passage the model clearly looked at.',
}

/** Share of the text that was remembered when the turn was answered; 1 without figures. */
export function rememberedBy({ facts }: Turn): number {
  return facts && facts.promptTokens > 0 ? Math.min(1, facts.rows / facts.promptTokens) : 1
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
