/** The slider "With less memory": levels of memory, their stops, and what the page shows of them. */
import { clearMocks, mockIPC } from '@tauri-apps/api/mocks'
import { flushSync, mount, unmount, type Component } from 'svelte'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { AppState } from '../src/lib/app.svelte'
import type { Kept } from '../src/lib/context'
import lift from '../../engine/src/grid/lift.rs?raw'
import { LEVELS, levelsOf, placeOf, stopAt, stopsOf, wordsLeft } from '../src/lib/levels'
import LessMemory from '../src/parts/LessMemory.svelte'
import Frame from './Frame.svelte'
import { answerFacts, documentFacts, snapshot, turn } from './given'
import { keptOf } from './kept'

const TEXT = 'The code is 4711. Nothing else is here.'
const MIDDLE = TEXT.indexOf(' Nothing')
const ENDS = [MIDDLE, TEXT.length]
/** Two budgets: with 2 % nothing is left, with 10 % the first sentence. */
const BYTES = [2, 2, 10, 0, 0, 255, 26]

describe('levels', () => {
  it('are read from bytes, with everything at the end', () => {
    const levels = levelsOf(new Uint8Array(BYTES).buffer, new Uint32Array(ENDS))
    expect(levels.map(({ percent, counts, slots }) => [percent, [...counts], slots])).toEqual([
      [2, [0, 0], 255],
      [10, [255, 26], 255],
      [100, [255, 255], 255],
    ])
    expect(levels.map(({ mean }) => Math.round(mean * 100))).toEqual([0, 55, 100])
    expect(levelsOf(new Uint8Array([0]).buffer, new Uint32Array(ENDS))).toEqual([])
    expect(levelsOf(new Uint8Array(BYTES).buffer, new Uint32Array([1, 2, 3]))).toEqual([])
  })

  it('have their places on a logarithmic scale, and the answer has its own', () => {
    expect([1, 2, 100, 200].map(placeOf)).toEqual([0, 0, 1, 1])
    expect(placeOf(20) - placeOf(10)).toBeCloseTo(placeOf(10) - placeOf(5))
    expect(stopsOf([2, 10, 100], 25)).toEqual([2, 10, 25, 100])
    expect(stopsOf([2, 10, 100], 10.4)).toEqual([2, 10.4, 100])
    expect([0, 0.3, 0.5, 1].map((place) => stopAt([2, 10, 25, 100], place))).toEqual([2, 10, 10, 100])
  })

  it('are those of the engine', () => {
    expect(lift).toContain(`[${LEVELS.join(', ')}]`)
  })

  it('count the words of a passage that are left', () => {
    const [none, some] = levelsOf(new Uint8Array(BYTES).buffer, new Uint32Array(ENDS))
    expect(wordsLeft(TEXT, none!, 0, MIDDLE, 64)).toEqual({ left: 0, all: 4 })
    expect(wordsLeft(TEXT, some!, 0, TEXT.length, 64)).toEqual({ left: 4, all: 8 })
  })
})

describe('the slider', () => {
  let kept: Kept
  let part: Record<string, unknown> | null = null
  let called: string[] = []
  let refuse = false

  beforeEach(async () => {
    called = []
    refuse = false
    mockIPC((name) => {
      called.push(name)
      if (name === 'show_less_memory' && refuse) throw 'Less memory cannot be shown.'
      if (name === 'map_levels') return BYTES
      if (name === 'map_ends') return new Uint32Array(ENDS).buffer
      if (name === 'map_counts') return new Uint16Array([1, 0]).buffer
      return name === 'map_token' ? { slots: 1, perLayer: [1], kvHeads: 1 } : null
    })
    const app = new AppState()
    const sources = [{ start: 0, end: MIDDLE, page: null, document: null, text: '', weight: 1, kept: 1 }]
    const answered = turn({ facts: answerFacts(), hasMap: true, sources })
    app.load(snapshot({ document: documentFacts({ length: TEXT.length }), turns: [answered] }))
    kept = keptOf(app)
    kept.map.show(1)
    await new Promise((resolve) => setTimeout(resolve, 30))
    part = mount(Frame, {
      target: document.body,
      props: { given: kept, part: LessMemory as unknown as Component<never>, props: { text: TEXT } },
    })
    flushSync()
  })
  afterEach(async () => {
    if (part) await unmount(part)
    clearMocks()
    document.body.replaceChildren()
  })
  const slider = () => document.querySelector<HTMLElement>('[data-testid=memory-slider]')!
  const said = () => document.querySelector('[data-testid=memory-said]')!.textContent.replace(/\s+/g, ' ').trim()
  const title = () => document.querySelector<HTMLElement>('[data-testid=memory-said]')!.title
  async function settle() {
    await new Promise((resolve) => setTimeout(resolve, 60))
    flushSync()
  }
  async function press(key: string) {
    slider().dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true, cancelable: true }))
    await settle()
  }
  async function known() {
    slider().focus()
    await settle()
    Object.assign(kept.app.turns[0]!, { levels: 2, levelsDone: true })
    flushSync()
    await settle()
  }

  it('asks for the levels when it is first used, once', async () => {
    expect(called).not.toContain('show_less_memory')
    slider().focus()
    await settle()
    slider().blur()
    slider().focus()
    expect(called.filter((name) => name === 'show_less_memory')).toHaveLength(1)
    expect(said()).toBe('Finding out, 0 of 13 budgets …')
    Object.assign(kept.app.turns[0]!, { levels: 2 })
    flushSync()
    expect(said()).toBe('Finding out, 2 of 13 budgets …')
    expect(title()).toBe('Finding out what less memory would keep: 2 of 13 budgets …')
    expect(slider().getAttribute('aria-valuetext')).toBe('This answer: 25 %')
  })

  it('follows at once, and shows a level when it is known', async () => {
    slider().focus()
    await press('PageDown')
    expect([kept.map.wanted, kept.map.level, slider().getAttribute('aria-valuenow')]).toEqual([10, null, '10'])
    expect([...kept.map.painted!.counts]).toEqual([1, 0])
    expect(said()).toBe('Finding out what 10 % would keep …')
    expect(slider().getAttribute('aria-valuetext')).toBe(said())
    Object.assign(kept.app.turns[0]!, { levels: 2 })
    flushSync()
    await settle()
    expect([kept.map.level, [...kept.map.painted!.counts]]).toEqual([10, [255, 26]])
    // The method cannot have this one.
    await press('ArrowLeft')
    expect([kept.map.wanted, kept.map.level]).toEqual([8, null])
    Object.assign(kept.app.turns[0]!, { levelsDone: true })
    flushSync()
    await settle()
    expect([kept.map.wanted, kept.map.level]).toEqual([10, 10])
  })

  it('shows the page under each budget, without asking for anything', async () => {
    await known()
    const before = called.length
    expect(said()).toBe('With 2 %, the passage is forgotten')
    expect(title()).toBe('With 2 %, the passage that answers is forgotten')
    expect(document.querySelector<HTMLElement>('[data-testid=memory-lost]')?.dataset['percent']).toBe('2')
    await press('ArrowLeft')
    expect(kept.map.level).toBe(10)
    expect([...kept.map.painted!.counts]).toEqual([255, 26])
    expect(said()).toBe('10 %: the passage stays')
    expect(title()).toBe('With 10 %: all 4 words of the passage that answers')
    expect(slider().getAttribute('aria-valuetext')).toBe(title())
    await press('Home')
    expect([kept.map.level, said()]).toEqual([2, '2 %: the passage is forgotten'])
    expect(title()).toBe('With 2 %: the passage that answers is forgotten')
    await press('End')
    expect([kept.map.level, kept.map.whole]).toEqual([100, true])
    await press('Escape')
    expect([kept.map.level, [...kept.map.painted!.counts]]).toEqual([null, [1, 0]])
    expect(called).toHaveLength(before)
  })

  it('counts the words of the passage that are left', async () => {
    kept.app.turns[0]!.sources[0]!.end = TEXT.length
    await known()
    await press('ArrowLeft')
    expect(said()).toBe('10 %: 4 of 8 words of the passage left')
    expect(title()).toBe('With 10 %: 4 of 8 words of the passage that answers')
  })

  it('leaves a level for a layer, a view or another turn', async () => {
    await known()
    await press('Home')
    kept.map.choose(0)
    expect(kept.map.level).toBeNull()
    await press('Home')
    expect(kept.map.layer).toBeNull()
    kept.map.show(2)
    flushSync()
    expect([kept.map.level, kept.map.levels]).toEqual([null, []])
  })

  it('says why there is nothing to show', async () => {
    refuse = true
    slider().focus()
    await press('Home')
    expect([said(), kept.map.wanted]).toEqual(['Less memory cannot be shown.', null])
  })

  it('is not available for a stopped answer', () => {
    kept.app.apply({ event: 'turn', turn: { ...kept.app.turns[0]!, state: 'stopped', facts: null } })
    flushSync()
    expect([said(), slider().getAttribute('aria-disabled')]).toEqual(['Not available for a stopped answer', 'true'])
  })

  it('takes SnapKV for an answer that remembers everything', async () => {
    kept.app.turns[0]!.method = 'full'
    flushSync()
    expect(slider().getAttribute('aria-disabled')).toBe('false')
    await known()
    await press('Home')
    expect(said()).toMatch(/^\d+ % and SnapKV: /)
  })
})
