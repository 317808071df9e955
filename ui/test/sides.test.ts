/** Two memories side by side: the difference, and the view of it. */
import { clearMocks, mockIPC } from '@tauri-apps/api/mocks'
import { flushSync, mount, unmount, type Component } from 'svelte'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { AppState } from '../src/lib/app.svelte'
import { blocksOf } from '../src/lib/blocks'
import { rowsOf as runRows } from '../src/lib/compare'
import type { Kept } from '../src/lib/context'
import type { Choice, Comparison } from '../src/lib/contract'
import { differenceOf, drawKinds, kindsIn } from '../src/lib/difference'
import { rowsOf } from '../src/lib/minimap'
import type { Tokens } from '../src/lib/runs'
import { begun, referenceOf, runOf } from './comparison'
import RunSides from '../src/parts/compare/RunSides.svelte'
import VersionSides from '../src/parts/compare/VersionSides.svelte'
import Frame from './Frame.svelte'
import { answerFacts, documentFacts, snapshot, turn } from './given'
import { keptOf } from './kept'

const tokens = (ends: number[], counts: number[], slots = 10): Tokens => ({
  ends: new Uint32Array(ends),
  counts: new Uint16Array(counts),
  slots,
})

describe('the difference of two memories', () => {
  it('is that of a plain computation, for any tokens', () => {
    let seed = 5
    const random = (most: number) => (seed = (seed * 16807) % 2147483647) % most
    for (let round = 0; round < 200; round++) {
      const length = 1 + random(60)
      const side = () => {
        const ends: number[] = []
        for (let at = 0; at < length;) ends.push((at = Math.min(length, at + random(4))))
        return tokens(
          ends,
          ends.map(() => random(11)),
        )
      }
      const [a, b] = [side(), side()]
      const [leastA, leastB] = [1 + random(9), 1 + random(9)]
      const holds = ({ ends, counts }: Tokens, at: number, least: number) =>
        counts[ends.findIndex((end) => end > at)]! >= least
      const expected = Array.from({ length }, (_, at) => {
        const [inA, inB] = [holds(a, at, leastA), holds(b, at, leastB)]
        return inA && inB ? 'both' : inA ? 'a' : inB ? 'b' : ''
      })
      const found = differenceOf({ tokens: a, least: leastA }, { tokens: b, least: leastB })
      for (const kind of ['both', 'a', 'b'] as const) {
        const own = expected.map((other) => other === kind)
        expect(found.shares[kind]).toBeCloseTo(own.filter(Boolean).length / length)
        expect(own.map((_, at) => holds(found.tokens[kind], at, 1))).toEqual(own)
      }
    }
  })

  it('is drawn in the colour of each kind', () => {
    const text = 'x'.repeat(72 * 3)
    const rows = rowsOf(blocksOf(text, []), text.length, 10)
    const [third, all] = [72, [72, 144, 216]]
    const found = differenceOf(
      { tokens: tokens(all, [9, 9, 0]), least: 5 },
      { tokens: tokens(all, [9, 0, 9]), least: 5 },
    )
    expect(third).toBe(72)
    expect([...kindsIn(rows, found, 2)]).toEqual([1, 1, 2, 2, 3, 3])
    const words = new Uint32Array(2 * 3)
    drawKinds(words, 2, 3, rows, kindsIn(rows, found, 2), 1, [
      [1, 1, 1],
      [2, 2, 2],
      [3, 3, 3],
    ])
    const bytes = new Uint8Array(words.buffer)
    expect([0, 2, 4].map((pixel) => [...bytes.slice(pixel * 4, pixel * 4 + 4)])).toEqual([
      [1, 1, 1, 255],
      [2, 2, 2, 255],
      [3, 3, 3, 255],
    ])
  })
})

const TEXT = 'The quay wall was built in 1884. The lessor pays for it, and for nothing else. It fell down twice since.'
const SECOND = TEXT.indexOf('The lessor')
const THIRD = TEXT.indexOf('It fell')
const ENDS = [SECOND, THIRD, TEXT.length]

describe('the view', () => {
  let kept: Kept
  let part: Record<string, unknown> | null = null
  let closed = 0
  let saved: Record<string, unknown>[] = []
  const shares: Record<number, number[]> = { 0: [0, 255, 0], 1: [255, 0, 0] }

  beforeEach(async () => {
    closed = 0
    saved = []
    mockIPC((name, args) => {
      const given = (args ?? {}) as { run: number | null; turn: number; settings: Record<string, unknown> }
      if (name === 'document_text') return new TextEncoder().encode(TEXT).buffer
      if (name === 'compared_map')
        return given.run === null ? new Uint32Array(ENDS).buffer : new Uint8Array(shares[given.run]!).buffer
      if (name === 'map_ends') return new Uint32Array(ENDS).buffer
      if (name === 'map_counts') return new Uint16Array(given.turn === 1 ? [0, 4, 0] : [4, 0, 0]).buffer
      if (name === 'map_token') return { slots: 4, perLayer: [4], kvHeads: 4 }
      if (name === 'save_settings') {
        saved.push(given.settings)
        return given.settings
      }
      return null
    })
    const app = new AppState()
    const document = documentFacts({ length: TEXT.length })
    const sources = [{ start: SECOND, end: THIRD - 1, page: null, document: null, text: '', weight: 1, kept: 1 }]
    const facts = answerFacts({ citations: [{ end: 4, source: 0 }] })
    const first = turn({ facts, sources, hasMap: true, answer: 'One.' })
    const again = turn({ id: 2, versionOf: 1, facts: answerFacts(), hasMap: true, answer: 'Two.', budget: '10%' })
    app.load(snapshot({ document, turns: [first, again] }))
    kept = keptOf(app)
    await kept.text.show(document)
  })
  afterEach(async () => {
    if (part) await unmount(part)
    part = null
    clearMocks()
    document.body.replaceChildren()
  })
  async function show(component: unknown, props: Record<string, unknown> = {}) {
    part = mount(Frame, {
      target: document.body,
      props: { given: kept, part: component as Component<never>, props: { close: () => closed++, ...props } },
    })
    await settle()
  }
  async function settle() {
    for (let i = 0; i < 4; i++) {
      await new Promise((resolve) => setTimeout(resolve, 5))
      flushSync()
    }
  }
  const all = (id: string) => [...document.querySelectorAll<HTMLElement>(`[data-testid=${id}]`)]
  const words = (element: Element | undefined) => element?.textContent?.replace(/\s+/g, ' ').trim()
  const choose = async (side: string, index: number) => {
    const select = all(`sides-choose-${side}`)[0] as HTMLSelectElement
    select.selectedIndex = index
    select.dispatchEvent(new Event('change', { bubbles: true }))
    await settle()
  }

  function comparison(): Comparison {
    const runs: Choice[] = ['snapkv', 'h2o'].map((method) => ({ method, parameters: {}, budget: '25%' }))
    const report = (i: number, same: boolean) => ({
      ...runOf(runs[i]!, i, 100, 4, 4000),
      finish: same ? ('end' as const) : ('repetition' as const),
      same_answer: same,
      answer: same ? '' : 'Nobody.',
    })
    return {
      ...begun(7, 'Who pays?', runs, 'sample.txt'),
      state: 'done',
      reference: { seconds: 1, report: { ...referenceOf(100, 4, 2, 4000), answer: 'The lessor.' } },
      runs: runs.map((choice, i) => ({ choice, result: { seconds: 1, report: report(i, i === 0) } })),
    }
  }

  it('shows a run with the same answer beside one with another, and what only one remembers', async () => {
    const compared = comparison()
    kept.app.apply({ event: 'comparison', comparison: compared })
    await show(RunSides, { comparison: compared, rows: runRows(compared, kept.app.methods) })
    expect(words(all('sides-answer-a')[0])).toBe('The lessor.')
    expect(words(all('sides-answer-b')[0])).toBe('Nobody.')
    const figures = [...document.querySelectorAll('.facts')].map((said) => said.textContent.includes('repeated itself'))
    expect(figures).toEqual([false, true])
    expect(all('sides-share').map(words)).toEqual(['Painted in both 0 %', 'Only in A 44 %', 'Only in B 32 %'])
    expect(words(all('sides-passage')[0])).toBe('Of the passage that answers, A remembers 100 %, B 0 %.')
    expect(all('sides-mark')).toHaveLength(1)
    expect(all('sides-sentence').map(words)).toEqual([
      'The lessor pays for it, and for nothing else.',
      'The quay wall was built in 1884.',
    ])
    all('sides-sentence')[1]!.click()
    expect([closed, kept.reader.passage]).toEqual([1, { start: 0, end: SECOND - 1 }])
    await choose('b', 0)
    expect(all('sides-share').map(words)).toEqual(['Painted in both 44 %', 'Only in A 0 %', 'Only in B 56 %'])
    expect(words(all('sides-answer-b')[0])).toBe('The lessor.')
  })

  it('takes over what one side was made with', async () => {
    const compared = comparison()
    await show(RunSides, { comparison: compared, rows: runRows(compared, kept.app.methods) })
    all('sides-use-b')[0]!.click()
    await settle()
    expect(saved[0]).toMatchObject({ method: 'h2o', budget: '25%', parameters: {} })
    expect(closed).toBe(1)
  })

  it('waits for the first run', async () => {
    const compared = comparison()
    const running = {
      ...compared,
      state: 'running' as const,
      runs: compared.runs.map((run) => ({ ...run, result: null })),
    }
    await show(RunSides, { comparison: running, rows: runRows(running, kept.app.methods) })
    expect(words(all('sides-none')[0])).toContain('as soon as the first one has answered')
  })

  it('shows two versions of an answer', async () => {
    kept.app.selected = 2
    await show(VersionSides)
    expect([words(all('sides-answer-a')[0]), words(all('sides-answer-b')[0])]).toEqual(['One.', 'Two.'])
    expect(all('sides-share').map(words)).toEqual(['Painted in both 0 %', 'Only in A 44 %', 'Only in B 32 %'])
    all('sides-use-a')[0]!.click()
    await settle()
    expect([kept.app.selected, closed, saved[0]?.['budget']]).toEqual([1, 1, null])
  })
})
