/** The mock's map: words of the question and their neighbours are kept, the rest at random. */
import type { LayerRow, PageRange, Source, TableRow, TokenSlots } from '../../src/lib/contract'
import { pageAt } from '../../src/lib/blocks'
import { LEVELS } from '../../src/lib/levels'
import { tokenAt } from '../../src/lib/runs'

export class Mind {
  ends: Uint32Array
  layersDone = 0
  #slots: Uint8Array[]
  /** Counts because of the question: its words and what follows them, and a little noise. */
  #lift: Uint16Array
  #text: string

  constructor(
    text: string,
    question: string,
    readonly layers: number,
    readonly kvHeads: number,
    readonly rows = 256,
  ) {
    this.#text = text
    const ends: number[] = []
    for (const match of text.matchAll(/\s*[^\s]{1,7}|\s+/g)) ends.push(match.index + match[0].length)
    this.ends = new Uint32Array(ends)
    let seed = 7
    const random = () => (seed = (seed * 16807) % 2147483647) / 2147483647
    const wanted = new Set((question.toLowerCase().match(/\p{L}{4,}/gu) ?? []).map((w) => w.slice(0, 6)))
    const heat = new Float32Array(ends.length)
    this.#lift = new Uint16Array(ends.length)
    const base = Math.min(0.25, rows / Math.max(1, ends.length)) * 0.5
    let hot = 0
    ends.forEach((end, i) => {
      const word = text
        .slice(i ? ends[i - 1] : 0, end)
        .trim()
        .toLowerCase()
      if ([...wanted].some((w) => word.includes(w))) hot = 1
      this.#lift[i] = Math.round(hot * 0.4 * layers * kvHeads + (random() < 0.1 ? 1 : 0))
      const kept = i < 4 || (ends.length > 200 && i >= ends.length - 8)
      heat[i] = Math.max(kept ? 2 : 0, hot > 0.3 ? hot : 0, random() < 0.12 ? random() * base * 3 : 0)
      hot *= 0.72
    })
    this.#slots = Array.from({ length: layers }, (_, layer) =>
      Uint8Array.from(heat, (h) => {
        const p = h > 1 ? 1 : Math.min(1, h * (0.75 + 0.5 * Math.sin(layer)))
        let n = 0
        for (let head = 0; head < kvHeads; head++) if (random() < p) n++
        return n
      }),
    )
  }

  counts(layer: number | null, lift = false): Uint16Array {
    if (lift) return this.#lift.slice()
    const counts = new Uint16Array(this.ends.length)
    this.#slots.forEach((slots, l) => {
      if (l >= this.layersDone || (layer !== null && layer !== l)) return
      for (let i = 0; i < counts.length; i++) counts[i]! += slots[i]!
    })
    return counts
  }

  /** As `map_picture`; heads of a layer take turns. `attention`: fewer tokens, as an answer looks at few. */
  picture(from: number, to: number, columns: number, heads: boolean, attention: boolean): Uint8Array<ArrayBuffer> {
    const many = Math.min(columns, to - from)
    const rows = heads ? this.kvHeads : 1
    const picture = new Uint8Array(this.layers * rows * many)
    this.#slots.forEach((slots, layer) => {
      if (layer >= this.layersDone) return
      for (let column = 0; column < many; column++) {
        const first = from + Math.floor(((to - from) * column) / many)
        const end = from + Math.floor(((to - from) * (column + 1)) / many)
        for (let row = 0; row < rows; row++) {
          let sum = 0
          for (let i = first; i < end; i += attention ? 9 : 1)
            sum += heads ? Number((row + i) % this.kvHeads < slots[i]!) : slots[i]! / this.kvHeads
          picture[(layer * rows + row) * many + column] = sum > 0 ? Math.max(1, (255 * sum) / (end - first)) : 0
        }
      }
    })
    return picture
  }

  /** As `map_levels`: the strongest tokens of each budget, and a little noise. */
  levels(many: number): Uint8Array<ArrayBuffer> {
    const counts = this.counts(null)
    const order = [...counts.keys()].sort((a, b) => this.#lift[b]! * 4 + counts[b]! - this.#lift[a]! * 4 - counts[a]!)
    const percents = LEVELS.slice(0, many)
    const bytes = new Uint8Array(1 + percents.length * (1 + counts.length))
    bytes[0] = percents.length
    percents.forEach((percent, i) => {
      bytes[1 + i] = percent
      const budget = (counts.length * percent) / 100
      order.slice(0, 2 * budget).forEach((token, rank) => {
        bytes[1 + percents.length + i * counts.length + token] = Math.round(
          255 * Math.max(0.1, 1 - rank / (2 * budget)),
        )
      })
    })
    return bytes
  }

  /** As `map_evictions`, for an answer of `tokens` tokens: each forgets something of a few. */
  evictions(tokens: number): Uint32Array<ArrayBuffer> {
    const words = [tokens, 1]
    for (let step = 0; step < tokens; step++)
      for (let i = 0; i < 6; i++)
        words.push(step, (step * 7919 + i * 104_729) % this.ends.length, 1 + (i % this.kvHeads))
    return Uint32Array.from(words)
  }

  #share(counts: Uint16Array, from: number, to: number, layer: number | null): { mean: number; max: number } {
    const slots = (layer === null ? Math.max(1, this.layersDone) : 1) * this.kvHeads
    let i = tokenAt(this.ends, from)
    let sum = 0
    let n = 0
    let max = 0
    for (; i < counts.length && (i ? this.ends[i - 1]! : 0) < to; i++, n++) {
      sum += counts[i]!
      max = Math.max(max, counts[i]!)
    }
    return n ? { mean: sum / n / slots, max: max / slots } : { mean: 0, max: 0 }
  }

  /** The first entries with the same word. */
  lookedAt(word: string): [number, number][] {
    const at = this.#text.toLowerCase().indexOf(` ${word.trim().toLowerCase()}`)
    return at < 0 ? [] : [[tokenAt(this.ends, at + 1), 255]]
  }

  token(token: number, pages: PageRange[]): TokenSlots {
    const perLayer = this.#slots.map((slots, l) => (l < this.layersDone ? slots[token]! : 0))
    const start = token ? this.ends[token - 1]! : 0
    return {
      start,
      end: this.ends[token]!,
      kept: perLayer.reduce((a, b) => a + b, 0),
      slots: this.layersDone * this.kvHeads,
      perLayer,
      heads: perLayer.map((n, l) => Array.from({ length: n }, (_, i) => (i + l) % this.kvHeads).sort((a, b) => a - b)),
      kvHeads: this.kvHeads,
      tokens: 1,
      page: pageAt(pages, start),
      document: null,
    }
  }

  table(pages: PageRange[], layer: number | null): TableRow[] {
    const counts = this.counts(layer)
    const length = this.#text.length
    const parts =
      pages.length > 0
        ? pages.map((p) => ({ name: `page ${p.number}`, start: p.start, end: p.end }))
        : Array.from({ length: 10 }, (_, i) => ({
            name: `${i * 10}-${i * 10 + 10} %`,
            start: (i * length) / 10,
            end: ((i + 1) * length) / 10,
          }))
    return parts.map((p) => ({
      name: p.name,
      start: Math.floor(p.start),
      ...this.#share(counts, p.start, p.end, layer),
    }))
  }

  layerRows(): LayerRow[] {
    return Array.from({ length: this.layers }, (_, layer) => ({
      number: layer + 1,
      layer,
      window: null,
      mean: layer < this.layersDone ? this.#share(this.counts(layer), 0, this.#text.length, layer).mean : null,
    }))
  }

  sources(pages: PageRange[], weight: number): Source[] {
    const counts = this.counts(null)
    const sentences = [...this.#text.matchAll(/[^.\n\f]+\./g)].map((m) => ({
      start: m.index,
      end: m.index + m[0].length,
    }))
    return sentences
      .filter((s) => s.end - s.start > 60)
      .map((s) => ({ ...s, kept: this.#share(counts, s.start, s.end, null).mean }))
      .sort((a, b) => b.kept - a.kept)
      .slice(0, 3)
      .map((s) => ({
        ...s,
        document: null,
        page: pageAt(pages, s.start),
        text: this.#text.slice(s.start, s.end).trim(),
        weight,
      }))
  }
}
