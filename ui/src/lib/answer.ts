/**
 * Renders a growing answer into an element: finished blocks as Markdown, once each, or again where a list
 * goes on; the rest as plain text in one text node that only grows. The complete answer is rendered as Markdown once
 * more, since a later line may belong to an earlier block.
 */
import { finished, render } from './markdown'

export class AnswerFlow {
  #element: HTMLElement
  #tail = document.createTextNode('')
  #last = document.createElement('span')
  /** Text already rendered as Markdown. */
  #drawn = ''
  /** Length of its part that is rendered for good; the nodes of the rest. */
  #closed = 0
  #open: ChildNode[] = []
  #whole: string | null = null

  constructor(element: HTMLElement) {
    this.#element = element
    this.#last.className = 'tail'
    this.#last.append(this.#tail)
    element.replaceChildren(this.#last)
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
      this.#tail.data = ''
      this.#element.replaceChildren(this.#last)
    }
    const { closed, end } = finished(text, this.#closed)
    if (end > this.#drawn.length || closed > this.#closed) {
      for (const node of this.#open) node.remove()
      this.#last.before(render(text.slice(this.#closed, closed)))
      const open = render(text.slice(closed, end))
      this.#open = [...open.childNodes]
      this.#last.before(open)
      this.#drawn = text.slice(0, end)
      this.#closed = closed
    }
    const rest = text.slice(end)
    if (rest.startsWith(this.#tail.data)) this.#tail.appendData(rest.slice(this.#tail.length))
    else this.#tail.data = rest
  }

  #forget(): void {
    this.#drawn = ''
    this.#closed = 0
    this.#open = []
  }
}
