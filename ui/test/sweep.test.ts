import { expect, it } from 'vitest'
import type { Progress } from '../src/lib/contract'
import { backgroundSweepOf, sweepOf } from '../src/lib/sweep'

const at = (tokensDone: number, more: Partial<Progress> = {}): Progress => ({
  phase: 'reading',
  tokensDone,
  tokensTotal: 800,
  tokensPerSecond: 1,
  secondsLeft: 1,
  tokensFromVault: 0,
  ...more,
})

it('goes through the document as its progress does', () => {
  expect([0, 50, 200].map((done) => sweepOf(at(done)))).toEqual([0, 0.0625, 0.25])
})

it('begins where the vault ends', () => {
  expect(sweepOf(at(400, { tokensFromVault: 800 }))).toBe(0.75)
})

it('is nowhere before, after, and for a question alone', () => {
  expect(sweepOf(at(800))).toBeNull()
  expect(sweepOf(at(10, { phase: 'answering' }))).toBeNull()
  expect(sweepOf(at(1, { tokensTotal: 30 }))).toBeNull()
})

it('of reading in the background goes through the document once, or once more', () => {
  expect([0, 200, 799, 800].map((done) => backgroundSweepOf(at(done), 800))).toEqual([0, 0.25, 799 / 800, null])
  const twice = { tokensTotal: 1800 }
  expect([400, 800, 1300].map((done) => backgroundSweepOf(at(done, twice), 800))).toEqual([0.5, 0, 0.5])
})
