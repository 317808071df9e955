import { describe, expect, it } from 'vitest'
import { strengthen } from '../src/lib/map.svelte'

describe('what is kept because of the question', () => {
  it('has the full colour at its strongest tokens, and none at the weakest', () => {
    const counts = new Uint16Array(1000).fill(2)
    counts[500] = 40
    for (let i = 0; i < 20; i++) counts[i] = 30
    expect(strengthen(counts)).toBe(30)
    expect([counts[0], counts[500], counts[900]]).toEqual([30, 40, 0])
  })

  it('is nothing if no token has any', () => {
    const counts = new Uint16Array(10)
    expect(strengthen(counts)).toBe(1)
    expect([...counts].every((count) => count === 0)).toBe(true)
    expect(strengthen(new Uint16Array(0))).toBe(1)
  })
})
