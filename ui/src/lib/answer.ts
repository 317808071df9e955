/**
 * Renders a growing answer into an element: finished blocks as Markdown, once each; the rest as plain text in one text
 * node that only grows. The complete answer is rendered as Markdown once more, since a later line may belong to an
 * earlier block.
 */
import { finished, render } from './markdown'

export class AnswerFlow {
  #element: HTMLElement
  #tail = document.createTextNode('')
  #last = document.createElement('span')
  /** Text already rendered as Markdown. */
  #drawn = ''
  #whole: string | null = null

  constructor(element: HTMLElement) {
    this.#element = element
    this.#last.className = 'tail'
    this.#last.append(this.#tail)
    element.replaceChildren(this.#last)
  }

  update(text: string, whole: boolean): void {
    if (whole) {
      if (this.#whole === text) return
      this.#whole = text
      this.#drawn = ''
      this.#element.replaceChildren(render(text))
      return
    }
    if (this.#whole !== null || !text.startsWith(this.#drawn)) {
      this.#whole = null
      this.#drawn = ''
      this.#tail.data = ''
      this.#element.replaceChildren(this.#last)
    }
    const end = finished(text, this.#drawn.length)
    if (end > this.#drawn.length) {
      this.#last.before(render(text.slice(this.#drawn.length, end)))
      this.#drawn = text.slice(0, end)
    }
    const rest = text.slice(end)
    if (rest.startsWith(this.#tail.data)) this.#tail.appendData(rest.slice(this.#tail.length))
    else this.#tail.data = rest
  }
}
