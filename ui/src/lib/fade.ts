/**
 * Fades parts of a block's text by a custom highlight (`::highlight(forgotten)` in `tokens.css`): the text gets no
 * elements for that. Where the browser has none, nothing fades.
 */
import type { Passage } from './pieces'
import { rangeIn } from './places'

const NAME = 'forgotten'

/** One for the page: it holds the ranges of the blocks on the screen. */
function shared(): Highlight | null {
  if (typeof Highlight === 'undefined' || typeof CSS === 'undefined' || !('highlights' in CSS)) return null
  let found = CSS.highlights.get(NAME)
  if (!found) CSS.highlights.set(NAME, (found = new Highlight()))
  return found
}

function staticIn(element: HTMLElement, from: number, to: number): StaticRange | null {
  const range = rangeIn(element, from, to)
  return range && new StaticRange(range)
}

/** The faded parts of one block. */
export class Fade {
  #ranges = new Map<string, AbstractRange>()

  /** Fades these parts of `element`'s text, whose first character is at `start`, and no others. */
  show(element: HTMLElement, parts: readonly Passage[], start: number): void {
    const highlight = shared()
    if (highlight === null) return
    const ranges = new Map<string, AbstractRange>()
    for (const part of parts) {
      const key = `${part.start}-${part.end}`
      const known = this.#ranges.get(key)
      // Static: live ranges would be updated at every change of the document.
      const range = known?.startContainer.isConnected ? known : staticIn(element, part.start - start, part.end - start)
      if (range) ranges.set(key, range)
    }
    for (const [key, range] of this.#ranges) if (ranges.get(key) !== range) highlight.delete(range)
    for (const [key, range] of ranges) if (this.#ranges.get(key) !== range) highlight.add(range)
    this.#ranges = ranges
  }

  clear(): void {
    for (const range of this.#ranges.values()) shared()?.delete(range)
    this.#ranges.clear()
  }
}
