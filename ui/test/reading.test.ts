/** Finding in the document, the text size, and parameters under Advanced. */
import { clearMocks, mockIPC } from '@tauri-apps/api/mocks'
import { flushSync, mount, unmount, type Component } from 'svelte'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { nextZoom } from '../src/lib/actions'
import { blocksOf } from '../src/lib/blocks'
import type { Kept } from '../src/lib/context'
import type { MethodFacts, Settings } from '../src/lib/contract'
import { AppState } from '../src/lib/app.svelte'
import { Find, placesOf } from '../src/lib/find.svelte'
import { commandOf } from '../src/lib/keys'
import { piecesOf } from '../src/lib/pieces'
import { assignments, described, parameterOf, withValue, wordsOf } from '../src/lib/parameters'
import Advanced from '../src/parts/Advanced.svelte'
import FindBar from '../src/parts/FindBar.svelte'
import Header from '../src/parts/Header.svelte'
import ImagePages from '../src/parts/ImagePages.svelte'
import Recognise from '../src/parts/Recognise.svelte'
import Unlock from '../src/parts/Unlock.svelte'
import Frame from './Frame.svelte'
import { documentFacts, snapshot, turn } from './given'
import { keptOf } from './kept'

const SNAPKV: MethodFacts = {
  name: 'snapkv',
  streams: false,
  seesQuestion: true,
  title: 'SnapKV',
  paper: '',
  keeps: 'a part',
  acts: '',
  parameters: [
    { name: 'kernel', default: '7', range: 'an odd whole number from 1', meaning: 'neighbours a score is pooled over' },
    { name: 'pooling', default: 'max', range: 'max or avg', meaning: 'how a score is pooled' },
    { name: 'decode_cap', default: 'off', range: 'a whole number from the budget on', meaning: 'rows per head' },
  ],
}

let asked: { name: string; args: Record<string, unknown> }[]
let answers: Record<string, (args: Record<string, unknown>) => unknown>
let shown: Record<string, unknown> | null = null
let kept: Kept

beforeEach(() => {
  asked = []
  answers = { save_settings: (args) => args['settings'], ask: () => 1 }
  mockIPC((name, args) => {
    asked.push({ name, args: (args ?? {}) as Record<string, unknown> })
    return answers[name]?.((args ?? {}) as Record<string, unknown>) ?? null
  })
  const app = new AppState()
  app.load(snapshot({ methods: [SNAPKV] }))
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
const one = <T extends HTMLElement = HTMLElement>(id: string) => document.querySelector<T>(`[data-testid=${id}]`)
const saved = () => asked.filter((c) => c.name === 'save_settings').map((c) => c.args['settings'] as Settings)
async function settle(ms = 0) {
  await new Promise((resolve) => setTimeout(resolve, ms))
  flushSync()
}
async function set(id: string, value: string) {
  const field = one<HTMLInputElement>(id)!
  field.value = value
  field.dispatchEvent(new Event('change', { bubbles: true }))
  await settle()
}

describe('finding', () => {
  it('finds in any case and over any white space, with offsets of the text', () => {
    const text = 'The Quay wall.\nA quay\n  wall; (quay) wall? ÉTÉ été'
    expect(placesOf(text, ' quay  WALL ')).toEqual({ starts: [4, 17], ends: [13, 28] })
    expect(placesOf(text, '(quay)').starts).toEqual([30])
    expect(placesOf(text, 'été').starts).toEqual([43, 47])
    expect(placesOf(text, '.*')).toEqual({ starts: [], ends: [] })
    expect(placesOf(text, '  ')).toEqual({ starts: [], ends: [] })
    // What a keyboard has, for what a text has.
    const typeset = 'Die Waschküche’s “Tür” – 2019–20; I\u0302le'
    expect(placesOf(typeset, "WASCHKUCHE'S").starts).toEqual([4])
    expect(placesOf(typeset, '"tur"')).toEqual({ starts: [17], ends: [22] })
    expect(placesOf(typeset, '2019-20').starts).toEqual([25])
    expect(placesOf(typeset, 'ile')).toEqual({ starts: [34], ends: [38] })
    expect(placesOf(typeset, 'ú').starts).toEqual([])
    expect(placesOf('a'.repeat(50), 'a', 10).starts).toHaveLength(10)
    // Letters that are longer in lower case: offsets remain those of the text.
    expect(placesOf('İİ quay', 'QUAY').starts).toEqual([3])
  })

  it('begins where one reads, goes round both ways and knows what lies in a block', () => {
    const find = new Find()
    find.open = true
    find.search('one two one two one', 'one', 5)
    expect([find.count, find.index, find.current]).toEqual([3, 1, { start: 8, end: 11 }])
    find.go(1)
    find.go(1)
    expect(find.index).toBe(0)
    find.go(-1)
    expect(find.index).toBe(2)
    expect(find.within(0, 10)).toEqual([
      { start: 0, end: 3, current: false },
      { start: 8, end: 11, current: false },
    ])
    expect(find.within(17, 19)).toEqual([{ start: 16, end: 19, current: true }])
    expect(find.within(3, 8)).toEqual([])
    find.search('one two', 'three', 0)
    find.go(1)
    expect([find.count, find.current]).toEqual([0, null])
    find.close()
    expect(find.within(0, 10)).toEqual([])
  })

  it('is painted over the kept words, the current place apart', () => {
    const found = [
      { start: 2, end: 5, current: false },
      { start: 8, end: 12, current: true },
    ]
    const pieces = piecesOf({ text: 'x'.repeat(10), start: 0, end: 10, runs: null, passage: null, found })
    expect(pieces).toEqual([
      { start: 2, end: 5, step: -1 },
      { start: 8, end: 10, step: -2 },
    ])
  })

  it('says how many there are, goes there, and gives the keyboard back', async () => {
    const text = 'A quay.\n\nA wall.\n\nAnother quay.'
    kept.find.open = true
    show(FindBar, { text: { id: 1, key: '1/1', text, blocks: blocksOf(text, []) } })
    const field = one<HTMLInputElement>('find')!
    const type = async (words: string) => {
      field.value = words
      field.dispatchEvent(new InputEvent('input', { bubbles: true }))
      await settle(160)
    }
    const press = (key: string, shiftKey = false) => {
      field.dispatchEvent(new KeyboardEvent('keydown', { key, shiftKey, bubbles: true, cancelable: true }))
      flushSync()
    }
    await type('quay')
    expect(one('find-count')?.textContent).toBe('1 of 2')
    expect(kept.reader.target?.offset).toBe(2)
    press('Enter')
    expect([one('find-count')?.textContent, kept.reader.target?.offset]).toEqual(['2 of 2', 26])
    press('Enter', true)
    expect(kept.reader.target?.offset).toBe(2)
    expect(kept.app.announcement).toBe('1 of 2')
    await type('pier')
    expect(one('find-count')?.textContent).toBe('Not found')
    expect(one<HTMLButtonElement>('find-next')!.disabled).toBe(true)
    press('Escape')
    expect(kept.find.open).toBe(false)
  })
})

describe('the keyboard', () => {
  it('finds, compares, and makes the text larger, also with Shift', () => {
    const press = (key: string, some: KeyboardEventInit = {}) =>
      commandOf(new KeyboardEvent('keydown', { key, ...some }))
    expect(press('f', { ctrlKey: true })).toBe('find')
    expect(press('+', { ctrlKey: true, shiftKey: true })).toBe('larger')
    expect(press('=', { ctrlKey: true })).toBe('larger')
    expect(press('-', { metaKey: true })).toBe('smaller')
    expect(press('0', { ctrlKey: true })).toBe('ordinary')
    expect([press('d'), press('d', { ctrlKey: true }), press('c', { ctrlKey: true })]).toEqual([null, 'compare', null])
    expect(press('-')).toBeNull()
  })

  it('zooms in steps and saves them', async () => {
    expect([nextZoom(100, 1), nextZoom(100, -1), nextZoom(105, 1), nextZoom(300, 1), nextZoom(50, -1)]).toEqual([
      110, 90, 110, 300, 50,
    ])
    kept.actions.zoom(1)
    await settle()
    kept.actions.zoom(1)
    await settle()
    kept.actions.zoom(0)
    await settle()
    expect(saved().map((s) => s.zoom)).toEqual([110, 120, 100])
    expect(kept.app.announcement).toBe('Text at 100 %')
  })
})

describe('parameters', () => {
  it('are chosen from words where the engine takes words, and typed where it does not', () => {
    expect(wordsOf('max or avg')).toEqual(['max', 'avg'])
    expect(wordsOf('exact, paper or code')).toEqual(['exact', 'paper', 'code'])
    expect(wordsOf("true or false (false is the published code's)")).toEqual(['true', 'false'])
    for (const range of [
      'an odd whole number from 1',
      'a number from 1 (no merging) to 64',
      'numbers from 0 joined by +',
    ])
      expect(wordsOf(range)).toBeNull()
  })

  it('are shown with a question and its answer', () => {
    const methods = [SNAPKV]
    const set = { unknown: '1', pooling: 'avg', kernel: '5' }
    expect(assignments({ method: 'snapkv', parameters: set }, methods)).toBe('kernel=5, pooling=avg, unknown=1')
    expect(described({ method: 'snapkv', parameters: { kernel: '5' }, budget: '25%', cache: null }, methods)).toBe(
      'SnapKV, 25 %, kernel=5',
    )
    expect(described({ method: 'full', parameters: {}, budget: '25%', cache: null }, methods)).toBe('full')
    expect(withValue({ a: '1' }, 'b', ' 2 ')).toEqual({ a: '1', b: '2' })
    expect(withValue({ a: '1', b: '2' }, 'a', ' ')).toEqual({ b: '2' })
    const names = ['decode_every', 'decode_w']
    const refused = (name: string) => ({ message: 'No.', code: { kind: 'parameter' as const, name } })
    expect(parameterOf(refused('decode_w'), names)).toBe('decode_w')
    expect(parameterOf(refused('w'), names)).toBeNull()
    expect(parameterOf({ message: 'No.', code: null }, names)).toBeNull()
  })

  it('are saved for their method, sent with the question, and taken back to the defaults', async () => {
    show(Advanced)
    const button = one('advanced')!
    expect(button.getAttribute('aria-expanded')).toBe('false')
    button.click()
    flushSync()
    expect(button.getAttribute('aria-expanded')).toBe('true')
    expect(document.activeElement).toBe(one('parameter-kernel'))
    const said = document.getElementById(one('parameter-kernel')!.getAttribute('aria-describedby')!)
    expect(said?.textContent).toContain('an odd whole number from 1; 7 by default')
    await set('parameter-kernel', '5')
    await set('parameter-pooling', 'avg')
    expect(saved().at(-1)?.parameters).toEqual({ snapkv: { kernel: '5', pooling: 'avg' } })
    expect(one('advanced-count')?.textContent).toBe(', 2 set')
    await kept.actions.ask('Why?')
    expect(asked.at(-1)?.args).toEqual({
      question: 'Why?',
      choice: { method: 'snapkv', parameters: { kernel: '5', pooling: 'avg' }, budget: null },
      relation: { alone: false, again: null, edits: null },
    })
    await set('parameter-pooling', '')
    expect(saved().at(-1)?.parameters).toEqual({ snapkv: { kernel: '5' } })
    one('advanced-reset')!.click()
    await settle()
    expect(saved().at(-1)?.parameters).toEqual({})
    expect(one('advanced-count')).toBeNull()
    one('parameter-kernel')!.dispatchEvent(new KeyboardEvent('keydown', { key: 'Escape', bubbles: true }))
    flushSync()
    expect(one('advanced-panel')).toBeNull()
    expect(document.activeElement).toBe(button)
  })

  it('that are refused say so at their field, and what was set before goes on to hold', async () => {
    kept.app.settings = { ...kept.app.settings, parameters: { snapkv: { kernel: '5' } } }
    answers['save_settings'] = () => {
      throw '“4” is not possible: kernel takes an odd whole number from 1.'
    }
    show(Advanced)
    one('advanced')!.click()
    flushSync()
    await set('parameter-kernel', '4')
    const field = one<HTMLInputElement>('parameter-kernel')!
    expect([field.value, field.getAttribute('aria-invalid')]).toEqual(['4', 'true'])
    const wrong = one('parameter-error')!
    expect([wrong.getAttribute('role'), wrong.textContent?.replace(/\s+/g, ' ')]).toEqual([
      'alert',
      '“4” is not possible: kernel takes an odd whole number from 1. 5 stays in effect.',
    ])
    expect(wrong.closest('[data-name]')?.getAttribute('data-name')).toBe('kernel')
    expect(kept.app.parameters).toEqual({ kernel: '5' })
  })

  it('that do not go with the budget say so at their field too', () => {
    kept.app.estimateError = {
      message: 'SnapKV: decode_cap=4 is less than the 25 rows per head that are kept of the prompt.',
      code: { kind: 'parameter', name: 'decode_cap' },
    }
    show(Advanced)
    one('advanced')!.click()
    flushSync()
    expect(one('parameter-error')?.closest('[data-name]')?.getAttribute('data-name')).toBe('decode_cap')
    expect(one('parameter-kernel')?.getAttribute('aria-invalid')).toBe('false')
  })
})

describe('smaller things', () => {
  it('a question that is given back is saved as a draft', async () => {
    kept.actions.take({ event: 'turn', turn: turn({ id: 9, state: 'asked', question: 'Why?' }) })
    kept.actions.take({ event: 'turn', turn: turn({ id: 9, state: 'failed', question: 'Why?', error: 'No.' }) })
    expect(kept.app.draft).toBe('Why?')
    kept.actions.flushDraft()
    await settle()
    expect(asked.filter((c) => c.name === 'save_drafts').map((c) => c.args['drafts'])).toEqual([
      { 'document 1': 'Why?' },
    ])
  })

  it('the tokens of a document that is far too long are estimated', () => {
    kept.app.document = documentFacts({ tokens: 36_693, tokensEstimated: true })
    show(Header)
    expect(one('document-tokens')?.textContent).toBe('about 36,693 tokens')
  })

  it('a document that is protected asks for its password, and takes none that is empty', async () => {
    const needs = { kind: 'password', wrong: true } as const
    kept.app.apply({ event: 'pending', file: { name: 'bank.pdf', needs } })
    show(Unlock, { name: 'bank.pdf', wrong: true })
    expect(one('unlock')?.textContent).toContain('The password does not open bank.pdf.')
    const field = one<HTMLInputElement>('unlock-password')!
    expect(document.activeElement).toBe(field)
    expect(one<HTMLButtonElement>('unlock-yes')!.disabled).toBe(true)
    field.value = 'open sesame'
    field.dispatchEvent(new Event('input'))
    await settle()
    one('unlock-yes')!.click()
    one('unlock-no')!.click()
    await settle()
    const said = asked.filter((c) => c.name === 'unlock_document').map((c) => c.args['password'])
    expect(said).toEqual(['open sesame', null])
    kept.app.apply({ event: 'pending', file: null })
    expect(kept.app.pending).toBeNull()
  })

  it('a scan asks for the languages of its text, with those of the system chosen', async () => {
    const close = () => void kept.actions.recogniseDocument(null)
    show(Recognise, { name: 'lease.pdf', pages: 12, languages: ['chi_sim', 'deu', 'eng'], close })
    expect(one('recognise')?.textContent).toContain('12 pages of images')
    const chosen = () => [...document.querySelectorAll<HTMLInputElement>('[data-testid^=language-]:checked')]
    expect(chosen().map((box) => box.value)).toEqual(['eng'])
    expect(one('language-deu')!.parentElement!.textContent.trim()).toBe('German')
    expect(one('language-chi_sim')!.parentElement!.textContent.trim()).toBe('chi_sim')
    one('language-deu')!.click()
    await settle()
    one('recognise-yes')!.click()
    one('language-eng')!.click()
    one('language-deu')!.click()
    await settle()
    expect(one<HTMLButtonElement>('recognise-yes')!.disabled).toBe(true)
    one('recognise-no')!.click()
    await settle()
    const said = asked.filter((c) => c.name === 'recognise_document').map((c) => c.args['languages'])
    expect(said).toEqual([['deu', 'eng'], null])
  })

  it('the text of pages that are images can be recognised while the document is open', async () => {
    show(ImagePages, {})
    expect(one('image-pages')).toBeNull()
    const needs = { kind: 'recognition' as const, open: true, pages: 3, languages: ['eng'] }
    kept.app.apply({ event: 'pending', file: { name: 'lease.pdf', needs } })
    await settle()
    expect(kept.app.asks).toBe(false)
    one('image-pages-recognise')!.click()
    await settle()
    expect(one('recognise')?.textContent).toContain('3 pages of images')
    one('recognise-no')!.click()
    await settle()
    expect(one('recognise')).toBeNull()
    one('image-pages-recognise')!.click()
    await settle()
    one('recognise-yes')!.click()
    await settle()
    const said = asked.filter((c) => c.name === 'recognise_document').map((c) => c.args['languages'])
    expect(said).toEqual([['eng']])
  })

  it('without the programs, a scan says what to install', () => {
    show(Recognise, { name: 'lease.pdf', pages: 1, languages: [], close: () => {} })
    expect(one('recognise')?.textContent).toContain('1 page of images')
    expect(one('recognise')?.textContent).toContain('tesseract-ocr')
    expect(one('recognise-yes')).toBeNull()
  })
})
