/** The replay of an answer: what was remembered at each moment, and what was forgotten. */
import { clearMocks, mockIPC } from '@tauri-apps/api/mocks'
import { flushSync, mount, unmount, type Component } from 'svelte'
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { AppState } from '../src/lib/app.svelte'
import type { Kept } from '../src/lib/context'
import { countsAt, lostTokens, lostWords, replayOf, saidAt, type Replay } from '../src/lib/replay'
import Replaying from '../src/parts/Replay.svelte'
import Frame from './Frame.svelte'
import { answerFacts, documentFacts, snapshot, turn } from './given'
import { keptOf } from './kept'

const TEXT = 'The code is 4711.'
const ENDS = [3, 8, 11, 14, 16, 17]
const ANSWER = 'Four seven.'
const ATTENDED = [0, 4, 10, 11].map((said) => ({ said, cells: [] }))
/** Three tokens of an answer: the first takes a slot from "code", the last both from "4711". */
const LOG = [3, 1, 0, 1, 1, 2, 3, 2, 2, 4, 1]
const AFTER = [4, 3, 0, 0, 0, 0]
const bytes = (words: number[]) => Uint32Array.from(words).buffer
const ends = Uint32Array.from(ENDS)

describe('a replay', () => {
  it('leads back from the map at the end to the one before the answer', () => {
    const replay = replayOf(bytes(LOG), ends)!
    const at = (moment: number) => [...countsAt(replay, Uint16Array.from(AFTER), moment)]
    expect([replay.steps, at(3)]).toEqual([3, AFTER])
    expect(at(2)).toEqual([4, 3, 0, 2, 1, 0])
    expect(at(1)).toEqual(at(2))
    expect(at(0)).toEqual([4, 4, 0, 2, 1, 0])
    expect([[...lostTokens(replay, 0, 1)], [...lostTokens(replay, 0, 3)]]).toEqual([[1], [1, 3, 4]])
  })

  it('is none without an entry, and for other tokens', () => {
    expect(replayOf(bytes([3, 1]), ends)).toBeNull()
    expect(replayOf(bytes([0, 0]), ends)).toBeNull()
    expect(replayOf(bytes([3, 1, 0, 6, 1]), ends)).toBeNull()
  })

  it('counts words that lost something, and those that are forgotten', () => {
    const replay = replayOf(bytes(LOG), ends)!
    const tokens = (moment: number) => ({ ends, counts: countsAt(replay, Uint16Array.from(AFTER), moment), slots: 4 })
    const words = lostWords(TEXT, tokens(0), tokens(3), lostTokens(replay, 0, 3), 1)
    expect(words.map(({ start, end, weight, forgotten }) => [TEXT.slice(start, end), weight, forgotten])).toEqual([
      ['code', 0.25, false],
      ['4711', 0.75, true],
    ])
    expect(lostWords(TEXT, tokens(0), tokens(3), [5], 1)).toEqual([])
  })

  it('knows how far the answer was', () => {
    const replay = (every: number): Replay => ({ ...replayOf(bytes(LOG), ends)!, every })
    expect([0, 1, 2, 3].map((moment) => saidAt(replay(1), ATTENDED, ANSWER, moment))).toEqual([
      '',
      'Four',
      'Four seven',
      ANSWER,
    ])
    expect([1, 2].map((moment) => saidAt(replay(2), ATTENDED, ANSWER, moment))).toEqual(['Four seven', ANSWER])
  })
})

describe('the control', () => {
  let kept: Kept
  let part: Record<string, unknown> | null = null

  async function open(hasReplay: boolean) {
    mockIPC((name) => {
      if (name === 'map_ends') return ends.slice().buffer
      if (name === 'map_counts') return Uint16Array.from(AFTER).buffer
      if (name === 'map_evictions') return bytes(LOG)
      if (name === 'map_attended') return ATTENDED
      return name === 'map_token' ? { slots: 4, perLayer: [4], kvHeads: 4, tokens: 1 } : null
    })
    const app = new AppState()
    const answered = turn({ facts: answerFacts(), hasMap: true, hasReplay, answer: ANSWER })
    app.load(snapshot({ document: documentFacts({ length: TEXT.length }), turns: [answered] }))
    kept = keptOf(app)
    kept.map.show(1)
    await new Promise((resolve) => setTimeout(resolve, 30))
    part = mount(Frame, {
      target: document.body,
      props: { given: kept, part: Replaying as unknown as Component<never>, props: { text: TEXT } },
    })
    await settle()
  }
  async function settle() {
    flushSync()
    await new Promise((resolve) => setTimeout(resolve, 30))
    flushSync()
  }
  beforeEach(() => (part = null))
  afterEach(async () => {
    if (part) await unmount(part)
    clearMocks()
    document.body.replaceChildren()
  })
  const find = (id: string) => document.querySelector<HTMLElement>(`[data-testid=${id}]`)
  const said = () => find('replay-said')!.textContent.replace(/\s+/g, ' ').trim()
  function press(key: string) {
    find('replay-slider')!.dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true, cancelable: true }))
    flushSync()
  }

  it('is shown only for an answer during which something was forgotten', async () => {
    await open(false)
    expect(find('replay')).toBeNull()
  })

  it('steps through the answer with the map of each moment', async () => {
    await open(true)
    expect(said()).toBe('While answering, the model forgot 1 word')
    press('Home')
    expect(said()).toBe('Before the answer')
    expect([...kept.map.painted!.counts]).toEqual([4, 4, 0, 2, 1, 0])
    expect([kept.map.painted!.mean, kept.reader.lost]).toEqual([11 / 24, []])
    press('ArrowRight')
    expect(said()).toBe('“Four” 0 words forgotten')
    expect(kept.reader.lost.map(({ forgotten }) => forgotten)).toEqual([false])
    press('End')
    expect(said()).toBe('“Four seven.” 1 word forgotten, 1 just now')
    expect(kept.reader.lost.map(({ start, end }) => TEXT.slice(start, end))).toEqual(['4711'])
    press('Escape')
    expect([kept.map.moment, kept.reader.lost]).toEqual([null, []])
    expect(said()).toContain('While answering')
  })

  it('plays to the end, and is left for another view', async () => {
    await open(true)
    find('replay-play')!.click()
    flushSync()
    expect([kept.map.moment, find('replay-play')!.getAttribute('aria-label')]).toEqual([0, 'Pause'])
    await vi.waitFor(
      () => expect([kept.map.moment, find('replay-play')!.getAttribute('aria-label')]).toEqual([3, 'Play']),
      {
        timeout: 20_000,
      },
    )
    kept.map.choose(0)
    expect(kept.map.moment).toBeNull()
    await settle()
  }, 30_000)
})
