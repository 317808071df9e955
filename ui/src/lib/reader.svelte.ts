/**
 * The reader's position in the document and its target, in offsets of the text. The document view follows `target` and
 * sets `visible`; strip, table, sources and keys use only this object.
 */
import type { Passage } from './paint'

export interface Target {
  offset: number
  /** Position of the target in the view: 0 top, 0.5 middle. */
  place: number
  /** Also focus the document. */
  focus: boolean
}

export class Reader {
  visible = $state.raw({ start: 0, end: 0 })
  target = $state.raw<Target | null>(null)
  /** The underlined passage. */
  passage = $state.raw<Passage | null>(null)
  /** Whether the outline is shown. */
  contents = $state(false)

  goTo(offset: number, place = 0, focus = false): void {
    this.target = { offset, place, focus }
  }

  /** Moves to a passage and underlines it. */
  show(start: number, end: number): void {
    this.passage = { start, end }
    this.goTo(start, 0.33)
  }

  /** Resets for another document. */
  reset(): void {
    this.visible = { start: 0, end: 0 }
    this.target = null
    this.passage = null
  }
}
