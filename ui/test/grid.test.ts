/** The grid of layers by position, its picture to share, and the card of a word. */
import { clearMocks, mockIPC } from '@tauri-apps/api/mocks'
import { flushSync, mount, unmount, type Component } from 'svelte'
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { AppState } from '../src/lib/app.svelte'
import { cividis } from '../src/lib/colours'
import type { Kept } from '../src/lib/context'
import { columnOf, drawRows, mostOf, moved, pictureOf, rowsOf, tokensOf, zoomed } from '../src/lib/grid'
import { headsHolding, holdersOf } from '../src/lib/holders'
import { layersOf } from '../src/lib/layers'
import { toSvg } from '../src/lib/sheet'
import Grid from '../src/parts/Grid.svelte'
import Tip from '../src/parts/Tip.svelte'
import WordCard from '../src/parts/WordCard.svelte'
import Frame from './Frame.svelte'
import { answerFacts, documentFacts, snapshot, turn } from './given'
import { keptOf } from './kept'

const picture = (shares: number[], rows: number, from: number, to: number) =>
  pictureOf(new Uint8Array(shares).buffer, rows, from, to)!

describe('the cells', () => {
  it('have rows that unfold, and columns that divide the tokens', () => {
    expect(rowsOf(2, 2, new Set([1])).map(({ layer, head }) => [layer, head])).toEqual([
      [0, null], [1, null], [1, 0], [1, 1],
    ]) // prettier-ignore
    expect(pictureOf(new Uint8Array(5).buffer, 2, 0, 9)).toBeNull()
    expect(pictureOf(new Uint8Array(0).buffer, 2, 0, 9)).toBeNull()
    const wide = picture(Array(14).fill(0), 2, 10, 30)
    expect(wide.columns).toBe(7)
    for (let column = 0; column < 7; column++) {
      const { from, to } = tokensOf(wide, column)
      for (let token = from; token < to; token++) expect(columnOf(wide, token), `${token}`).toBe(column)
    }
    expect([columnOf(wide, 0), columnOf(wide, 99)]).toEqual([0, 6])
  })

  it('are drawn in cividis, up to the strongest', () => {
    const layers = picture([0, 128, 64, 0], 2, 0, 2)
    const heads = picture([0, 128, 0, 128, 128, 0, 0, 0], 4, 0, 2)
    const words = new Uint32Array(8)
    drawRows(words, rowsOf(2, 2, new Set([0])), layers, heads, 2, 128)
    const bytes = new Uint8Array(words.buffer)
    const [none, half, all] = [0, 0.5, 1].map((share) => [...cividis(share), 255])
    const cell = (at: number) => [...bytes.slice(4 * at, 4 * at + 4)]
    expect([0, 1, 2, 3, 6, 7].map(cell)).toEqual([none, all, none, all, half, none])
    expect(mostOf(picture([...Array(999).fill(20), 200], 1, 0, 1000))).toBe(20)
    expect(mostOf(picture([0, 0], 1, 0, 2))).toBe(8)
  })

  it('come closer around a place, and stay within the document', () => {
    expect(zoomed({ from: 0, to: 1000 }, 1000, 0.5, 0.5)).toEqual({ from: 250, to: 750 })
    expect(zoomed({ from: 250, to: 750 }, 1000, 0.5, 1)).toEqual({ from: 500, to: 750 })
    expect(zoomed({ from: 0, to: 40 }, 1000, 0.5, 0)).toEqual({ from: 0, to: 32 })
    expect(zoomed({ from: 900, to: 1000 }, 1000, 2, 1)).toEqual({ from: 800, to: 1000 })
    expect(moved({ from: 900, to: 1000 }, 1000, 50)).toEqual({ from: 900, to: 1000 })
    expect(moved({ from: 100, to: 200 }, 1000, -150)).toEqual({ from: 0, to: 100 })
  })

  it('are a vector picture with names and a scale', () => {
    const rows = rowsOf(2, 1, new Set())
    const svg = toSvg({
      title: 'Layers & words',
      lines: ['a.txt · SnapKV', '“Who <pays>?”'],
      rows,
      layers: picture([0, 255, 255, 0], 2, 0, 2),
      heads: null,
      kvHeads: 1,
      most: 255,
      nameOf: ({ layer }) => `Layer ${layer + 1}`,
      axis: ['token 1', 'token 2'],
      ends: ['forgotten', '100 %'],
    })
    const parsed = new DOMParser().parseFromString(svg, 'image/svg+xml')
    expect(parsed.querySelector('parsererror')).toBeNull()
    const words = [...parsed.querySelectorAll('text')].map((text) => text.textContent)
    expect(words).toEqual(expect.arrayContaining(['Layers & words', '“Who <pays>?”', 'Layer 2', 'token 2', '100 %']))
    expect(parsed.querySelectorAll('g path')).toHaveLength(2)
  })
})

it('says which layers and heads hold a word', () => {
  const slots = { start: 0, end: 3, kept: 3, slots: 6, perLayer: [2, 1, 0], heads: [[0, 1], [1], []], kvHeads: 2, tokens: 1, page: null, document: null } // prettier-ignore
  const holders = holdersOf(slots, layersOf([null, 512, null, null], 3))
  expect([holders.all, holders.some, holders.none, holders.columns]).toEqual([[1], [3], [4], 3])
  expect(holders.words).toBe('Held by layer 1: all heads; layer 3: head 2')
  expect(headsHolding(holders)).toBe('All heads of layer 1. Some heads of layer 3.')
  expect([holders.cells, holders.held].map((path) => path.split('M').length - 1)).toEqual([6, 3])
})

const TEXT = 'The code is 4711. Nothing else.'
const ENDS = [3, 8, 11, 16, 17, TEXT.length]

describe('the views', () => {
  let kept: Kept
  let part: Record<string, unknown> | null = null
  let asked: Record<string, unknown>[] = []
  let hasHeads = true
  let known = true

  beforeEach(async () => {
    asked = []
    hasHeads = known = true
    vi.spyOn(HTMLElement.prototype, 'clientWidth', 'get').mockReturnValue(600)
    vi.spyOn(HTMLElement.prototype, 'clientHeight', 'get').mockReturnValue(100)
    mockIPC((name, args) => {
      const given = args as { from: number; to: number; columns: number; heads: boolean; of: string; token: number }
      if (name === 'map_ends') return new Uint32Array(ENDS).buffer
      if (name === 'map_counts') return new Uint16Array([0, 0, 0, 3, 0, 0]).buffer
      if (name === 'map_token') {
        const perLayer = given.token === 3 ? [2, 1] : [0, 0]
        const heads = given.token === 3 ? [[0, 1], [1]] : [[], []]
        const kept = given.token === 3 ? 3 : 0
        return { kept, slots: 4, perLayer, heads, kvHeads: 2, page: null, document: null, tokens: 1 }
      }
      if (name === 'map_picture') {
        asked.push(given as unknown as Record<string, unknown>)
        if ((given.heads && !hasHeads) || (given.of === 'attention' && !known)) return new ArrayBuffer(0)
        const columns = Math.min(given.columns, given.to - given.from)
        return new Uint8Array(columns * (given.heads ? 4 : 2)).fill(given.heads ? 255 : 51).buffer
      }
      if (name === 'map_attended') return [{ said: 0, cells: [] }, { said: 5, cells: [[3, 255]] }] // prettier-ignore
      return null
    })
    const app = new AppState()
    const answered = turn({ answer: 'It is 4711.', facts: answerFacts(), hasMap: true })
    app.load(snapshot({ document: documentFacts({ length: TEXT.length }), turns: [answered] }))
    kept = keptOf(app)
    kept.map.show(1)
    await settle()
  })
  afterEach(async () => {
    if (part) await unmount(part)
    part = null
    clearMocks()
    vi.restoreAllMocks()
    document.body.replaceChildren()
  })
  async function settle() {
    // A picture is fetched after a pause and drawn in a later frame; on a busy machine each comes late.
    for (const pause of [90, 30]) {
      await new Promise((resolve) => setTimeout(resolve, pause))
      flushSync()
    }
  }
  async function show(component: unknown, more: Record<string, unknown> = {}) {
    const props = { text: TEXT, close: () => {}, ...more }
    part = mount(Frame, { target: document.body, props: { given: kept, part: component as Component<never>, props } })
    await settle()
  }
  const find = (id: string) => document.querySelector<HTMLElement>(`[data-testid=${id}]`)
  const words = (id: string) => find(id)?.textContent?.replace(/\s+/g, ' ').trim()
  async function press(key: string) {
    find('grid-cells')!.dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true, cancelable: true }))
    await settle()
  }

  it('has a row for each layer, and says what is under the cursor', async () => {
    await show(Grid)
    expect(asked).toEqual([{ turn: 1, from: 0, to: 6, columns: 6, heads: false, of: 'memory' }])
    expect(find('grid-cells')?.dataset['rows']).toBe('2')
    for (const key of ['ArrowDown', 'ArrowRight', 'ArrowRight', 'ArrowRight']) await press(key)
    expect(words('grid-said')).toBe('Layer 2: 20 % remembered, at 35 %: “4711”')
    expect(kept.reader.pointed).toEqual({ start: 11, end: 16, by: 'grid' })
    await press(' ')
    expect([kept.reader.passage, kept.reader.word]).toEqual([
      { start: 11, end: 16 },
      { start: 12, focus: true },
    ])
  })

  it('says that it is of the answer, while the page shows another memory', async () => {
    await show(Grid)
    expect(find('grid-own')).toBeNull()
    const level = { percent: 8, mean: 0, slots: 255, ends: new Uint32Array(ENDS), counts: new Uint16Array(6) }
    kept.map.wanted = 8
    flushSync()
    expect(find('grid-own')).toBeNull()
    kept.map.levels = [level]
    flushSync()
    expect(words('grid-own')).toBe(
      'The grid shows this answer, with 25 %; what other budgets keep is not known by layer. Back to 25 %',
    )
    find('grid-back')!.click()
    flushSync()
    expect([find('grid-own'), kept.map.level]).toEqual([null, null])
  })

  it('unfolds a layer into its heads', async () => {
    await show(Grid)
    await press('Enter')
    expect(find('grid-cells')?.dataset['rows']).toBe('4')
    expect(asked.at(-1)).toMatchObject({ heads: true, of: 'memory' })
    await press('ArrowDown')
    expect(words('grid-said')).toContain('Layer 1, head 1: 100 % remembered')
    find('grid-heads')!.click()
    await settle()
    expect(find('grid-cells')?.dataset['rows']).toBe('2')
  })

  it('shows what the answer looked at', async () => {
    await show(Grid)
    find('grid-attention')!.click()
    await settle()
    expect(asked.at(-1)).toMatchObject({ heads: false, of: 'attention' })
    find('grid-heads')!.click()
    await settle()
    expect(asked.at(-1)).toMatchObject({ heads: true, of: 'attention' })
    await press('ArrowDown')
    expect(words('grid-said')).toContain('Layer 1, head 1: 100 % of its attention for the answer')
  })

  it('says when what the answer looked at is not known', async () => {
    known = false
    await show(Grid)
    expect(find('grid-attention')).not.toBeNull()
    find('grid-attention')!.click()
    await settle()
    expect(words('grid-said')).toContain('What each layer looked at is not known')
  })

  it('says when heads are not known', async () => {
    hasHeads = false
    await show(Grid)
    find('grid-heads')!.click()
    await settle()
    expect(words('grid-said')).toContain('is not known for this answer')
    expect(find('grid-cells')?.dataset['rows']).toBe('2')
  })

  it('shows the cursor of the page', async () => {
    await show(Grid)
    expect(find('grid-cursor')).toBeNull()
    kept.reader.pointed = { start: 12, end: 16, by: 'page' }
    flushSync()
    expect(find('grid-cursor')?.style.left).toBe('350px')
  })

  it('has room for the last name, and its buttons beside the one that closes it', async () => {
    await show(Grid)
    const height = (of: string) => parseFloat(document.querySelector<HTMLElement>(of)!.style.height)
    const tall = height('[data-testid=grid-cells]') / 2
    expect(tall).toBeLessThan(14)
    expect(height('.names')).toBe(tall + 14)
    // The legend ends what is as high as its rows.
    expect(find('grid-said')!.closest('footer')!.previousElementSibling).toBe(find('grid-cells')!.parentElement)
  })

  it('tells of a word in the tooltip what its card says', async () => {
    const slots = await kept.map.token(3)
    const hover = {
      token: 3,
      parts: 1,
      turn: 1,
      layer: null,
      other: null,
      text: '4711',
      boxes: [],
      anchor: { x: 0, top: 0, bottom: 0 },
    }
    await show(Tip, { hover, slots, windows: [] })
    expect(words('tip-heads')).toBe('All heads of layer 1. Some heads of layer 2.')
  })

  it('tells of a word which heads hold it', async () => {
    await show(WordCard)
    expect(find('word-card')).toBeNull()
    kept.reader.word = { start: 12, focus: true }
    await settle()
    expect(words('word-said')).toBe('3 of 4 memory slots (75 %) hold it.')
    expect(find('word-card')?.textContent).toContain('All heads of layer 1. Some heads of layer 2.')
    expect(find('word-matrix')?.getAttribute('aria-label')).toBe('Held by layer 1: all heads; layer 2: head 2')
    expect(words('word-lookers')).toBe('Words of the answer that looked at it: 4711.')
    expect(document.activeElement).toBe(find('word-card'))
    expect(find('word-level')).toBeNull()
    kept.map.levels = [{ percent: 8, mean: 0.1, slots: 255, ends: new Uint32Array([99]), counts: new Uint16Array(1) }]
    kept.map.wanted = 8
    flushSync()
    expect(words('word-level')).toBe('With the memory of the answer, not the smaller one that the page shows:')
    kept.map.levels = []
    flushSync()
    kept.reader.word = { start: 4, focus: true }
    await settle()
    expect(words('word-said')).toBe('Forgotten: none of 4 memory slots holds it.')
    expect(find('word-lookers')).toBeNull()
    find('word-card')!.dispatchEvent(new KeyboardEvent('keydown', { key: 'Escape', bubbles: true, cancelable: true }))
    flushSync()
    expect(find('word-card')).toBeNull()
  })
})
