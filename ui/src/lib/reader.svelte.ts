/**
 * The reader's position in the document and its target, in offsets of the text. The document view follows `target` and
 * sets `visible`; strip, table, sources and keys use only this object.
 */
import type { Glow } from './attended'
import type { Turn } from './contract'
import type { Passage } from './pieces'
import type { Lost } from './replay'

export interface Target {
  offset: number
  /** Position of the target in the view: 0 top, 0.5 middle. */
  place: number
  /** Also focus the document. */
  focus: boolean
}

/** Where documents were left: their ids, and offsets; the last ones last. */
const PLACES = 'places'
const MOST_PLACES = 100

function placesOf(): [number, number][] {
  try {
    const stored: unknown = JSON.parse(localStorage.getItem(PLACES) ?? '[]')
    return Array.isArray(stored) ? stored.filter((place) => Array.isArray(place) && place.every(Number.isFinite)) : []
  } catch {
    return []
  }
}

export class Reader {
  visible = $state.raw({ start: 0, end: 0 })
  target = $state.raw<Target | null>(null)
  /** The underlined passage. */
  passage = $state.raw<Passage | null>(null)
  /** The text under the pointer, on the page or in the grid: its cursor is shown in both. */
  pointed = $state.raw<(Passage & { by: 'page' | 'grid' }) | null>(null)
  /** The place of the word whose layers and heads are shown; `focus`: it was chosen by the keyboard. */
  word = $state.raw<{ start: number; focus: boolean } | null>(null)
  /** What a word of the answer looked at. */
  glow = $state.raw<readonly Glow[]>([])
  /** What is being forgotten, for a moment. */
  lost = $state.raw<readonly Lost[]>([])
  /** Whether the grid of layers is shown; null where it has room. */
  grid = $state<boolean | null>(null)
  /** Whether the outline is shown. */
  contents = $state(false)
  #moved = false
  /** What stays at the top however often the layout changes, until something else is shown; null if nothing yet. */
  #top: number | null = null

  /** Whether the user has moved through the document since the running question began. */
  get moved(): boolean {
    return this.#moved
  }

  set moved(moved: boolean) {
    this.#moved = moved
    if (moved) this.#top = null
  }

  /** A movement by the user. */
  goTo(offset: number, place = 0, focus = false): void {
    this.moved = true
    this.word = null
    this.target = { offset, place, focus }
  }

  /** The text has another layout: what is at its top stays there. */
  stay(): void {
    // What is visible is known to about a line: asked again at each of many changes, the place would wander.
    this.#top ??= this.visible.start
    if (this.#top > 0) this.target = { offset: this.#top, place: 0, focus: false }
  }

  /**
   * An answer has ended: moves to the first passage that it cites, unless the user is elsewhere or sees it. `opened`: what
   * is seen of a document that was just opened is not known yet.
   */
  follow(turn: Turn, opened = false): void {
    const cited = turn.sources[turn.facts?.citations[0]?.source ?? -1]
    const { start, end } = this.visible
    if (!cited || this.moved || (!opened && cited.start >= start && cited.end <= end)) return
    this.#top = null
    this.target = { offset: cited.start, place: 0.33, focus: false }
  }

  /** Moves to a passage and underlines it. */
  show(start: number, end: number, focus = false): void {
    this.passage = { start, end }
    this.goTo(start, 0.33, focus)
  }

  /** Remembers what is seen of document `id`, also for the next start. */
  leave(id: number): void {
    if (this.visible.end === 0) return
    const others = placesOf().filter(([other]) => other !== id)
    const { start } = this.visible
    // At its beginning, nothing was read yet.
    const places = start > 0 ? [...others, [id, start]] : others
    try {
      localStorage.setItem(PLACES, JSON.stringify(places.slice(-MOST_PLACES)))
    } catch {
      // A page without storage begins at the top.
    }
  }

  /** Returns to what was seen of document `id`; false if that is not known. */
  comeBack(id: number): boolean {
    const place = placesOf().find(([other]) => other === id)
    if (!place) return false
    this.target = { offset: place[1], place: 0, focus: false }
    return true
  }

  /** Resets for another document. */
  reset(): void {
    this.visible = { start: 0, end: 0 }
    this.target = null
    this.passage = null
    this.pointed = null
    this.word = null
    this.glow = []
    this.lost = []
    this.#moved = false
    this.#top = null
  }
}
