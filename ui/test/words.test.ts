import { describe, expect, it } from 'vitest'
import { leastCount, runsIn, bandsOf, type Tokens } from '../src/lib/runs'
import { isInside, snap, snapped, wordAt } from '../src/lib/words'

/** The tokens of a text whose pieces are divided by `|`, with their counts. */
function given(pieces: string, counts: number[], slots = 10): { text: string; tokens: Tokens } {
  const parts = pieces.split('|')
  let at = 0
  const ends = Uint32Array.from(parts, (part) => (at += part.length))
  return { text: parts.join(''), tokens: { ends, counts: Uint16Array.from(counts), slots } }
}
const snappedOf = (pieces: string, ...counts: number[]) => {
  const { text, tokens } = given(pieces, counts)
  return [...snap(text, tokens)]
}

describe('marks snap to words', () => {
  it('paints a word with its strongest part, and no word for its neighbour', () => {
    expect(snappedOf('the| volunt|e|ers| come', 1, 3, 9, 0, 2)).toEqual([1, 9, 9, 9, 2])
    expect(snappedOf('the|\n\n|quay', 5, 9, 0)).toEqual([5, 9, 0])
  })

  it('takes signs inside a word as part of it, but not around it', () => {
    expect(snappedOf("don|'|t| ring|-|buffer", 1, 0, 4, 0, 0, 7)).toEqual([4, 4, 4, 7, 7, 7])
    expect(snappedOf('of| 1|,|884| tokens', 0, 2, 0, 5, 1)).toEqual([0, 5, 5, 5, 1])
    // A strong full stop makes no word strong; behind a strong word it is as strong.
    expect(snappedOf('by| storm|.| The', 0, 1, 9, 0)).toEqual([0, 1, 9, 0])
    expect(snappedOf('by| storm|.|\n', 0, 8, 1, 0)).toEqual([0, 8, 8, 0])
    expect(snappedOf('wall|—|the', 1, 3, 7)).toEqual([1, 3, 7])
    expect(isInside('a.b', 1)).toBe(false)
  })

  it('leaves text without spaces to its tokens', () => {
    expect(snappedOf('記|憶|は|残る', 1, 9, 0, 4)).toEqual([1, 9, 0, 4])
    expect(snappedOf('기|억', 1, 9)).toEqual([9, 9])
    expect(snappedOf('ก|ข', 1, 9)).toEqual([1, 9])
  })

  it('keeps the pieces of one character together, and surrogates whole', () => {
    const tokens = { ends: new Uint32Array([0, 0, 2, 3]), counts: new Uint16Array([7, 0, 1, 0]), slots: 10 }
    expect([...snap('😀a', tokens)]).toEqual([7, 7, 7, 0])
    expect(snappedOf('𝐚|𝐛| c', 2, 6, 0)).toEqual([6, 6, 0])
    expect(snappedOf('e|\u0301t|é', 2, 6, 0)).toEqual([6, 6, 6])
  })

  it('never makes a count smaller, and is done once for a map', () => {
    const { text, tokens } = given('the| qu|ay', [1, 2, 3])
    expect(snapped(text, tokens)).toBe(snapped(text, tokens))
    expect(snapped(`${text} more`, tokens)).not.toBe(snapped(text, tokens))
    expect([...tokens.counts]).toEqual([1, 2, 3])
  })

  it('finds the word of a token and its strongest part', () => {
    const { text, tokens } = given('the| volunt|e|ers| come', [1, 3, 9, 0, 2])
    expect(wordAt(text, tokens, 3)).toEqual({ first: 1, end: 4, strongest: 2 })
    expect(wordAt(text, tokens, 0)).toEqual({ first: 0, end: 1, strongest: 0 })
  })

  it('takes a long document at once', () => {
    const n = 128_000
    const text = 'word '.repeat(n)
    const tokens = {
      ends: Uint32Array.from({ length: n * 2 }, (_, i) => Math.floor(i / 2) * 5 + (i % 2 ? 5 : 2)),
      counts: new Uint16Array(n * 2).fill(3),
      slots: 12,
    }
    const begun = performance.now()
    snap(text, tokens)
    // A generous limit: on an idle machine it is a few milliseconds.
    expect(performance.now() - begun).toBeLessThan(300)
  })
})

describe('the threshold', () => {
  it('cuts at exactly its share, and never shows what is not kept', () => {
    expect([0, 0.25, 0.95].map((share) => leastCount(12, share))).toEqual([1, 3, 12])
    expect([leastCount(10, 0.7), leastCount(100, 0.29), leastCount(0, 0.5)]).toEqual([7, 29, 1])
  })

  it('draws nothing below it', () => {
    const { tokens } = given('aa|bb|cc|dd', [1, 3, 2, 12], 12)
    const steps = (least: number) => runsIn(tokens, 0, 8, least).map(({ start, end, step }) => [start, end, step])
    expect(steps(3)).toEqual([
      [0, 2, 0],
      [2, 4, 5],
      [4, 6, 0],
      [6, 8, 20],
    ])
    expect(steps(13)).toEqual([[0, 8, 0]])
  })
})

describe('bands', () => {
  const bands = (...counts: number[]) => {
    const ends = Uint32Array.from(counts, (_, i) => (i + 1) * 3)
    const { first, last } = bandsOf({ ends, counts: Uint16Array.from(counts), slots: 10 })
    return [first && [first.start, first.end], last && [last.start, last.end]]
  }
  it('are the first and last tokens, where nearly every slot holds them', () => {
    expect(bands(10, 10, 9, 10, 2, 10, 1, 9, 9, 9, 10)).toEqual([
      [0, 12],
      [21, 33],
    ])
    // Fewer than four, and less than nine in ten.
    expect(bands(10, 10, 10, 8, 2, 10, 1, 8, 9, 9, 10)).toEqual([null, null])
  })
  it('are none where everything is remembered, or nothing', () => {
    expect(bands(10, 10, 10, 10, 10, 10)).toEqual([null, null])
    expect(bands()).toEqual([null, null])
    expect(bandsOf({ ends: new Uint32Array([1]), counts: new Uint16Array([0]), slots: 0 })).toEqual({
      first: null,
      last: null,
    })
  })
})
