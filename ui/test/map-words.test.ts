/** The map in words: the line below the page, the table, and the field of the budget that it depends on. */
import { clearMocks, mockIPC } from '@tauri-apps/api/mocks'
import { flushSync, mount, unmount, type Component } from 'svelte'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import type { Kept } from '../src/lib/context'
import { AppState } from '../src/lib/app.svelte'
import Budget from '../src/parts/Budget.svelte'
import Compare from '../src/parts/compare/Compare.svelte'
import Footer from '../src/parts/Footer.svelte'
import Table from '../src/parts/Table.svelte'
import { begun } from './comparison'
import Frame from './Frame.svelte'
import { answerFacts, documentFacts, painted, snapshot, turn } from './given'
import { keptOf } from './kept'

const TEXT = 'The quay wall was built in 1884.\nThe lessor pays for it, and for nothing else.'

let answers: Record<string, (args: Record<string, unknown>) => unknown>
let shown: Record<string, unknown> | null = null
let kept: Kept

beforeEach(() => {
  answers = { document_text: () => new TextEncoder().encode(TEXT).buffer, save_settings: (args) => args['settings'] }
  mockIPC((name, args) => answers[name]?.((args ?? {}) as Record<string, unknown>) ?? null)
  const app = new AppState()
  app.load(snapshot({ document: documentFacts({ length: TEXT.length }) }))
  kept = keptOf(app)
})
afterEach(async () => {
  if (shown) await unmount(shown)
  shown = null
  clearMocks()
  document.body.replaceChildren()
})
function show(part: unknown, props: Record<string, unknown> = {}) {
  shown = mount(Frame, { target: document.body, props: { given: kept, part: part as Component<never>, props } })
  flushSync()
}
const all = (id: string) => [...document.querySelectorAll<HTMLElement>(`[data-testid=${id}]`)]
const words = (id: string) => {
  flushSync()
  return all(id)[0]?.textContent?.replace(/\s+/g, ' ').trim()
}
async function settle() {
  await new Promise((resolve) => setTimeout(resolve, 0))
  flushSync()
}

describe('the footer', () => {
  /** A map of three layers, of which `read` have been read. */
  const mapOf = (read: number) => {
    const all = { slots: read * 2, ends: new Uint32Array([9]), counts: new Uint16Array(1) }
    return { turn: 1, layer: null, layers: 3, kvHeads: 2, mean: 0.5, ...all, all }
  }
  const windows = [512, null, 512, null, 512, null]

  it('says whose map it is once another method or budget is chosen', () => {
    kept.app.apply({ event: 'turn', turn: turn({ hasMap: true }) })
    kept.map.painted = mapOf(3)
    show(Footer)
    expect(words('compressed-for')).toBe('Map for: Who pays?')
    kept.app.settings = { ...kept.app.settings, method: 'full' }
    expect(words('compressed-for')).toBe('Map of SnapKV for: Who pays?')
    kept.app.settings = { ...kept.app.settings, method: 'snapkv' }
    kept.app.budgetPreview = '10%'
    expect(words('compressed-for')).toContain('Map of SnapKV')
    // A level has a budget of its own, once it is known.
    kept.map.wanted = 10
    flushSync()
    expect(words('compressed-for')).toContain('Map of SnapKV')
    kept.map.levels = [{ percent: 10, mean: 0.1, slots: 255, ends: new Uint32Array([9]), counts: new Uint16Array(1) }]
    flushSync()
    expect(words('compressed-for')).toBe('Map for: Who pays?')
    kept.map.wanted = null
    flushSync()
  })

  it('has no choice of layers with less memory, and says why', () => {
    kept.app.apply({ event: 'turn', turn: turn({ hasMap: true }) })
    kept.map.painted = mapOf(3)
    show(Footer)
    const filter = () => all('layer-filter')[0] as HTMLSelectElement
    const why = () => [filter().disabled, filter().title]
    expect(why()).toEqual([false, ''])
    kept.map.wanted = 10
    flushSync()
    expect(why()).toEqual([true, 'With less memory, all layers are shown together'])
    kept.map.wanted = null
    flushSync()
    expect(filter().disabled).toBe(false)
  })

  it('counts layers as the model does, and names those outside the map', () => {
    kept.app.apply({ event: 'turn', turn: turn({ hasMap: true, state: 'reading', windows }) })
    kept.app.apply({ event: 'map', turn: 1, layersDone: 2, layers: 3 })
    kept.map.painted = mapOf(2)
    show(Footer)
    expect(words('compressed-for')).toBe('Reading, layer 4 of 6. Map for: Who pays?')
    expect(words('kept-share')).toBe('The layers read so far remember 50 % of this document')
    kept.map.painted = mapOf(3)
    expect(words('kept-share')).toBe('3 of 6 layers remember 50 % of this document')
    expect(all('kept-share')[0]!.title).toContain('3 layers that always hold their last 512 tokens')
  })

  it('does not call the map of an interrupted reading the document', () => {
    kept.app.apply({ event: 'turn', turn: turn({ hasMap: true, state: 'failed', windows }) })
    kept.map.painted = mapOf(1)
    show(Footer)
    expect(words('compressed-for')).toBe('Reading ended at layer 2 of 6. Map for: Who pays?')
    expect(words('kept-share')).toContain('The layers read so far')
  })

  it('says why nothing is highlighted where everything is remembered', () => {
    kept.app.apply({ event: 'turn', turn: turn({ hasMap: true, method: 'full' }) })
    kept.app.settings = { ...kept.app.settings, method: 'full' }
    kept.map.painted = { ...mapOf(3), mean: 1 }
    show(Footer)
    expect(words('kept-share')).toBe('The model remembers 100 % of this document')
    expect(words('compressed-for')).toBe('Nothing is forgotten: no highlights.')
    expect(kept.map.regions(TEXT)).toEqual([])
    kept.app.settings = { ...kept.app.settings, method: 'snapkv' }
    expect(words('compressed-for')).toBe('With Full cache, nothing is forgotten: no highlights.')
  })

  it('says that a comparison is done until it is looked at', () => {
    const comparison = begun(7, 'Who pays?', [{ method: 'h2o', parameters: {}, budget: '25%' }], 'a.txt')
    kept.app.apply({ event: 'comparison', comparison })
    show(Footer)
    expect(words('compare-button')).toBe('Comparing, 0 of 1')
    kept.app.apply({ event: 'comparisonEnded', comparison: 7, state: 'done', error: null })
    expect(words('compare-button')).toBe('Comparison done')
    show(Compare, { close: () => {} })
    expect(words('compare-button')).toBe('Compare')
  })

  it('has nothing about maps in a chat without a document', () => {
    kept.app.document = documentFacts({ length: 0 })
    kept.app.apply({ event: 'turn', turn: turn({ answer: 'Good morning.' }) })
    show(Footer)
    expect(words('kept-share')).toBeUndefined()
    expect(['layer-filter', 'legend', 'table-button', 'compare-button'].flatMap(all)).toEqual([])
    expect(document.body.textContent).toContain('Nothing leaves this computer.')
  })

  it('promises no layer by layer where a document is read in pieces', () => {
    kept.app.apply({ event: 'turn', turn: turn({ state: 'reading' }) })
    show(Footer)
    expect(words('kept-share')).toContain('layer by layer')
    kept.app.document = documentFacts({ streaming: 'It is read in pieces.' })
    expect(words('kept-share')).toBe('Reading in pieces: what is remembered appears at the end.')
  })
})

describe('the table', () => {
  it('has the first words of every part, and goes there from anywhere in the row', async () => {
    const row = (name: string, start: number) => ({ name, start, mean: 0.25, max: 0.5 })
    answers['map_table'] = () => [row('0-10 %', 0), row('10-20 %', 6), row('page 2', 33)]
    answers['map_layers'] = () => []
    await kept.text.show(kept.app.document)
    kept.map.show(1)
    let closed = 0
    show(Table, { close: () => closed++ })
    all('table-parts')[0]!.click()
    await settle()
    expect(all('table-row').map((r) => r.querySelector('th')?.textContent?.replace(/\s+/g, ' ').trim())).toEqual([
      '0 – 10 % The quay wall was built in 1884. The lessor pays for it, and for …',
      '10 – 20 % wall was built in 1884. The lessor pays for it, and for nothing …',
      'Page 2 The lessor pays for it, and for nothing else.',
    ])
    all('table-row')[1]!.querySelector('td')!.click()
    expect([closed, kept.reader.target?.offset]).toEqual([1, 6])
    all('table-row')[2]!.querySelector('button')!.click()
    expect([closed, kept.reader.target?.offset]).toEqual([2, 33])
    kept.map.show(null)
  })

  it('says of which memory each list is', async () => {
    answers['map_table'] = answers['map_layers'] = () => []
    kept.app.apply({ event: 'turn', turn: turn({ hasMap: true, facts: answerFacts() }) })
    kept.map.painted = painted([9], [1])
    show(Table, { close: () => {} })
    const of = (tab: string) => {
      all(`table-${tab}`)[0]!.click()
      flushSync()
      return words('table-of')
    }
    expect(['best', 'layers'].map(of)).toEqual([undefined, undefined])
    kept.map.levels = [{ percent: 8, mean: 0.1, slots: 255, ends: new Uint32Array([9]), counts: new Uint16Array(1) }]
    kept.map.wanted = 8
    expect(['best', 'forgotten', 'parts', 'layers'].map(of)).toEqual([
      'The list shows a memory of 8 %. Back to 25 %',
      'The list shows a memory of 8 %. Back to 25 %',
      'The list shows this answer, with 25 %; what other budgets keep is not known by part. Back to 25 %',
      'The list shows this answer, with 25 %; what other budgets keep is not known by layer. Back to 25 %',
    ])
    all('table-own')[0]!.click()
    expect([of('best'), kept.map.level]).toEqual([undefined, null])
  })
})

describe('the budget', () => {
  it('leaves a refused text in its field, until it is corrected or left', async () => {
    let asked = 0
    answers['save_settings'] = (args) => {
      asked++
      const settings = args['settings'] as { budget: string | null }
      if (settings.budget === 'ten') throw '“ten” is not a budget.'
      return settings
    }
    show(Budget)
    const field = all('budget-field')[0] as HTMLInputElement
    const type = async (text: string) => {
      field.value = text
      field.dispatchEvent(new InputEvent('input', { bubbles: true }))
      field.dispatchEvent(new Event('change', { bubbles: true }))
      await settle()
    }
    const said = () => kept.app.notices.map((notice) => notice.where)
    for (const leave of [
      () => field.blur(),
      () => field.dispatchEvent(new KeyboardEvent('keydown', { key: 'Escape', bubbles: true })),
    ]) {
      asked = 0
      field.focus()
      await type('ten')
      expect([field.value, field.getAttribute('aria-invalid'), asked, said()]).toEqual(['ten', 'true', 1, ['budget']])
      leave()
      flushSync()
      expect([field.value, field.getAttribute('aria-invalid'), asked, said()]).toEqual(['Automatic', 'false', 1, []])
    }
    // The refusal comes after the field was left: the notice alone says so.
    await type('ten')
    expect([field.value, said()]).toEqual(['Automatic', ['budget']])
    field.focus()
    await type('10 %')
    expect([field.value, field.getAttribute('aria-invalid'), kept.app.settings.budget]).toEqual([
      '10 %',
      'false',
      '10 %',
    ])
  })
})
