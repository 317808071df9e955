/**
 * Fades parts of a block's text by a custom highlight (`::highlight(forgotten)` in `tokens.css`): the text stays one
 * node. Where the browser has none, nothing fades.
 */
import type { Passage } from './pieces'

const NAME = 'forgotten'

/** One for the page: it holds the ranges of the blocks on the screen. */
function shared(): Highlight | null {
  if (typeof Highlight === 'undefined' || typeof CSS === 'undefined' || !('highlights' in CSS)) return null
  let found = CSS.highlights.get(NAME)
  if (!found) CSS.highlights.set(NAME, (found = new Highlight()))
  return found
}

/** The faded parts of one block. */
export class Fade {
  #ranges: AbstractRange[] = []

  /** Fades these parts of `node`, whose first character is at `start`, and no others. */
  show(node: Text, parts: readonly Passage[], start: number): void {
    this.clear()
    if (parts.length === 0) return
    const highlight = shared()
    if (highlight === null) return
    // Static: live ranges would be updated at every change of the document.
    this.#ranges = parts.map(
      (part) =>
        new StaticRange({
          startContainer: node,
          startOffset: Math.min(node.length, part.start - start),
          endContainer: node,
          endOffset: Math.min(node.length, part.end - start),
        }),
    )
    for (const range of this.#ranges) highlight.add(range)
  }

  clear(): void {
    if (this.#ranges.length === 0) return
    const highlight = shared()
    for (const range of this.#ranges) highlight?.delete(range)
    this.#ranges = []
  }
}
