/**
 * Paints the runs of one block behind its text: one element per run, positioned under the letters by the text's own
 * layout. The text gets no elements for that, so that no letter moves and no ligature changes. Outside the framework,
 * since the document must never be in its state; all blocks are measured before any is drawn, so that a frame has one
 * layout pass.
 */
import { Fade } from './fade'
import { draw } from './frames.svelte'
import { boxesIn } from './places'
import { CURRENT, FOUND, NOTE, PASSAGE, USED, fadedOf, piecesOf, type Passage, type Piece, type Wish } from './pieces'
import { STEPS } from './runs'

interface Box {
  left: number
  top: number
  width: number
  height: number
  /** The sides at which another run of the same word continues: without corners, so that no seam is seen. */
  joined?: 'left' | 'right' | 'both'
}

/** Classes of what is not a run. */
const CLASSES = new Map([
  [PASSAGE, 'passage'],
  [USED, 'used'],
  [NOTE, 'note'],
  [FOUND, 'found'],
  [CURRENT, 'found current'],
])

const CORNERS = { left: '0 2px 2px 0', right: '2px 0 0 2px', both: '0' }

/** Above and below the letters, in pixels. */
const OVER = 2
/** Narrower boxes are line breaks and similar. */
const LEAST = 0.5

/**
 * The paint of one block. `text` contains the block's text, `layer` lies under it with the same
 * origin.
 */
export class Paint {
  readonly text: HTMLElement
  readonly layer: HTMLElement
  pieces: Piece[] = []
  start = 0
  #faded: Passage[] = []
  #fade = new Fade()
  #state = ''
  /** The boxes of each piece, by its offsets, as long as no letter moves. */
  #boxes = new Map<string, Box[]>()
  #shown = ''
  /** Where the last letter stands. */
  #end = ''
  /** What is drawn, by piece and corners. */
  #drawn = new Map<string, HTMLElement>()

  constructor(text: HTMLElement, layer: HTMLElement) {
    this.text = text
    this.layer = layer
    watch(this)
  }

  /** Paints before the next frame; does nothing if nothing changed. */
  show(wish: Wish): void {
    const pieces = piecesOf(wish)
    const faded = fadedOf(wish, pieces)
    const parts = [...pieces, ...faded.map((part) => ({ ...part, step: '' }))]
    const state = `${wish.start};` + parts.map((p) => `${p.start}-${p.end}:${p.step}`).join(' ')
    if (state === this.#state) return
    this.#state = state
    this.start = wish.start
    this.pieces = pieces
    this.#faded = faded
    soon(this)
  }

  /** Letters have moved. */
  moved(): void {
    this.#boxes.clear()
    this.#drawn.clear()
  }

  close(): void {
    forget(this)
    this.#fade.clear()
  }

  /** Boxes of the pieces' letters, relative to the layer. Only reads the layout. */
  measure(): Box[][] {
    if (this.pieces.length === 0) return []
    const shown = this.text.textContent
    // Another font moves letters also where the text keeps its size.
    const last = boxesIn(this.text, shown.length - 1, shown.length).at(-1)
    const origin = this.layer.getBoundingClientRect()
    const end = last ? `${last.left - origin.left} ${last.top - origin.top}` : ''
    if (this.#shown !== shown || this.#end !== end) this.moved()
    this.#shown = shown
    this.#end = end
    const measured = this.pieces.map((piece) => {
      const key = `${piece.start}-${piece.end}`
      const boxes = this.#boxes.get(key) ?? this.#boxesOf(piece)
      this.#boxes.set(key, boxes)
      return boxes.map((box) => ({ ...box }))
    })
    this.#join(measured)
    return measured
  }

  #boxesOf(piece: Piece): Box[] {
    const origin = this.layer.getBoundingClientRect()
    const { left, right } = this.text.getBoundingClientRect()
    const [first, last] = [piece.start - this.start, piece.end - this.start]
    const boxes: Box[] = []
    for (const rect of boxesIn(this.text, first, last)) {
      // White space at the end of a line overflows the edge; its paint does not.
      const from = Math.max(left, rect.left)
      const to = Math.min(right, rect.right)
      if (to - from < LEAST) continue
      const top = rect.top - origin.top - OVER
      // Whole pixels: neighbours neither overlap nor leave a gap.
      const start = Math.round(from - origin.left)
      const width = Math.max(1, Math.round(to - origin.left) - start)
      boxes.push({ left: start, top, width, height: rect.height + 2 * OVER })
    }
    return boxes
  }

  /** Marks the sides at which the boxes of neighbouring runs meet. */
  #join(measured: readonly Box[][]): void {
    for (let i = 1; i < measured.length; i++) {
      const [piece, next] = [this.pieces[i - 1]!, this.pieces[i]!]
      if (piece.step <= 0 || next.step <= 0 || piece.end !== next.start) continue
      const [a, b] = [measured[i - 1]!.at(-1), measured[i]![0]]
      if (!a || !b || a.top !== b.top) continue
      if (a.left + a.width === b.left) {
        a.joined = a.joined === 'left' ? 'both' : 'right'
        b.joined = 'left'
      } else if (b.left + b.width === a.left) {
        // From right to left.
        a.joined = a.joined === 'right' ? 'both' : 'left'
        b.joined = 'right'
      }
    }
  }

  /** Draws the measured boxes. Only writes to the DOM. */
  draw(measured: readonly Box[][]): void {
    const drawn = new Map<string, HTMLElement>()
    measured.forEach((boxes, i) => {
      if (boxes.length === 0) return
      const piece = this.pieces[i]!
      const key = `${piece.start}-${piece.end}:${piece.step}${boxes.map((box) => box.joined ?? '')}`
      drawn.set(key, this.#drawn.get(key) ?? elementOf(piece, boxes))
    })
    const wanted = new Set(drawn.values())
    for (const element of [...this.layer.children]) if (!wanted.has(element as HTMLElement)) element.remove()
    let next = this.layer.firstChild
    for (const element of wanted) {
      if (element === next) next = next.nextSibling
      else this.layer.insertBefore(element, next)
    }
    this.#drawn = drawn
    this.#fade.show(this.text, this.#faded, this.start)
  }
}

function elementOf({ step, label }: Piece, boxes: readonly Box[]): HTMLElement {
  const first = boxes[0]!
  const element = boxed(first, 0, 0)
  element.className = CLASSES.get(step) ?? 'run'
  if (label !== undefined) {
    // In the margin, beside its line.
    element.style.cssText = `top:${first.top + OVER}px`
    element.textContent = label
  }
  if (step === USED) element.dataset['testid'] = 'used'
  if (step > 0) {
    element.dataset['testid'] = 'run'
    element.dataset['share'] = String((step * 100) / STEPS)
    element.style.setProperty('--s', String(step / STEPS))
  }
  // The lines after the first.
  for (const box of boxes.slice(1)) element.append(boxed(box, first.left, first.top))
  return element
}

function boxed(box: Box, left: number, top: number): HTMLElement {
  const element = document.createElement('i')
  element.style.cssText = `left:${box.left - left}px;top:${box.top - top}px;width:${box.width}px;height:${box.height}px`
  if (box.joined) element.style.borderRadius = CORNERS[box.joined]
  return element
}

const alive = new Map<Element, Paint>()
const waiting = new Set<Paint>()

function soon(paint: Paint): void {
  waiting.add(paint)
  draw('page', paintAll, paintAll)
}

/** Paints all pending blocks: everything is measured before anything is drawn. */
export function paintAll(): void {
  const paints = [...waiting]
  waiting.clear()
  const measured = paints.map((paint) => paint.measure())
  paints.forEach((paint, i) => paint.draw(measured[i]!))
}

let sizes: ResizeObserver | null = null

function watch(paint: Paint): void {
  if (sizes === null) {
    // Letters have moved: the width changed, or a font was loaded.
    sizes = new ResizeObserver((entries) => {
      for (const entry of entries) moved(alive.get(entry.target))
      paintAll()
    })
    const fonts = document.fonts as FontFaceSet | undefined
    // WebKit shows the font a frame after it says so.
    const settled = () => requestAnimationFrame(() => alive.forEach(moved))
    fonts?.addEventListener('loadingdone', settled)
    void fonts?.ready.then(settled)
  }
  alive.set(paint.text, paint)
  sizes.observe(paint.text)
}

function moved(paint: Paint | undefined): void {
  paint?.moved()
  if (paint && paint.pieces.length > 0) soon(paint)
}

function forget(paint: Paint): void {
  sizes?.unobserve(paint.text)
  alive.delete(paint.text)
  waiting.delete(paint)
}
