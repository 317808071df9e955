/**
 * Cache types in words. The names are the engine's (`--cache` in the terminal); their cost is in docs/benchmarks.md.
 */

interface CacheType {
  name: string
  /** For status lines and figures. */
  short: string
  /** For lists. */
  words: string
}

/** The most exact first. */
export const CACHES: readonly CacheType[] = [
  { name: 'f32', short: '32-bit', words: '32-bit, as computed: twice the memory' },
  { name: 'f16', short: '16-bit', words: '16-bit, exact enough for most' },
  { name: 'q8_0', short: '8-bit', words: '8-bit, about half the memory' },
  { name: 'q4_0', short: '4-bit', words: '4-bit, about a quarter of the memory' },
]

/** Label without a choice. */
export const AUTOMATIC_CACHE = 'Automatic'

/** `16-bit (f16)`; empty for an empty name. */
export function stored(name: string): string {
  const known = CACHES.find((type) => type.name === name)
  return known ? `${known.short} (${name})` : name
}

/** `16-bit`; empty for an empty name. */
export function storedShort(name: string): string {
  return CACHES.find((type) => type.name === name)?.short ?? name
}
