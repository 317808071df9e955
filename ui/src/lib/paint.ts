/**
 * Puts the runs of one block into its element: plain text nodes where nothing is kept, one span per run where something is.
 * By hand, as the document must never be in a framework's state. Also finds the character under a point again.
 */
import { isSpace } from './blocks'
import { STEPS, type Run } from './runs'

/** What was painted last, to leave the nodes (and a selection in them) alone when nothing changed. */
const painted = new WeakMap<HTMLElement, string>()

export interface Passage {
  start: number
  end: number
}

/**
 * Paints `text[start..end]`. `runs` covers it, or is null for plain text; `passage` is underlined. Returns whether nodes changed.
 */
export function paint(
  element: HTMLElement,
  text: string,
  start: number,
  end: number,
  runs: readonly Run[] | null,
  passage: Passage | null,
): boolean {
  const pieces = split(words(text, runs ?? [{ start, end, step: 0 }]), passage && trimmed(text, passage))
  const state = `${start},${end};` + pieces.map((p) => `${p.end}:${p.step}${p.marked ? 'm' : ''}`).join(' ')
  if (painted.get(element) === state) return false
  painted.set(element, state)
  const nodes = pieces.map((piece) => {
    const letters = text.slice(piece.start, piece.end)
    if (piece.step === 0 && !piece.marked) return document.createTextNode(letters)
    const span = document.createElement('span')
    if (piece.step > 0) {
      span.className = 'run'
      span.dataset['testid'] = 'run'
      span.dataset['share'] = String((piece.step * 100) / STEPS)
      span.style.setProperty('--s', String(piece.step / STEPS))
    }
    if (piece.marked) span.classList.add('passage')
    span.textContent = letters
    return span
  })
  element.replaceChildren(...nodes)
  return true
}

/**
 * The runs without the white space at their ends, which is left plain: tokens begin with their space, and a painted space at the
 * end of a line would hang over the edge. What is between runs of one colour stays painted.
 */
function words(text: string, runs: readonly Run[]): Run[] {
  const found: Run[] = []
  const push = (start: number, end: number, step: number) => {
    if (end <= start) return
    const last = found[found.length - 1]
    if (last && last.step === step) last.end = end
    else found.push({ start, end, step })
  }
  for (const run of runs) {
    let { start, end } = run
    if (run.step > 0) {
      while (start < end && isSpace(text.charCodeAt(start))) start++
      while (end > start && isSpace(text.charCodeAt(end - 1))) end--
    }
    push(run.start, start, 0)
    push(start, end, run.step)
    push(end, run.end, 0)
  }
  return found
}

function trimmed(text: string, { start, end }: Passage): Passage {
  while (start < end && isSpace(text.charCodeAt(start))) start++
  while (end > start && isSpace(text.charCodeAt(end - 1))) end--
  return { start, end }
}

interface Piece extends Run {
  marked: boolean
}

function split(runs: readonly Run[], passage: Passage | null): Piece[] {
  if (!passage) return runs.map((run) => ({ ...run, marked: false }))
  const pieces: Piece[] = []
  for (const run of runs) {
    const from = Math.max(run.start, Math.min(run.end, passage.start))
    const to = Math.max(from, Math.min(run.end, passage.end))
    if (from > run.start) pieces.push({ start: run.start, end: from, step: run.step, marked: false })
    if (to > from) pieces.push({ start: from, end: to, step: run.step, marked: true })
    if (run.end > to) pieces.push({ start: to, end: run.end, step: run.step, marked: false })
  }
  return pieces
}

/** A DOM range over `from..to` (offsets within the block's own text); null if the element holds less. */
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

/** Offset of a DOM position within the block's own text; null if it lies elsewhere. */
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

/** The caret place under a point of the window, in either of the two ways engines offer. */
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
