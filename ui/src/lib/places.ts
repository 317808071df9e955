/** Positions in a block's text as the DOM has them: offsets to ranges and back, and the character under a point. */

/** A DOM range over `from..to` (offsets within the block's own text); null if the element's text is shorter. */
export function rangeIn(element: HTMLElement, from: number, to: number): Range | null {
  const range = document.createRange()
  const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT)
  let before = 0
  let begun = false
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const length = (node as Text).data.length
    if (!begun && from < before + length) {
      range.setStart(node, from - before)
      begun = true
    }
    if (begun && to <= before + length) {
      range.setEnd(node, Math.max(0, to - before))
      return range
    }
    before += length
  }
  return null
}

/** Offset of a DOM position within the block's own text; null if it is outside the element. */
export function offsetIn(element: HTMLElement, node: Node, offset: number): number | null {
  if (!element.contains(node)) return null
  const range = document.createRange()
  range.setStart(element, 0)
  range.setEnd(node, offset)
  return range.toString().length
}

interface CaretPosition {
  offsetNode: Node
  offset: number
}

/** The caret position under a point of the window, by either of the two browser APIs. */
export function caretAt(x: number, y: number): { node: Node; offset: number } | null {
  const page = document as Document & {
    caretPositionFromPoint?: (x: number, y: number) => CaretPosition | null
    caretRangeFromPoint?: (x: number, y: number) => Range | null
  }
  if (page.caretPositionFromPoint) {
    const found = page.caretPositionFromPoint(x, y)
    return found && { node: found.offsetNode, offset: found.offset }
  }
  const range = page.caretRangeFromPoint?.(x, y)
  return range ? { node: range.startContainer, offset: range.startOffset } : null
}
