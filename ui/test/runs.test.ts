import { describe, expect, it } from 'vitest'
import { meanShare, meanShareIn, regionsOf, runsIn, stepOf, tokenAt, type Tokens } from '../src/lib/runs'

function random(seed: number) {
  let state = seed
  return (n: number) => (state = (state * 16807) % 2147483647) % n
}

/** Tokens of a text of `length`: some empty (pieces of a character), and possibly an end of the text without tokens. */
function tokens(seed: number, length: number, slots: number): Tokens {
  const r = random(seed)
  const ends: number[] = []
  let at = 0
  while (at < length - r(3)) {
    if (r(5) === 0) ends.push(at)
    at = Math.min(length, at + 1 + r(4))
    ends.push(at)
  }
  return {
    ends: new Uint32Array(ends),
    counts: new Uint16Array(ends.map(() => (r(3) === 0 ? 0 : r(slots + 1)))),
    slots,
  }
}

/** The step of every character, by a search over all tokens. */
function byHand({ ends, counts, slots }: Tokens, from: number, to: number): number[] {
  const steps: number[] = []
  for (let at = from; at < to; at++) {
    let most = 0
    ends.forEach((end, i) => {
      const start = i > 0 ? ends[i - 1]! : 0
      const holds = start <= at && at < end
      // A piece of a character: empty, and the token that completes the character contains it.
      const completes = ends.findIndex((e) => e > end)
      const piece =
        start === end &&
        end <= at &&
        completes >= 0 &&
        at < ends[completes]! &&
        (completes > 0 ? ends[completes - 1]! : 0) === end
      if (holds || piece) most = Math.max(most, counts[i]!)
    })
    steps.push(stepOf(most, slots))
  }
  return steps
}

describe('runsIn', () => {
  it('agrees with every character looked at by hand', () => {
    for (let seed = 1; seed < 120; seed++) {
      const r = random(seed + 1000)
      const length = 5 + r(60)
      const all = tokens(seed, length, 1 + r(12))
      const from = r(length)
      const to = from + r(length - from + 1)
      const runs = runsIn(all, from, to)
      const steps = runs.flatMap((run) => Array<number>(run.end - run.start).fill(run.step))
      expect(steps, `seed ${seed}, ${from}..${to}`).toEqual(byHand(all, from, to))
      runs.forEach((run, i) => {
        expect(run.end).toBeGreaterThan(run.start)
        if (i > 0) {
          expect(run.start).toBe(runs[i - 1]!.end)
          expect(run.step).not.toBe(runs[i - 1]!.step)
        }
      })
    }
  })

  it('is plain without tokens or slots', () => {
    expect(runsIn({ ends: new Uint32Array(), counts: new Uint16Array(), slots: 0 }, 0, 5)).toEqual([
      { start: 0, end: 5, step: 0 },
    ])
    expect(runsIn({ ends: new Uint32Array([5]), counts: new Uint16Array([3]), slots: 0 }, 0, 5)).toEqual([
      { start: 0, end: 5, step: 0 },
    ])
    expect(runsIn({ ends: new Uint32Array([5]), counts: new Uint16Array([3]), slots: 4 }, 2, 2)).toEqual([])
  })

  it('takes what a block needs from a long document at once', () => {
    const n = 200_000
    const all = {
      ends: Uint32Array.from({ length: n }, (_, i) => (i + 1) * 4),
      counts: new Uint16Array(n).fill(3),
      slots: 12,
    }
    const begun = performance.now()
    for (let i = 0; i < 1000; i++) runsIn(all, i * 700, i * 700 + 600)
    // A generous limit: a search over the whole document a thousand times would take seconds.
    expect(performance.now() - begun).toBeLessThan(1000)
  })
})

describe('steps', () => {
  it('never hides what is kept and never rounds up to everything', () => {
    expect(stepOf(0, 288)).toBe(0)
    expect(stepOf(1, 288)).toBe(1)
    expect(stepOf(144, 288)).toBe(10)
    expect(stepOf(287, 288)).toBe(19)
    expect(stepOf(288, 288)).toBe(20)
    expect(stepOf(300, 288)).toBe(20)
  })
  it('finds tokens', () => {
    const ends = new Uint32Array([3, 3, 4, 9])
    expect([0, 2, 3, 4, 8, 9].map((at) => tokenAt(ends, at))).toEqual([0, 0, 2, 3, 3, 4])
  })
  it('means and regions', () => {
    const counts = new Uint16Array(100)
    counts[10] = 12
    counts[12] = 6
    counts[13] = 5
    counts[80] = 8
    const all = { ends: Uint32Array.from({ length: 100 }, (_, i) => i + 1), counts, slots: 12 }
    expect(meanShare(all)).toBeCloseTo(31 / 1200)
    expect(regionsOf(all)).toEqual([
      { start: 10, end: 13, share: 1 },
      { start: 80, end: 81, share: 8 / 12 },
    ])
    expect(regionsOf({ ...all, counts: new Uint16Array(100) })).toEqual([])
    // Everything kept: the regions still cover the text, one after the other.
    const full = regionsOf({ ...all, counts: new Uint16Array(100).fill(12) })
    expect(full).toEqual([
      { start: 0, end: 64, share: 1 },
      { start: 64, end: 100, share: 1 },
    ])
    // Many tokens kept slightly less than the strongest do not hide it.
    const dense = new Uint16Array(1000).fill(7)
    dense[500] = 12
    const ends = Uint32Array.from({ length: 1000 }, (_, i) => i + 1)
    expect(regionsOf({ ends, counts: dense, slots: 12 })).toEqual([{ start: 500, end: 501, share: 1 }])
  })

  it('is also that of the tokens of a passage', () => {
    const tokens: Tokens = { ends: new Uint32Array([3, 6, 9]), counts: new Uint16Array([4, 1, 2]), slots: 4 }
    expect(meanShareIn(tokens, 3, 9)).toBe(3 / 8)
    expect(meanShareIn(tokens, 4, 5)).toBe(1 / 4)
    expect(meanShareIn(tokens, 9, 12)).toBe(0)
  })
})
