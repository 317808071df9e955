/** Positions in a block's text as the DOM has them: offsets to ranges and back, and the character under a point. */

/** The text nodes of `element` with characters in `from..to` (offsets within its text), and which these are. */
function* nodesIn(element: HTMLElement, from: number, to: number): Generator<[Text, number, number]> {
  const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT)
  let before = 0
  for (let node = walker.nextNode(); node && before < to; node = walker.nextNode()) {
    const { length } = node as Text
    if (from < before + length) yield [node as Text, Math.max(0, from - before), Math.min(length, to - before)]
    before += length
  }
}

/** A DOM range over `from..to`; null if the element's text is shorter. */
export function rangeIn(element: HTMLElement, from: number, to: number): Range | null {
  const nodes = [...nodesIn(element, from, to)]
  const [first, last] = [nodes[0], nodes.at(-1)]
  if (!first || !last) return null
  const range = document.createRange()
  range.setStart(first[0], first[1])
  range.setEnd(last[0], last[2])
  return range
}

/** The boxes of the letters in `from..to`: a range over several nodes has those of the elements between, too. */
export function boxesIn(element: HTMLElement, from: number, to: number): DOMRect[] {
  return [...nodesIn(element, from, to)].flatMap(([node, start, end]) => {
    const range = document.createRange()
    range.setStart(node, start)
    range.setEnd(node, end)
    return [...range.getClientRects()]
  })
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
