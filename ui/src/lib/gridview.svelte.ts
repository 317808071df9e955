/** What the grid shows: the pictures of the stretch in view, which layers are unfolded, and the cursor. No DOM. */
import { untrack } from 'svelte'
import type { AppState } from './app.svelte'
import { pageName, pageOf } from './blocks'
import { mapPicture, sentence } from './calls'
import { capital, count, percent, plural, shorten } from './format'
import { columnOf, mostOf, moved, pictureOf, rowsOf, shareAt, tokensOf, zoomed, type Picture, type Row } from './grid'
import { numberOf } from './layers'
import type { MapView } from './map.svelte'
import type { PictureOf, Turn } from './contract'
import { described } from './parameters'
import type { Reader } from './reader.svelte'
import { tokenAt } from './runs'
import type { Sheet } from './sheet'

interface Given {
  app: AppState
  map: MapView
  reader: Reader
  text: () => string
}

/** What the grid shows: what is remembered, what of it because of the question, or what the answer looked at. */
export const TITLES: Record<PictureOf, string> = {
  memory: 'What each layer remembers',
  question: 'What each layer remembers because of the question',
  attention: 'What each layer looked at for the answer',
}
const ofTokens = (tokens: number): string => (tokens > 1 ? ` of ${plural(tokens, 'token')}` : '')
/** A share of some tokens in words. */
const SAYS: Record<PictureOf, (share: string, tokens: number) => string> = {
  memory: (share, tokens) => `${share}${ofTokens(tokens)} remembered`,
  question: (share, tokens) => `${share}${ofTokens(tokens)} because of this question`,
  attention: (share, tokens) =>
    `${share} of its attention for the answer went to ${tokens > 1 ? `these ${plural(tokens, 'token')}` : 'this token'}`,
}

/** Whether a turn has an answer that looked at something. */
export const looksAt = (turn: Turn | null): boolean =>
  turn !== null && turn.hasMap && turn.answer !== '' && (turn.state === 'done' || turn.state === 'stopped')

/** Time after the last movement before the picture is made sharp. */
const SOON_MS = 60

export class GridView {
  #given: Given
  /** Columns of the screen. */
  columns = $state(0)
  unfolded = $state.raw<ReadonlySet<number>>(new Set())
  of = $state<PictureOf>('memory')
  /** The tokens in view; null for all. */
  range = $state.raw<{ from: number; to: number } | null>(null)
  layers = $state.raw<Picture | null>(null)
  heads = $state.raw<Picture | null>(null)
  problem = $state<string | null>(null)
  /** An answer of an earlier version: its heads, or what it looked at, were not stored. */
  unknown = $state(false)
  /** The row and the token under the pointer, or chosen by the keyboard. */
  at = $state.raw<{ row: number; token: number } | null>(null)
  #asked = 0

  own = $derived.by(() => this.#given.map.own)
  tokens = $derived(this.own?.ends.length ?? 0)
  many = $derived(this.own?.layers ?? 0)
  kvHeads = $derived(this.own?.kvHeads ?? 1)
  /** Heads can be told apart. */
  byHead = $derived.by(() => {
    if (this.kvHeads === 1 || this.unknown) return false
    return this.of === 'attention' || (this.of === 'memory' && (this.own?.together ?? 1) === 1)
  })
  view = $derived(this.range ?? { from: 0, to: this.tokens })
  rows = $derived(rowsOf(this.many, this.kvHeads, this.byHead ? this.unfolded : new Set()))
  most = $derived(this.layers ? mostOf(this.heads ?? this.layers) : 255)
  /** The ends of the scale. */
  ends = $derived<[string, string]>([this.of === 'memory' ? 'forgotten' : '0 %', percent(this.most / 255)])
  /** The token of the cursor, of the grid or of the page. */
  cursor = $derived.by(() => {
    if (this.at) return this.at.token
    const { pointed } = this.#given.reader
    return this.own && pointed?.by === 'page' ? tokenAt(this.own.ends, pointed.start) : null
  })

  /** In a component. */
  constructor(given: Given) {
    this.#given = given
    const { app, reader } = given
    // Another answer.
    $effect(() => {
      void this.own?.turn
      untrack(() => {
        this.range = this.at = null
      })
    })
    // Another answer or another view of it.
    $effect(() => {
      void this.own?.turn
      void this.of
      untrack(() => {
        this.layers = this.heads = null
        this.unknown = false
      })
    })
    $effect(() => {
      const { shown } = app
      const { of } = this
      const there = of === 'memory' || (of === 'question' ? shown?.hasLift === true : looksAt(shown))
      if (!there) this.of = 'memory'
    })
    $effect(() => {
      const { own, view, of } = this
      if (!own || this.columns === 0 || this.tokens === 0) return
      const wanted = { turn: own.turn, ...view, columns: Math.min(this.tokens, this.columns), of }
      const needsHeads = this.unfolded.size > 0 && this.byHead
      // The first picture comes at once.
      const wait = untrack(() => (this.layers === null ? 0 : SOON_MS))
      const timer = setTimeout(() => void this.#fetch(wanted, needsHeads), wait)
      return () => clearTimeout(timer)
    })
    $effect(() => {
      const now = this.at
      untrack(() => {
        if (now) reader.pointed = { ...this.textOf(now.token), by: 'grid' }
        else if (reader.pointed?.by === 'grid') reader.pointed = null
      })
    })
    $effect(() => () => {
      if (reader.pointed?.by === 'grid') reader.pointed = null
    })
  }

  async #fetch(
    { turn, from, to, columns, of }: { turn: number; from: number; to: number; columns: number; of: PictureOf },
    needsHeads: boolean,
  ): Promise<void> {
    const mine = ++this.#asked
    try {
      const [whole, byHead] = await Promise.all([
        mapPicture(turn, from, to, columns, { heads: false, of }),
        needsHeads ? mapPicture(turn, from, to, columns, { heads: true, of }) : null,
      ])
      if (mine !== this.#asked) return
      this.layers = pictureOf(whole, this.many, from, to)
      this.heads = byHead && pictureOf(byHead, this.many * this.kvHeads, from, to)
      this.problem = null
      this.unknown ||= of === 'attention' ? this.layers === null : needsHeads && this.heads === null
    } catch (refusal) {
      if (mine === this.#asked) this.problem = sentence(refusal)
    }
  }

  /** The text of a token. */
  textOf(token: number): { start: number; end: number } {
    const ends = this.own?.ends
    return { start: token > 0 ? (ends?.[token - 1] ?? 0) : 0, end: ends?.[token] ?? 0 }
  }

  nameOf = ({ layer, head }: Row) =>
    head === null ? `Layer ${numberOf(this.#given.app.shown?.windows ?? [], layer)}` : `head ${head + 1}`

  #placeOf(offset: number): string {
    const { app, text } = this.#given
    const page = pageOf(app.document, offset)
    return page === null ? `at ${percent(offset / Math.max(1, text().length))}` : pageName(app.document, page)
  }

  /** The cell of the cursor in words; null without one. */
  said = $derived.by(() => {
    const { at, layers, problem } = this
    if (problem !== null) return problem
    if (this.unknown && !at) {
      const what = this.of === 'attention' ? 'What each layer looked at' : 'Which heads remember what'
      return `${what} is not known for this answer: ask again to see it.`
    }
    const row = at && this.rows[at.row]
    if (!at || !row || !layers) return null
    const column = columnOf(layers, at.token)
    const { from, to } = tokensOf(layers, column)
    const share = shareAt(layers, this.heads, this.kvHeads, row, column) / 255
    const [{ start }, { end }] = [this.textOf(from), this.textOf(to - 1)]
    const layer = this.nameOf({ ...row, head: null })
    const name = row.head === null ? layer : `${layer}, ${this.nameOf(row)}`
    const said = SAYS[this.of](percent(share), to - from)
    const words = shorten(this.#given.text().slice(start, end), 48)
    return `${name}: ${said}, ${this.#placeOf(start)}: “${words}”`
  })

  fold(layer: number): void {
    if (!this.byHead) return
    const next = new Set(this.unfolded)
    if (!next.delete(layer)) next.add(layer)
    this.unfolded = next
  }

  /** Unfolds all layers, or folds them. */
  foldAll(): void {
    this.unfolded = this.unfolded.size > 0 ? new Set() : new Set(Array.from({ length: this.many }, (_, i) => i))
  }

  /** Closer or further away, around a token. */
  zoom(factor: number, token: number | null): void {
    const { view } = this
    const share = token === null ? 0.5 : (token - view.from) / Math.max(1, view.to - view.from)
    const next = zoomed(view, this.tokens, factor, share)
    this.range = next.to - next.from >= this.tokens ? null : next
  }

  pan(by: number): void {
    this.range = this.range && moved(this.range, this.tokens, by)
  }

  /** Moves the cursor to a row and a token, and the view with it. */
  moveTo(row: number, token: number): void {
    const before = this.at?.token ?? token
    this.at = {
      row: Math.max(0, Math.min(this.rows.length - 1, row)),
      token: Math.max(0, Math.min(this.tokens - 1, token)),
    }
    const { range } = this
    if (range && (this.at.token < range.from || this.at.token >= range.to)) this.pan(this.at.token - before)
  }

  /** Goes to the text of the cursor, and shows its word; `focus` also moves the focus to it. */
  go(focus: boolean): void {
    if (!this.at) return
    const { start, end } = this.textOf(this.at.token)
    const { reader, text } = this.#given
    reader.show(start, Math.max(start + 1, end))
    // The token's first letter, behind its space.
    reader.word = { start: start + Math.max(0, text().slice(start, end).search(/\S/)), focus }
  }

  /** The grid as a picture to share. */
  sheet(): Sheet | null {
    const { layers, heads, kvHeads, rows, most, nameOf, ends, view, of } = this
    if (!layers) return null
    const { app } = this.#given
    const { shown } = app
    const axis = [0, 0.25, 0.5, 0.75, 1].map((share) => {
      const token = Math.min(this.tokens - 1, Math.round(view.from + share * (view.to - view.from)))
      const page = pageOf(app.document, this.textOf(token).start)
      return page === null ? `token ${count(token + 1)}` : capital(pageName(app.document, page))
    })
    const how = shown && described(shown, app.methods, shown.facts?.chosen?.method)
    const title = TITLES[of]
    const lines = [
      [app.document?.name, how, app.model?.name].filter(Boolean).join(' · '),
      shown ? `“${shorten(shown.question, 120)}”` : '',
    ]
    return { title, lines, rows, layers, heads, kvHeads, most, nameOf, axis, ends }
  }
}
