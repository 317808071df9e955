import { describe, expect, it } from 'vitest'
import { blocksOf } from '../src/lib/blocks'
import cases from './shares.json'
import { cellsOf, draw, mostIn, placeAt, rowsOf, shareIn, topOf } from '../src/lib/minimap'

const paragraph = (letters: number) => 'x'.repeat(letters)
const rows = (text: string, most: number) => rowsOf(blocksOf(text, []), text.length, most)

describe('rows', () => {
  it('are the lines of paragraphs, with a gap between them', () => {
    const text = `${paragraph(150)}\n\n${paragraph(20)}`
    const { starts, ends, tops, columns, total } = rows(text, 300)
    expect(columns).toBe(72)
    expect([...starts]).toEqual([0, 72, 144, 152])
    expect([...ends]).toEqual([72, 144, 150, 172])
    expect([...tops]).toEqual([0, 1, 2, 3.75])
    expect(total).toBe(4.75)
  })

  it('always fit, and cover the document in order', () => {
    for (const paragraphs of [1, 10, 100, 1000, 5000]) {
      const text = Array.from({ length: paragraphs }, (_, i) => paragraph(30 + ((i * 97) % 700))).join('\n\n')
      const { starts, ends, tops, total } = rows(text, 320)
      expect(total).toBeLessThanOrEqual(321)
      starts.forEach((start, i) => {
        expect(ends[i]!).toBeGreaterThan(start)
        if (i === 0) return
        expect(start).toBeGreaterThanOrEqual(ends[i - 1]!)
        expect(tops[i]!).toBeGreaterThanOrEqual(tops[i - 1]! + 1)
      })
      expect(ends.at(-1)).toBe(text.length)
    }
  })

  it('lead from a place to its height and back', () => {
    const text = `${paragraph(150)}\n\n${paragraph(20)}`
    const all = rows(text, 300)
    expect([0, 36, 72, 160].map((at) => topOf(all, at))).toEqual([0, 0.5, 1, 3.75 + 0.4])
    expect(placeAt(all, 1.5)).toEqual({ start: 72, end: 144, offset: 108 })
    expect(placeAt(all, 99).offset).toBe(172)
    expect([topOf(rows('', 10), 5), placeAt(rows('', 10), 5).offset]).toEqual([0, 0])
  })
})

describe('cells', () => {
  const text = paragraph(144)
  const all = rows(text, 300)
  const tokens = (...counts: [number, number, number][]) => ({
    ends: Uint32Array.from(counts, ([, end]) => end),
    counts: Uint16Array.from(counts, ([, , count]) => count),
    slots: 10,
  })
  it('have the strength of the page, in place, across rows', () => {
    const cells = cellsOf(all, tokens([0, 70, 0], [70, 76, 8], [76, 144, 0]), 3, 72)
    expect([...cells].map((c, i) => (c > 0 ? [i, Math.round(c * 100) / 100] : null)).filter(Boolean)).toEqual([
      [70, 0.8], [71, 0.8], [72, 0.8], [73, 0.8], [74, 0.8], [75, 0.8],
    ]) // prettier-ignore
  })
  it('show a single word among many, and nothing below the threshold', () => {
    // Nine characters in a cell.
    const single = tokens([0, 30, 2], [30, 31, 10], [31, 144, 0])
    const cells = cellsOf(all, single, 3, 8)
    expect([...cells].filter((c) => c > 0).map((c) => Math.round(c * 10) / 10)).toEqual([0.7])
    expect(cellsOf(all, single, 11, 8).every((c) => c === 0)).toBe(true)
  })
  it('take a long document within a frame', () => {
    const n = 128_000
    const long = paragraph(n * 4)
    const ends = Uint32Array.from({ length: n }, (_, i) => (i + 1) * 4)
    const counts = Uint16Array.from({ length: n }, (_, i) => i % 13)
    const wide = rows(long, 320)
    const begun = performance.now()
    cellsOf(wide, { ends, counts, slots: 12 }, 3, 74)
    // A generous limit: on an idle machine it is two milliseconds.
    expect(performance.now() - begun).toBeLessThan(200)
  })
  it('have a mean and a maximum for the words beside the pointer', () => {
    expect(shareIn(tokens([0, 10, 2], [10, 20, 6], [20, 144, 0]), 5, 15)).toEqual({ mean: 0.4, most: 6 })
    expect(shareIn(tokens(), 0, 5)).toEqual({ mean: 0, most: 0 })
    const ends = Uint32Array.from({ length: 30 }, (_, i) => i + 1)
    const counts = new Uint16Array(30).fill(1)
    counts.fill(3, 10, 16)
    // Twelve tokens in a row; those before and after the part do not count.
    expect(mostIn({ ends, counts, slots: 4 }, 0, 30)).toBe(24 / 48)
    expect(mostIn({ ends, counts, slots: 4 }, 0, 10)).toBe(10 / 48)
    expect(mostIn({ ends, counts, slots: 0 }, 0, 10)).toBe(0)
  })
  it('have the shares that the engine computes', () => {
    for (const { ends, counts, heads, ranges } of cases) {
      const own = { ends: new Uint32Array(ends), counts: new Uint16Array(counts), slots: heads }
      for (const [from, to, mean, most] of ranges)
        expect(shareIn(own, from!, to!), `${from}..${to}`).toEqual({ mean, most })
    }
  })
})

describe('the picture', () => {
  it('has ink where lines are and the mark behind it, nothing elsewhere', () => {
    const all = rows(paragraph(36), 300)
    const cells = new Float32Array(4)
    cells[0] = 1
    const words = new Uint32Array(4 * 4)
    draw(words, 4, 4, all, cells, 3, { mark: [250, 214, 66], strength: 0.8, ink: [0, 0, 0], faint: 0.2 })
    const alpha = [...words].map((word) => word >>> 24)
    // Half a row of text: two of four pixels have ink in the middle line; the mark is three pixels tall.
    expect(alpha).toEqual([204, 0, 0, 0, 214, 51, 0, 0, 204, 0, 0, 0, 0, 0, 0, 0])
    expect([...new Uint8Array(words.buffer, 0, 3)]).toEqual([250, 214, 66])
  })
})
