/**
 * The painted retention map: fetched for one turn and one choice of layers, and again whenever more of it arrives.
 * Arrays are replaced, never changed, behind raw references.
 */
import type { LayerRow, TableRow, TokenSlots } from './contract'
import { meanShare, regionsOf, type Region, type Tokens } from './runs'

/** The calls of a map (`calls.ts`; replaced in tests). */
export interface MapCalls {
  mapEnds(turn: number): Promise<ArrayBuffer>
  mapCounts(turn: number, layer: number | null, lift: boolean): Promise<ArrayBuffer>
  mapStrip(turn: number, rows: number, layer: number | null, lift: boolean): Promise<ArrayBuffer>
  mapToken(turn: number, token: number): Promise<TokenSlots>
  mapTable(turn: number, layer: number | null): Promise<TableRow[]>
  mapLayers(turn: number): Promise<LayerRow[]>
}

export interface Painted extends Tokens {
  turn: number
  layer: number | null
  layers: number
  kvHeads: number
  /** Mean share kept over the document, 0 to 1; null for what is kept because of the question. */
  mean: number | null
}

export interface Strip {
  turn: number
  /** Two bytes per row: mean and max, 255 is 100 %. */
  rows: Uint8Array
}

/** Minimum time between fetches while the map is incomplete. */
const EVERY_MS = 110

/** Share of the tokens below the full colour of what is kept because of the question, and least share of it painted. */
const FULL_AT = 0.995
const LEAST = 0.25

/**
 * Counts of what is kept because of the question are small and noisy: the strongest have the full colour, the weakest
 * none. Returns the count of the full colour.
 */
export function strengthen(counts: Uint16Array): number {
  const sorted = counts.slice().sort()
  const full = Math.max(1, sorted[Math.floor(FULL_AT * (sorted.length - 1))] ?? 0, (sorted.at(-1) ?? 0) / 2)
  counts.forEach((count, i) => (counts[i] = count < LEAST * full ? 0 : count))
  return Math.ceil(full)
}

export class MapView {
  painted = $state.raw<Painted | null>(null)
  strip = $state.raw<Strip | null>(null)
  layer = $state<number | null>(null)
  /** Show what is kept because of the question, where that is known. */
  lift = $state(true)
  #calls: MapCalls
  #report: (problem: unknown) => void
  #turn: number | null = null
  #hasLift = false
  #ends: { turn: number; ends: Uint32Array } | null = null
  #rows = 0
  #timer: ReturnType<typeof setTimeout> | null = null
  #last = 0
  #fetching = false
  /** The map changed during a fetch. */
  #again = false
  #tokens = new Map<string, TokenSlots>()
  #regions: { of: Painted; regions: Region[] } | null = null

  constructor(calls: MapCalls, report: (problem: unknown) => void) {
    this.#calls = calls
    this.#report = report
  }

  /** Shows the map of `turn`; null shows none. `hasLift`: what is kept because of its question is known. */
  show(turn: number | null, hasLift = false): void {
    if (turn === this.#turn && hasLift === this.#hasLift) return
    const same = turn === this.#turn
    this.#hasLift = hasLift
    if (same) return this.refresh()
    this.#turn = turn
    this.#tokens.clear()
    this.#last = 0
    if (turn !== null) return this.refresh()
    // The map of one turn remains until the next one arrives; without one, the text is unpainted at once.
    this.painted = null
    this.strip = null
    if (this.#timer !== null) clearTimeout(this.#timer)
    this.#timer = null
  }

  choose(layer: number | null): void {
    if (layer === this.layer) return
    this.layer = layer
    this.#last = 0
    this.refresh()
  }

  /** Shows what is kept because of the question, or everything. */
  view(lift: boolean): void {
    if (lift === this.lift) return
    this.lift = lift
    this.#last = 0
    this.refresh()
  }

  /** Sets the strip's height in device pixels. */
  resize(rows: number): void {
    if (rows === this.#rows) return
    this.#rows = rows
    if (this.#turn !== null) this.refresh()
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

  /** Strongly kept regions of the painted map; none if nothing stands out. */
  regions(): Region[] {
    if (this.painted === null || this.whole) return []
    if (this.#regions?.of !== this.painted) this.#regions = { of: this.painted, regions: regionsOf(this.painted) }
    return this.#regions.regions
  }

  async #fetch(): Promise<void> {
    const turn = this.#turn
    const layer = this.layer
    const lift = this.lift && this.#hasLift
    if (turn === null) return
    this.#fetching = true
    this.#again = false
    try {
      const [ends, counts, strip] = await Promise.all([
        this.#ends?.turn === turn ? this.#ends.ends : this.#calls.mapEnds(turn).then((b) => new Uint32Array(b)),
        this.#calls.mapCounts(turn, layer, lift).then((b) => new Uint16Array(b)),
        this.#rows > 0 ? this.#calls.mapStrip(turn, this.#rows, layer, lift).then((b) => new Uint8Array(b)) : null,
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
        this.strip = null
        return
      }
      const all = layer === null ? (first?.slots ?? 0) : kvHeads
      const layers = first?.perLayer.length ?? 0
      const slots = lift ? strengthen(counts) : all
      if (lift) strip?.forEach((share, i) => (strip[i] = Math.min(255, Math.round((share * all) / slots))))
      const mean = lift ? null : meanShare({ ends, counts, slots })
      this.painted = { turn, layer, layers, kvHeads, ends, counts, slots, mean }
      if (strip) this.strip = { turn, rows: strip }
    } catch (problem) {
      if (turn === this.#turn) this.#report(problem)
    } finally {
      this.#fetching = false
      if (this.#again || turn !== this.#turn || layer !== this.layer || lift !== (this.lift && this.#hasLift))
        this.refresh()
    }
  }
}
