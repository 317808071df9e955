/** What the marks say: the threshold, the small picture of the document, the list of sentences, doubts, following an answer. */
import { clearMocks, mockIPC } from '@tauri-apps/api/mocks'
import { flushSync, mount, unmount, type Component } from 'svelte'
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { AppState } from '../src/lib/app.svelte'
import { blocksOf } from '../src/lib/blocks'
import type { Kept } from '../src/lib/context'
import type { Source } from '../src/lib/contract'
import { withMore } from '../src/lib/doubt'
import { Reader } from '../src/lib/reader.svelte'
import { best, csvOf, forgotten, sentencesOf, sharesOf } from '../src/lib/sentences'
import type { Text } from '../src/lib/text.svelte'
import Doubt from '../src/parts/Doubt.svelte'
import Legend from '../src/parts/Legend.svelte'
import Strip from '../src/parts/Strip.svelte'
import Table from '../src/parts/Table.svelte'
import Frame from './Frame.svelte'
import { answerFacts, documentFacts, painted, snapshot, turn } from './given'
import { keptOf } from './kept'

const TEXT = 'The quay wall was built in 1884. It fell down twice.\n\nThe lessor pays for it, and for nothing else.'
const FIRST = TEXT.indexOf('It fell')
const SECOND = TEXT.indexOf('The lessor')

let kept: Kept
let shown: Record<string, unknown> | null = null
let asked: Record<string, unknown>[] = []

beforeEach(() => {
  asked = []
  mockIPC((name, args) => {
    if (name === 'ask') asked.push(args as Record<string, unknown>)
    if (name === 'document_text') return new TextEncoder().encode(TEXT).buffer
    return name === 'ask' ? 7 : name.startsWith('map_') ? [] : null
  })
  const app = new AppState()
  app.load(snapshot({ document: documentFacts({ length: TEXT.length }) }))
  kept = keptOf(app)
})
afterEach(async () => {
  if (shown) await unmount(shown)
  shown = null
  clearMocks()
  vi.restoreAllMocks()
  document.body.replaceChildren()
})
function show(part: unknown, props: Record<string, unknown> = {}) {
  shown = mount(Frame, { target: document.body, props: { given: kept, part: part as Component<never>, props } })
  flushSync()
}
const all = (id: string) => [...document.querySelectorAll<HTMLElement>(`[data-testid=${id}]`)]
const words = (element: Element | undefined) => element?.textContent?.replace(/\s+/g, ' ').trim()
async function settle() {
  await new Promise((resolve) => setTimeout(resolve, 5))
  flushSync()
}
const textOf = (text: string): Text => ({
  id: 1,
  key: '1',
  text,
  blocks: blocksOf(text, []),
  wraps: [],
  markdown: [],
  columns: new Map(),
})
/** A map with one token per sentence of the text. */
const mapped = (counts: [number, number, number], some = {}) =>
  painted([FIRST, SECOND, TEXT.length], counts, { slots: 10, all: { slots: 10, ends: new Uint32Array([FIRST, SECOND, TEXT.length]), counts: new Uint16Array(counts) }, ...some }) // prettier-ignore

describe('the legend', () => {
  const press = (key: string) => {
    const event = new KeyboardEvent('keydown', { key, bubbles: true, cancelable: true })
    all('threshold')[0]!.dispatchEvent(event)
    flushSync()
    return event.defaultPrevented
  }
  const value = () => Number(all('threshold')[0]!.getAttribute('aria-valuenow'))

  it('sets the threshold by keys, within its ends, and says it', () => {
    show(Legend)
    const slider = all('threshold')[0]!
    expect([slider.getAttribute('role'), slider.tabIndex, value()]).toEqual(['slider', 0, 25])
    expect(slider.getAttribute('aria-valuetext')).toBe('Yellow from 25 % on')
    expect(['ArrowRight', 'ArrowUp', 'ArrowLeft', 'PageUp'].map((key) => [press(key), value()])).toEqual([
      [true, 30], [true, 35], [true, 30], [true, 50],
    ]) // prettier-ignore
    expect(['End', 'ArrowRight', 'Home', 'ArrowDown'].map((key) => (press(key), value()))).toEqual([95, 95, 0, 0])
    expect(slider.getAttribute('aria-valuetext')).toBe('Yellow from the first trace')
    expect(press('a')).toBe(false)
    expect(kept.map.threshold).toBe(0)
  })

  it('is of the strongest where what the question changes is shown', () => {
    kept.map.painted = mapped([1, 2, 9], { mean: null })
    show(Legend)
    expect(all('threshold')[0]!.getAttribute('aria-valuetext')).toBe('Yellow from 25 % of the strongest on')
    expect(all('legend')[0]!.textContent).toMatch(/^Weak.*strong$/s)
  })

  it('follows the pointer, and returns by a double click', () => {
    show(Legend)
    const ramp = all('threshold')[0]!.parentElement!
    ramp.getBoundingClientRect = () => new DOMRect(100, 0, 100, 24)
    const pointer = (type: string, clientX: number) => {
      ramp.dispatchEvent(new MouseEvent(type, { clientX, button: 0, bubbles: true, cancelable: true }))
      flushSync()
      return value()
    }
    expect([pointer('pointermove', 180), pointer('pointerdown', 140), pointer('pointermove', 163)]).toEqual([
      25, 40, 63,
    ])
    expect([pointer('pointermove', 999), pointer('pointerup', 999), pointer('pointermove', 120)]).toEqual([95, 95, 95])
    expect(document.activeElement).toBe(all('threshold')[0])
    expect(pointer('dblclick', 195)).toBe(25)
  })
})

describe('the small picture of the document', () => {
  async function strip() {
    vi.spyOn(HTMLElement.prototype, 'clientHeight', 'get').mockReturnValue(400)
    vi.spyOn(HTMLElement.prototype, 'clientWidth', 'get').mockReturnValue(74)
    show(Strip, { text: textOf(TEXT) })
    await settle()
    const lane = all('strip')[0]!.parentElement!
    return (y: number) => {
      lane.dispatchEvent(new MouseEvent('pointermove', { clientY: y, bubbles: true }))
      flushSync()
      return [...(all('strip-hint')[0]?.children ?? [])].map(words)
    }
  }

  it('says the place, and what is remembered there', async () => {
    kept.map.painted = mapped([10, 0, 0])
    const hint = await strip()
    expect(hint(1)).toEqual(['At 10 % of the document', '50 % remembered here'])
    expect(hint(12)[1]).toBe('Forgotten here')
    kept.map.painted = mapped([10, 0, 0], { mean: null })
    expect(hint(1)[1]).toBe('Remembered because of this question')
    expect(hint(12)).toHaveLength(1)
  })

  it('has a tick for each passage of the answer, and names the bands', async () => {
    const source: Source = { start: SECOND, end: TEXT.length, page: null, document: null, text: '', weight: 1, kept: 1 }
    kept.app.apply({ event: 'turn', turn: turn({ sources: [source] }) })
    const ends = Array.from({ length: TEXT.length }, (_, i) => i + 1)
    kept.map.painted = painted(ends, ends.map((end) => (end < 9 || end > TEXT.length - 9 ? 1 : 0))) // prettier-ignore
    const hint = await strip()
    expect([all('strip-used').length, all('strip-band').length]).toEqual([1, 2])
    expect(hint(1)).toContain('First words: always kept')
    expect(hint(10)).toContain('Used for the answer')
    // Not in the view without what is kept whatever is asked.
    kept.map.painted = { ...kept.map.painted, mean: null }
    flushSync()
    expect(all('strip-band')).toHaveLength(0)
  })
})

describe('sentences', () => {
  it('end where they end, not at a soft line break, and are no numbers', async () => {
    const found = await sentencesOf(textOf(`1.\n\n${TEXT}\n\nHeading`))
    const whole = `1.\n\n${TEXT}\n\nHeading`
    expect(found.map(({ start, end }) => whole.slice(start, end))).toEqual([
      'The quay wall was built in 1884.',
      'It fell down twice.',
      'The lessor pays for it, and for nothing else.',
    ])
    const wrapped = { ...textOf('The quay wall\nwas built in 1884.'), wraps: [{ start: 0, end: 32, width: 14 }] }
    expect(await sentencesOf(wrapped)).toEqual([{ start: 0, end: 32 }])
    expect(await sentencesOf(wrapped)).toBe(await sentencesOf(wrapped))
  })

  it('do not end behind abbreviations and initials', async () => {
    const text = 'Mr. Bingley came with Mrs. Hurst. J. S. Mill wrote it, see p. 12 there. So did I. Then he left, etc.'
    const found = await sentencesOf(textOf(text))
    expect(found.map(({ start, end }) => text.slice(start, end))).toEqual([
      'Mr. Bingley came with Mrs. Hurst.',
      'J. S. Mill wrote it, see p. 12 there.',
      'Then he left, etc.',
    ])
  })

  it('do not end behind German ordinals', async () => {
    const text = 'Die Wohnung im 3. Obergeschoss ist ab dem 1. Oktober 2024 frei. Julia kam.'
    const found = await sentencesOf(textOf(text))
    expect(found.map(({ start, end }) => text.slice(start, end))).toEqual([
      'Die Wohnung im 3. Obergeschoss ist ab dem 1. Oktober 2024 frei.',
    ])
  })

  it('are ordered by what is drawn, and forgotten by all memory', async () => {
    const found = await sentencesOf(textOf(TEXT))
    const { all: memory } = mapped([9, 0, 5])
    const lift = { ...memory, counts: new Uint16Array([0, 1, 4]) }
    const ranked = sharesOf(found, memory, lift)
    expect(best(ranked).map(({ start, share }) => [start, share])).toEqual([
      [SECOND, 0.5],
      [FIRST, 0],
    ])
    expect(forgotten(ranked, 0.6).map(({ start }) => start)).toEqual([FIRST, SECOND])
    expect(forgotten(ranked, 0).map(({ start }) => start)).toEqual([FIRST])
    // A document that was added later is not in the map.
    expect(sharesOf(found, { ...memory, ends: memory.ends.slice(0, 1) }, memory)).toHaveLength(1)
  })

  it('are copied with their figures, never as a formula', () => {
    const text = '=SUM(A1) "quoted"\nand more. Plain words here.'
    const rows = sharesOf([{ start: 0, end: 27 }, { start: 28, end: 45 }], { ends: new Uint32Array([28, 45]), counts: new Uint16Array([1, 2]), slots: 4 }, { ends: new Uint32Array([28, 45]), counts: new Uint16Array([0, 1]), slots: 1 }) // prettier-ignore
    expect(csvOf(text, null, rows, true).split('\r\n')).toEqual([
      'sentence,page,start,end,remembered,because_of_question',
      `"'=SUM(A1) ""quoted"" and more.",,0,27,0.2500,0.0000`,
      '"Plain words here.",,28,45,0.5000,0.0833',
      '',
    ])
  })

  it('are the list, and a click goes to one', async () => {
    await kept.text.show(kept.app.document)
    kept.map.painted = mapped([9, 1, 5])
    let closed = 0
    show(Table, { close: () => closed++ })
    await settle()
    expect(all('sentence').map((row) => words(row))).toEqual([
      'The quay wall was built in 1884. At 0 % 90 % remembered',
      `The lessor pays for it, and for nothing else. At ${Math.round((SECOND / TEXT.length) * 100)} % 50 % remembered`,
      `It fell down twice. At ${Math.round((FIRST / TEXT.length) * 100)} % 10 % remembered`,
    ])
    all('table-forgotten')[0]!.click()
    await settle()
    expect(words(all('sentences-summary')[0])).toContain(
      '1 of 3 sentences are forgotten: less than 25 % of it is remembered',
    )
    expect(all('sentence')).toHaveLength(1)
    all('sentence')[0]!.click()
    expect([closed, kept.reader.passage, kept.reader.target?.focus]).toEqual([
      1,
      { start: FIRST, end: SECOND - 2 },
      true,
    ])
  })
})

describe('doubt', () => {
  const source = (weight: number, keep: number): Source => ({
    start: 0, end: 9, page: null, document: null, text: 'The quay.', weight, kept: keep,
  }) // prettier-ignore
  const answered = (sources: Source[], facts = {}) =>
    turn({ answer: 'In 1884.', sources, facts: answerFacts({ citations: [{ end: 8, source: 0 }], ...facts }) })

  it('is said without a button where all was remembered', () => {
    show(Doubt, { turn: answered([source(0.1, 1)], { rows: 100, doubt: 'unseen' }) })
    expect(words(all('doubt')[0])).toBe('This answer stands on no passage the model clearly looked at.')
    expect(all('ask-more')).toHaveLength(0)
  })

  it('offers the same question with twice the memory', async () => {
    const budget = (rows: number, promptTokens: number) => withMore(answered([], { rows, promptTokens }))?.budget
    expect([budget(6000, 10_000), budget(30, 10_000), budget(10_000, 10_000)]).toEqual(['100%', '2%', undefined])
    // All of a short text costs little.
    expect([budget(200, 2048), budget(200, 2049)]).toEqual(['100%', '20%'])
    const doubtful = {
      ...answered([source(1, 0.01)], { rows: 2500, promptTokens: 10_000, doubt: 'forgotten' }),
      method: 'h2o',
      parameters: { w: '8' },
    }
    show(Doubt, { turn: doubtful })
    expect(words(all('doubt')[0])).toBe(
      'The passage this answer points to is mostly forgotten. Ask again with more memory',
    )
    all('ask-more')[0]!.click()
    await settle()
    expect(asked).toEqual([
      {
        question: 'Who pays?',
        choice: { method: 'h2o', parameters: { w: '8' }, budget: '50%' },
        relation: { alone: false, again: 1, edits: null },
      },
    ])
  })
})

describe('the page follows an answer', () => {
  const source = (start: number): Source => ({
    start, end: start + 9, page: null, document: null, text: '', weight: 1, kept: 1,
  }) // prettier-ignore
  const answered = turn({
    sources: [source(10), source(500)],
    facts: answerFacts({ citations: [{ end: 3, source: 1 }, { end: 9, source: 0 }] }), // prettier-ignore
  })
  const reader = (visible = { start: 0, end: 100 }) => Object.assign(new Reader(), { visible })

  it('to the first passage that it cites', () => {
    const at = reader()
    at.follow(answered)
    expect(at.target).toEqual({ offset: 500, place: 0.33, focus: false })
    expect([at.passage, at.moved]).toEqual([null, false])
  })

  it('but not if it cites none, it is in view, or the user has moved', () => {
    const still = (at: Reader, of = answered) => (at.follow(of), at.target)
    expect(still(reader(), turn({ sources: [source(500)], facts: answerFacts() }))).toBeNull()
    expect(still(reader({ start: 480, end: 600 }))).toBeNull()
    const opened = reader({ start: 0, end: 600 })
    opened.follow(answered, true)
    expect(opened.target?.offset).toBe(500)
    const moved = reader()
    moved.goTo(90)
    moved.follow(answered)
    expect(moved.target?.offset).toBe(90)
    // A new layout is no movement by the user.
    const wider = reader({ start: 50, end: 90 })
    wider.stay()
    expect([wider.target?.offset, wider.moved]).toEqual([50, false])
    wider.follow(answered)
    expect(wider.target?.offset).toBe(500)
  })

  it('or to the place where the user left the document', () => {
    localStorage.clear()
    new Reader().leave(1)
    expect(reader().comeBack(1)).toBe(false)
    const at = reader({ start: 70, end: 90 })
    at.leave(1)
    at.leave(2)
    const again = reader()
    expect([again.comeBack(1), again.target?.offset, again.moved]).toEqual([true, 70, false])
    expect(reader().comeBack(3)).toBe(false)
    for (let id = 3; id < 120; id++) at.leave(id)
    expect([2, 119].map((id) => reader().comeBack(id))).toEqual([false, true])
    reader({ start: 0, end: 20 }).leave(119)
    expect(reader().comeBack(119)).toBe(false)
    localStorage.setItem('places', '{"no": "list"}')
    expect(reader().comeBack(119)).toBe(false)
  })

  it('and stays at its place over any number of layouts, until the user moves', () => {
    const at = reader({ start: 50, end: 90 })
    const after = (start: number) => {
      at.visible = { start, end: start + 40 }
      at.stay()
      return at.target?.offset
    }
    // Each layout shows the place to about a line.
    expect([50, 47, 44].map(after)).toEqual([50, 50, 50])
    at.moved = true
    expect([70, 66].map(after)).toEqual([70, 70])
    at.goTo(90)
    expect(after(88)).toBe(88)
  })
})
