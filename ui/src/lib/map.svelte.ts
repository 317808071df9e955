/**
 * The painted retention map: fetched for one turn and one choice of layers, and again whenever more of it arrives.
 * Arrays are replaced, never changed, behind raw references.
 */
import type { Attended, EarlierTurns, LayerRow, TableRow, TokenSlots } from './contract'
import { levelsOf, type Level } from './levels'
import { countsAt, replayOf, type Replay } from './replay'
import { bandsOf, leastCount, meanShare, regionsOf, type Band, type Region, type Tokens } from './runs'
import { snapped } from './words'

type Calls = typeof import('./calls')
/** The calls of a map; replaced in tests. */
export type MapCalls = Omit<Pick<Calls, Extract<keyof Calls, `map${string}`>>, 'mapPicture'>

export interface Painted extends Tokens {
  turn: number
  layer: number | null
  layers: number
  kvHeads: number
  /** Tokens of an entry: several in very long documents, whose heads are not told apart. */
  together?: number
  /** All that is remembered: the same counts, or more than those that are kept because of the question. */
  all: Tokens
  /** Slots that hold each token because of the question, where that is drawn: by `counts`, weighed. */
  because?: Uint16Array | null
  /** Mean share kept over the document, 0 to 1; null for what is kept because of the question. */
  mean: number | null
  /** The earlier turns that the question saw, and all that is remembered of them. */
  earlier?: (EarlierTurns & { tokens: Tokens }) | null
}

/** Minimum time between fetches while the map is incomplete. */
const EVERY_MS = 110

/** The most moments of an answer that are kept. */
const MOMENTS = 8

/** Share of the tokens below the full colour of what is kept because of the question. */
const FULL_AT = 0.995

/**
 * The count of the full colour of what is kept because of the question: the strongest tokens have it. The threshold cuts
 * off the noise.
 */
export function fullOf(counts: Uint16Array): number {
  const sorted = counts.slice().sort()
  return Math.ceil(Math.max(1, sorted[Math.floor(FULL_AT * (sorted.length - 1))] ?? 0, (sorted.at(-1) ?? 0) / 2))
}

/** Parts of a slot in which `weighed` counts: models with few slots have few different counts. */
const PARTS = 16

/**
 * How much a question changes what is kept: (c - n) / sqrt(n + 1) for a token in `all` = c slots, of which `more` = c - n
 * because of the question. The same difference says less about a token that many slots keep whatever is asked. With it,
 * and the mean of twelve tokens in a row (`mostIn`), the sentence that answers is among the first three for 32 of 49
 * questions, and for 20 by the mean difference (SmolLM2 135M, a quarter kept; `--test models what_a_question`).
 */
export function weighed(more: Uint16Array, all: Uint16Array): Uint16Array {
  return more.map((count, i) => Math.round((PARTS * count) / Math.sqrt(Math.max(0, all[i]! - count) + 1)))
}

/** The least share that is painted, and its largest value. */
export const THRESHOLD = 0.25
export const MOST_THRESHOLD = 0.95

function withTokens(earlier: EarlierTurns): EarlierTurns & { tokens: Tokens } {
  const { ends, counts, slots } = earlier
  return { ...earlier, tokens: { ends: Uint32Array.from(ends), counts: Uint16Array.from(counts), slots } }
}

export class MapView {
  /** The map of the answer itself. */
  own = $state.raw<Painted | null>(null)
  /** What the answer's question would keep with less memory; see `levels.ts`. */
  levels = $state.raw<readonly Level[]>([])
  /** The budget that is chosen instead of the answer's own, in percent: its level is shown once it is known. */
  wanted = $state<number | null>(null)
  #level = $derived(this.levels.find(({ percent }) => percent === this.wanted))
  /** What was forgotten during the answer; see `replay.ts`. */
  replay = $state.raw<Replay | null>(null)
  /** The moment of the answer that is shown instead of its end. */
  moment = $state<number | null>(null)
  #shown = $derived(this.#paintedOf(this.#level) ?? this.momentOf(this.moment) ?? this.own)
  layer = $state<number | null>(null)
  /** Show what is kept because of the question, where that is known. */
  lift = $state(true)
  /** Less than this share counts as forgotten. One for both views, as long as the window is open. */
  threshold = $state(THRESHOLD)
  #calls: MapCalls
  #report: (problem: unknown) => void
  #turn: number | null = null
  #hasLift = false
  #ends: { turn: number; ends: Uint32Array } | null = null
  #timer: ReturnType<typeof setTimeout> | null = null
  #last = 0
  #fetching = false
  /** The map changed during a fetch. */
  #again = false
  #tokens = new Map<string, TokenSlots>()
  /** The last moments of `replay` that were shown. */
  #moments: { of: Tokens | null; found: Map<number, Painted> } = { of: null, found: new Map() }
  #regions = new WeakMap<Tokens, Region[]>()

  constructor(calls: MapCalls, report: (problem: unknown) => void) {
    this.#calls = calls
    this.#report = report
  }

  /** What is painted: the answer's own map, or a level. */
  get painted(): Painted | null {
    return this.#shown
  }

  set painted(painted: Painted | null) {
    this.own = painted
  }

  /** The budget of the level that is shown, in percent; null for the answer's own map. */
  get level(): number | null {
    return this.#level?.percent ?? null
  }

  #paintedOf(level: Level | undefined): Painted | null {
    const { own } = this
    if (!own || !level) return null
    const { turn, layers, kvHeads } = own
    return { turn, layers, kvHeads, layer: null, ...level, all: level }
  }

  /** All that was remembered at a moment of the answer; null where that is not known. */
  momentOf(moment: number | null): Painted | null {
    const { own, replay } = this
    // What was forgotten is known of all layers together.
    if (moment === null || !own || !replay || own.layer !== null) return null
    if (this.#moments.of !== own.all) this.#moments = { of: own.all, found: new Map() }
    const { found } = this.#moments
    const known = found.get(moment)
    if (known) return known
    const { ends, counts, slots } = own.all
    const all = { ends, counts: countsAt(replay, counts, moment), slots }
    const painted = { ...own, ...all, all, because: null, mean: meanShare(all), earlier: null }
    if (found.size >= MOMENTS) found.delete([...found.keys()].find((one) => one > 0)!)
    found.set(moment, painted)
    return painted
  }

  /** The answer's own map, as it is at the end. */
  #end(): void {
    this.wanted = null
    this.moment = null
  }

  /** Shows the map of `turn`; null shows none. `hasLift`: what is kept because of its question is known. */
  show(turn: number | null, hasLift = false): void {
    if (turn === this.#turn && hasLift === this.#hasLift) return
    const same = turn === this.#turn
    this.#hasLift = hasLift
    if (same) return this.refresh()
    this.#turn = turn
    // Asked again, a question may be read by another model.
    this.#ends = null
    this.#tokens.clear()
    this.levels = []
    this.replay = null
    this.#end()
    this.#last = 0
    if (turn !== null) return this.refresh()
    // The map of one turn remains until the next one arrives; without one, the text is unpainted at once.
    this.painted = null
    if (this.#timer !== null) clearTimeout(this.#timer)
    this.#timer = null
  }

  choose(layer: number | null): void {
    this.#end()
    if (layer === this.layer) return
    this.layer = layer
    this.#last = 0
    this.refresh()
  }

  /** Shows what is kept because of the question, or everything. */
  view(lift: boolean): void {
    this.#end()
    if (lift === this.lift) return
    this.lift = lift
    this.#last = 0
    this.refresh()
  }

  /** Fetches again after a delay; several requests within it are one. */
  refresh(): void {
    if (this.#turn === null || this.#timer !== null) return
    if (this.#fetching) {
      this.#again = true
      return
    }
    const wait = Math.max(0, this.#last + EVERY_MS - performance.now())
    this.#timer = setTimeout(() => {
      this.#timer = null
      this.#last = performance.now()
      void this.#fetch()
    }, wait)
  }

  /** The token's slots in every layer; cached until the map changes. */
  async token(token: number): Promise<TokenSlots | null> {
    const turn = this.#turn
    if (turn === null) return null
    const key = `${turn}/${token}`
    const known = this.#tokens.get(key)
    if (known) return known
    const slots = await this.#calls.mapToken(turn, token)
    if (turn === this.#turn) this.#tokens.set(key, slots)
    return slots
  }

  /** Fetches the levels that are known by now. */
  async fetchLevels(): Promise<void> {
    const turn = this.#turn
    const ends = this.own?.turn === turn ? this.own?.ends : undefined
    if (turn === null || !ends) return
    try {
      const levels = levelsOf(await this.#calls.mapLevels(turn), ends)
      // An answer that is overtaken by a later one has fewer.
      if (turn === this.#turn && levels.length >= this.levels.length) this.levels = levels
    } catch (problem) {
      if (turn === this.#turn) this.#report(problem)
    }
  }

  /** Fetches what was forgotten during the answer. */
  async fetchReplay(): Promise<void> {
    const turn = this.#turn
    const ends = this.own?.turn === turn ? this.own?.ends : undefined
    if (turn === null || !ends || this.replay !== null) return
    try {
      const bytes = await this.#calls.mapEvictions(turn)
      // The map here may still be one from during the answer; the replay begins at its end.
      await this.#fetch()
      if (turn === this.#turn) this.replay = replayOf(bytes, ends)
    } catch (problem) {
      if (turn === this.#turn) this.#report(problem)
    }
  }

  /** What the tokens of the answer of `own` looked at, by its entries; nothing before the answer is complete. */
  async attended(own: Painted): Promise<Attended[]> {
    try {
      return await this.#calls.mapAttended(own.turn)
    } catch (problem) {
      if (own.turn === this.#turn) this.#report(problem)
      return []
    }
  }

  async table(): Promise<TableRow[]> {
    return this.#turn === null ? [] : this.#calls.mapTable(this.#turn, this.layer)
  }

  async layers(): Promise<LayerRow[]> {
    return this.#turn === null ? [] : this.#calls.mapLayers(this.#turn)
  }

  /** Everything is remembered: a wall of paint would say less than none. */
  get whole(): boolean {
    return this.painted?.mean === 1
  }

  /** What is drawn of the map of `text`, by words; null draws none. */
  marks(text: string): Tokens | null {
    const { painted } = this
    if (painted === null || this.whole) return null
    // A level is the same object whenever it is shown: its words are known.
    return snapped(text, painted.mean === null ? painted : painted.all)
  }

  /** All that is remembered of `text`, by words; the same as `marks` where that is drawn. */
  memory(text: string): Tokens | null {
    const { painted } = this
    if (painted === null || this.whole) return null
    return snapped(text, painted.all)
  }

  /** The earlier turns of the answer; null without any, and with less memory, where they are not known. */
  get earlier(): Painted['earlier'] {
    return this.painted?.earlier ?? null
  }

  /** What is drawn of the earlier turns, by words. */
  marksEarlier(): Tokens | null {
    const { earlier } = this
    return earlier && !this.whole ? snapped(earlier.text, earlier.tokens) : null
  }

  /** What is kept for its place alone: not a finding about the question. */
  bands(): { first: Band | null; last: Band | null } {
    return this.painted === null || this.painted.mean === null ? { first: null, last: null } : bandsOf(this.painted)
  }

  /** The least count that is drawn, or not forgotten. */
  leastOf({ slots }: Tokens): number {
    return leastCount(slots, this.threshold)
  }

  /** Strongly kept regions that are drawn; none if nothing stands out. */
  regions(text: string): Region[] {
    const marks = this.marks(text)
    if (marks === null) return []
    const known = this.#regions.get(marks) ?? regionsOf(marks)
    this.#regions.set(marks, known)
    return known.filter(({ share }) => share >= this.threshold)
  }

  async #fetch(): Promise<void> {
    const turn = this.#turn
    const layer = this.layer
    const lift = this.lift && this.#hasLift
    if (turn === null) return
    this.#fetching = true
    this.#again = false
    try {
      const [ends, counts, known, said] = await Promise.all([
        this.#ends?.turn === turn ? this.#ends.ends : this.#calls.mapEnds(turn).then((b) => new Uint32Array(b)),
        this.#calls.mapCounts(turn, layer, lift).then((b) => new Uint16Array(b)),
        lift ? this.#calls.mapCounts(turn, layer, false).then((b) => new Uint16Array(b)) : null,
        this.#calls.mapEarlier(turn, layer),
      ])
      // After the counts, so that the slots are never fewer than those counted.
      const first = ends.length > 0 ? await this.#calls.mapToken(turn, 0) : null
      if (turn !== this.#turn || layer !== this.layer || lift !== (this.lift && this.#hasLift)) return
      this.#ends = { turn, ends }
      this.#tokens.clear()
      const kvHeads = first?.kvHeads ?? 0
      // A layer that has not been read is not an unkept one: without a layer nothing is painted.
      const read = first && kvHeads > 0 ? Math.floor(first.slots / kvHeads) : 0
      if (first && (layer === null ? read === 0 : layer >= read)) {
        this.painted = null
        return
      }
      const slots = layer === null ? (first?.slots ?? 0) : kvHeads
      const layers = first?.perLayer.length ?? 0
      const all = { ends, counts: known ?? counts, slots }
      const because = known ? counts : null
      const marks = because ? weighed(because, all.counts) : counts
      const drawn = because ? { ends, counts: marks, slots: fullOf(marks) } : all
      const together = first?.tokens ?? 1
      const mean = lift ? null : meanShare(all)
      const earlier = said && withTokens(said)
      this.painted = { turn, layer, layers, kvHeads, together, ...drawn, because, all, mean, earlier }
    } catch (problem) {
      if (turn === this.#turn) this.#report(problem)
    } finally {
      this.#fetching = false
      if (this.#again || turn !== this.#turn || layer !== this.layer || lift !== (this.lift && this.#hasLift))
        this.refresh()
    }
  }
}
