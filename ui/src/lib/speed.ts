/** How fast each model reads, measured by the questions that were answered. */
import type { Turn } from './contract'

/** Tokens read per second, by the model's label. */
export type Speeds = Readonly<Record<string, number>>

/** Fewer tokens say little: most of their time is not reading. */
const LEAST = 256

/** The speeds of the newest turns that tell. */
export function speedsOf(turns: readonly Turn[]): Speeds {
  const found: Record<string, number> = {}
  for (const { model, facts } of turns) {
    const read = facts ? facts.promptTokens - facts.tokensFromVault : 0
    if (facts && read >= LEAST && facts.prefillSeconds > 0) found[model] = read / facts.prefillSeconds
  }
  return found
}
