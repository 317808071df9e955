/** How fast each model reads, measured by the questions that were answered. */
import type { Turn } from './contract'

/** Tokens read per second: by the model's label the most, and by label and method the last. */
export type Speeds = Readonly<Record<string, number>>

/** Fewer tokens say little: most of their time is not reading. */
const LEAST = 256

const keyOf = (model: string, method: string) => `${model}\n${method}`

/** `known` with the speeds of `turns`. Some methods look at all that every token attends to, and read much slower. */
export function withSpeeds(known: Speeds, turns: readonly Turn[]): Speeds {
  const speeds = { ...known }
  for (const { model, method, facts } of turns) {
    const read = facts ? facts.promptTokens - facts.tokensFromVault : 0
    if (!facts || read < LEAST || facts.prefillSeconds <= 0) continue
    const speed = read / facts.prefillSeconds
    speeds[keyOf(model, method)] = speed
    speeds[model] = Math.max(speed, speeds[model] ?? 0)
  }
  return speeds
}

/** The speed with a method, or else with any; undefined if nothing tells. */
export const speedOf = (speeds: Speeds, model: string, method: string): number | undefined =>
  speeds[keyOf(model, method)] ?? speeds[model]
