/**
 * Where the reader is in the document and where they want to go, in offsets of the text. The document view follows `target` and
 * says what is `visible`; strip, table, sources and keys only speak to this.
 */
import type { Passage } from './paint'

export interface Target {
  offset: number
  /** Where in the view the place shall come to lie: 0 top, 0.5 middle. */
  place: number
  /** Also give the document the keyboard. */
  focus: boolean
}

export class Reader {
  visible = $state.raw({ start: 0, end: 0 })
  target = $state.raw<Target | null>(null)
  /** The passage that is underlined. */
  passage = $state.raw<Passage | null>(null)

  goTo(offset: number, place = 0, focus = false): void {
    this.target = { offset, place, focus }
  }

  /** Goes to a passage and underlines it. */
  show(start: number, end: number): void {
    this.passage = { start, end }
    this.goTo(start, 0.33)
  }

  /** Another document. */
  reset(): void {
    this.visible = { start: 0, end: 0 }
    this.target = null
    this.passage = null
  }
}
