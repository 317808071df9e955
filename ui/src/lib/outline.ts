/** The outline of the document: indentation, and the section that is in view. */
import type { OutlineEntry } from './contract'

/** How far down the view a heading counts as reached, as a share of the view. */
const REACHED = 0.15
/** A position in the view is inexact by this many characters. */
const INEXACT = 200

/** Steps by which an entry of `level` is indented: the least level of `entries` by none. */
export function indentsOf(entries: readonly OutlineEntry[]): number[] {
  const least = entries.reduce((least, entry) => Math.min(least, entry.level), Number.MAX_SAFE_INTEGER)
  return entries.map((entry) => entry.level - least)
}

/**
 * Index of the section in view, -1 before the first heading. `chosen` is the last entry that the user went to: it is
 * the section as long as its heading is in view.
 */
export function sectionIn(
  entries: readonly OutlineEntry[],
  visible: { start: number; end: number },
  chosen: OutlineEntry | null,
): number {
  if (chosen && chosen.start >= visible.start - INEXACT && chosen.start < visible.end) {
    const index = entries.findIndex((entry) => entry.start === chosen.start && entry.level === chosen.level)
    if (index >= 0) return index
  }
  const reached = visible.start + REACHED * (visible.end - visible.start)
  return entries.findLastIndex((entry) => entry.start <= reached)
}
