/** How far in the document the model has read. */
import type { Progress } from './contract'

/** Fewer tokens are read at once. */
const FEW = 64

/** The place, as a share of the document, 0 to 1; null while nothing is read. */
export function sweepOf({ phase, tokensDone, tokensTotal, tokensFromVault }: Progress): number | null {
  if (phase !== 'reading' || tokensTotal < FEW || tokensDone >= tokensTotal) return null
  return (tokensFromVault + tokensDone) / (tokensFromVault + tokensTotal)
}

/**
 * The same of reading in the background, which goes through the `tokens` of the document once, and with some methods once
 * more.
 */
export function backgroundSweepOf({ tokensDone, tokensTotal }: Progress, tokens: number): number | null {
  if (tokensDone >= tokensTotal) return null
  return tokensDone < tokens ? tokensDone / tokens : (tokensDone - tokens) / (tokensTotal - tokens)
}
