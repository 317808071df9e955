/** The memory limit: typed in the settings, shown at a question asked under it, refused in words with a remedy. */
import { clearMocks, mockIPC } from '@tauri-apps/api/mocks'
import { flushSync, mount, unmount, type Component } from 'svelte'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import App from '../src/App.svelte'
import type { Kept } from '../src/lib/context'
import type { Settings as Saved } from '../src/lib/contract'
import { AppState } from '../src/lib/app.svelte'
import { amount, saysTheSame } from '../src/lib/limit'
import { figures } from '../src/lib/memory'
import { described } from '../src/lib/parameters'
import Setup from '../src/parts/compare/Setup.svelte'
import Conversation from '../src/parts/Conversation.svelte'
import Header from '../src/parts/Header.svelte'
import Settings from '../src/parts/Settings.svelte'
import Frame from './Frame.svelte'
import { answerFacts, documentFacts, memory, snapshot, turn } from './given'
import { keptOf } from './kept'

let saved: Saved[]
let opened: string[]
let estimates: number
let shown: Record<string, unknown> | null = null

/** The program's wording (`src-tauri/src/messages/reading.rs`). */
const NO_AMOUNT =
  '“lots” is not an amount of memory: type for example 6 GiB or 900 MiB, or leave the field empty for no limit.'
const TOO_SMALL =
  'The memory limit of 1.0 GiB is too small for this question: 512.0 MiB are missing. The model’s weights alone are 900.0 MiB.'

beforeEach(() => {
  saved = []
  opened = []
  estimates = 0
  mockIPC((name, args) => {
    if (name === 'snapshot') return snapshot({ document: documentFacts({ length: 0 }) })
    if (name === 'document_text') return new ArrayBuffer(0)
    if (name === 'estimate') {
      estimates += 1
      return {
        promptTokens: 100,
        rows: 25,
        memory: memory(),
        notes: [],
        chosen: null,
        tokensFromVault: 0,
        tokensToRepeat: 0,
        cache: 'f16',
      }
    }
    if (name !== 'save_settings') return null
    const { settings } = args as { settings: Saved }
    if (settings.memory === 'lots') throw NO_AMOUNT
    saved.push(settings)
    return settings
  })
})
afterEach(async () => {
  if (shown) await unmount(shown)
  shown = null
  clearMocks()
  document.body.replaceChildren()
})

function given(limit: string | null = null): Kept {
  const app = new AppState()
  const whole = snapshot()
  app.load({ ...whole, settings: { ...whole.settings, memory: limit } })
  return keptOf(app, { open: (what) => opened.push(what) })
}
function show(part: unknown, kept: Kept, props: Record<string, unknown> = {}) {
  shown = mount(Frame, { target: document.body, props: { given: kept, part: part as Component<never>, props } })
  flushSync()
}
const find = <T extends HTMLElement = HTMLElement>(id: string) => document.querySelector<T>(`[data-testid=${id}]`)
const words = (id: string) => find(id)?.textContent?.replace(/\s+/g, ' ').trim()
async function settle(time = 0) {
  await new Promise((resolve) => setTimeout(resolve, time))
  flushSync()
}
async function type(value: string) {
  const field = find<HTMLInputElement>('settings-memory')!
  field.value = value
  field.dispatchEvent(new Event('change', { bubbles: true }))
  await settle()
}
const FACTS = answerFacts()

describe('the memory limit', () => {
  it('is none until an amount is typed, and what is no amount is refused with what was typed', async () => {
    const kept = given()
    show(Settings, kept, { close: () => {} })
    const field = find<HTMLInputElement>('settings-memory')!
    expect([field.value, field.placeholder]).toEqual(['', 'Automatic'])
    for (const part of ['program', 'weights', 'document', 'working memory', 'as much of the text as fits'])
      expect(document.getElementById('set-memory-says')!.textContent!.replace(/\s+/g, ' ')).toContain(part)
    await type(' 6GiB ')
    expect([saved.at(-1)?.memory, field.value]).toEqual(['6GiB', '6 GiB'])
    await type('lots')
    expect([kept.app.settings.memory, field.value]).toEqual(['6GiB', '6 GiB'])
    expect(kept.app.notices.map((n) => [n.where, n.message])).toEqual([['settings', NO_AMOUNT]])
    // Directly below its field.
    expect(document.querySelectorAll('[data-testid=notice]')).toHaveLength(1)
    expect(field.nextElementSibling?.textContent).toContain(NO_AMOUNT)
    await type('automatic')
    expect([saved.at(-1)?.memory, field.value, kept.app.notices.length]).toEqual([null, '', 0])
    expect(['', ' Auto ', '6 GiB', 'rows'].map(amount)).toEqual([null, null, '6 GiB', 'rows'])
  })

  it('is refused in a sentence, and the settings are one click away', () => {
    const kept = given('1 GiB')
    kept.app.estimateError = { message: TOO_SMALL, code: { kind: 'memoryLimit' } }
    show(Header, kept)
    expect(words('budget-error')).toBe(TOO_SMALL)
    find('change-limit')!.click()
    expect(opened).toEqual(['settings'])
    kept.app.estimateError = { message: 'A budget of 1 KiB is less than one row.', code: null }
    flushSync()
    expect(find('change-limit')).toBeNull()
  })

  it('is refused once: by the question that was refused, with the way to the settings', async () => {
    const kept = given('1 GiB')
    kept.app.estimateError = { message: TOO_SMALL, code: { kind: 'memoryLimit' } }
    const error = TOO_SMALL.replace('512.0 MiB', '513.5 MiB')
    kept.app.apply({ event: 'turn', turn: turn({ state: 'failed', error }) })
    show(Conversation, kept)
    const below = shown!
    show(Header, kept)
    expect([find('budget-error'), words('turn-error')]).toEqual([null, error])
    find('change-limit')!.click()
    expect(opened).toEqual(['settings'])
    kept.app.estimateError = { message: 'A budget of 1 KiB is less than one row.', code: null }
    flushSync()
    expect([words('budget-error'), find('change-limit')]).toEqual(['A budget of 1 KiB is less than one row.', null])
    expect(saysTheSame(TOO_SMALL, null)).toBe(false)
    await unmount(below)
  })

  it('stands in an answer’s facts, and in what asking again would take', () => {
    const kept = given('8 GiB')
    kept.app.apply({ event: 'turn', turn: turn({ facts: FACTS, memory: '6GiB', answer: 'Yes.' }) })
    show(Conversation, kept)
    expect(words('facts')).toContain('SnapKV, within 6 GiB')
    expect(words('ask-again')).toBe('Try again with SnapKV, within 8 GiB')
    expect(described({ ...kept.app.choice, cache: null }, snapshot().methods)).toBe('SnapKV')
  })

  it('has the memory bar show what is to come once it is another', () => {
    const answered = turn({ facts: FACTS, memory: '6 GiB' })
    const estimate = {
      promptTokens: 100, rows: 25, memory: memory(), notes: [], chosen: null, tokensFromVault: 0, tokensToRepeat: 0, cache: 'f16',
    } // prettier-ignore
    const phase = (limit: string | null) =>
      figures(null, answered, null, estimate, null, { ...snapshot().settings, memory: limit })?.phase
    expect([phase('6 GiB'), phase('4 GiB'), phase(null)]).toEqual(['turn', 'estimate', 'estimate'])
  })

  it('is said of a comparison, which does not keep to it', async () => {
    show(Setup, given('6GiB'), { about: '', begun: () => {}, cancel: null })
    expect(words('compare-memory')).toContain('The memory limit of 6 GiB is ignored')
    await unmount(shown!)
    show(Setup, given(), { about: '', begun: () => {}, cancel: null })
    expect(find('compare-memory')).toBeNull()
  })

  it('has what a question costs asked anew when it changes', async () => {
    shown = mount(App, { target: document.body, props: { report: () => {} } })
    await settle(600)
    const before = estimates
    expect(before).toBeGreaterThan(0)
    find('settings-button')!.click()
    flushSync()
    await type('6 GiB')
    await settle(600)
    expect(estimates).toBeGreaterThan(before)
  })
})
