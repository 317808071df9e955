/** Where in the document the model reads. */
import type { Progress } from './contract'

/** Fewer tokens are read at once. */
const FEW = 64

/**
 * The place, as a share of the document, 0 to 1; null while nothing is read. The model goes through the text once for each
 * of its `layers`; in streaming mode (`inPieces`) once altogether.
 */
export function sweepOf(progress: Progress, layers: number, inPieces: boolean): number | null {
  const { phase, tokensDone, tokensTotal, tokensFromVault } = progress
  if (phase !== 'reading' || tokensTotal < FEW || tokensDone >= tokensTotal) return null
  const share = tokensDone / tokensTotal
  const passed = inPieces ? share : (share * layers) % 1
  return (tokensFromVault + passed * tokensTotal) / (tokensFromVault + tokensTotal)
}

/**
 * The same of reading in the background, which goes through the `tokens` of the document once, and with some methods once
 * more.
 */
export function backgroundSweepOf({ tokensDone, tokensTotal }: Progress, tokens: number): number | null {
  if (tokensDone >= tokensTotal) return null
  return tokensDone < tokens ? tokensDone / tokens : (tokensDone - tokens) / (tokensTotal - tokens)
}
