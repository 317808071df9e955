/**
 * Renders a growing answer into an element: finished blocks as Markdown, once each, and the unfinished block or list
 * again with each piece. The complete answer is rendered as Markdown once more, since a later line may belong to an
 * earlier block.
 */
import { finished, render, settled } from './markdown'

/** Elements in which the cursor stands at the end of their last line. */
const HOLDS_LINES = /^(?:P|[UO]L|LI|BLOCKQUOTE|PRE|CODE|TABLE|T[BRHD].*|H\d)$/

export class AnswerFlow {
  #element: HTMLElement
  #cursor = document.createElement('span')
  /** The text that is rendered, unless it is complete. */
  #drawn = ''
  /** Length of its part that is rendered for good; the nodes of the rest. */
  #closed = 0
  #open: ChildNode[] = []
  #whole: string | null = null

  constructor(element: HTMLElement) {
    this.#element = element
    this.#cursor.className = 'cursor'
    element.replaceChildren(this.#cursor)
  }

  /** `finish` changes the complete answer before it is shown, again when `notes` change. */
  update(text: string, whole: boolean, finish: (answer: DocumentFragment) => void = () => {}, notes = ''): void {
    if (whole) {
      if (this.#whole === text + notes) return
      this.#whole = text + notes
      this.#forget()
      const answer = render(text)
      finish(answer)
      this.#element.replaceChildren(answer)
      return
    }
    if (this.#whole !== null || !text.startsWith(this.#drawn)) {
      this.#whole = null
      this.#forget()
      this.#element.replaceChildren()
    }
    const closed = finished(text, this.#closed)
    for (const node of this.#open) node.remove()
    if (closed > this.#closed) this.#element.append(render(text.slice(this.#closed, closed)))
    const open = render(settled(text.slice(closed)))
    this.#open = [...open.childNodes]
    this.#element.append(open)
    this.#drawn = text
    this.#closed = closed
    this.#placeCursor()
  }

  #placeCursor(): void {
    this.#cursor.remove()
    let last: Element = this.#element
    while (last.lastElementChild && HOLDS_LINES.test(last.lastElementChild.tagName)) last = last.lastElementChild
    last.append(this.#cursor)
  }

  #forget(): void {
    this.#drawn = ''
    this.#closed = 0
    this.#open = []
  }
}
