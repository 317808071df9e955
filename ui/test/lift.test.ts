import { describe, expect, it } from 'vitest'
import { fullOf, weighed } from '../src/lib/map.svelte'

describe('what is kept because of the question', () => {
  it('weighs less where more is kept whatever is asked', () => {
    const more = new Uint16Array([0, 8, 8, 8])
    const all = new Uint16Array([90, 8, 11, 32])
    expect([...weighed(more, all)]).toEqual([0, 128, 64, 26])
  })

  it('has the full colour at its strongest tokens', () => {
    const counts = new Uint16Array(1000).fill(2)
    counts[500] = 40
    for (let i = 0; i < 20; i++) counts[i] = 30
    expect(fullOf(counts)).toBe(30)
    expect([counts[0], counts[500], counts[900]]).toEqual([30, 40, 2])
  })

  it('is nothing if no token has any', () => {
    expect([fullOf(new Uint16Array(10)), fullOf(new Uint16Array(0))]).toEqual([1, 1])
  })
})
