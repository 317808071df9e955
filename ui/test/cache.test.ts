/** Cache types: chosen in the settings and next to the method's parameters, shown with the memory, refused in words. */
import { clearMocks, mockIPC } from '@tauri-apps/api/mocks'
import { flushSync, mount, unmount, type Component } from 'svelte'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { CACHES, stored, storedShort } from '../src/lib/cache'
import type { Kept } from '../src/lib/context'
import type { Settings as Saved } from '../src/lib/contract'
import { AppState } from '../src/lib/app.svelte'
import { described } from '../src/lib/parameters'
import Advanced from '../src/parts/Advanced.svelte'
import Setup from '../src/parts/compare/Setup.svelte'
import Conversation from '../src/parts/Conversation.svelte'
import Header from '../src/parts/Header.svelte'
import MemoryBar from '../src/parts/MemoryBar.svelte'
import Settings from '../src/parts/Settings.svelte'
import Frame from './Frame.svelte'
import { answerFacts, memory, snapshot, turn } from './given'
import { keptOf } from './kept'

let saved: Saved[]
let shown: Record<string, unknown> | null = null

beforeEach(() => {
  saved = []
  mockIPC((name, args) => {
    if (name !== 'save_settings') return null
    const { settings } = args as { settings: Saved }
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

function given(cache: string | null = null): Kept {
  const app = new AppState()
  const whole = snapshot()
  app.load({ ...whole, settings: { ...whole.settings, cache } })
  return keptOf(app)
}
function show(part: unknown, kept: Kept, props: Record<string, unknown> = {}) {
  shown = mount(Frame, { target: document.body, props: { given: kept, part: part as Component<never>, props } })
  flushSync()
}
const find = <T extends HTMLElement = HTMLElement>(id: string) => document.querySelector<T>(`[data-testid=${id}]`)
const words = (id: string) => find(id)?.textContent?.replace(/\s+/g, ' ').trim()
async function settle() {
  await new Promise((resolve) => setTimeout(resolve, 0))
  flushSync()
}
async function choose(id: string, value: string) {
  const field = find<HTMLSelectElement>(id)!
  field.value = value
  field.dispatchEvent(new Event('change', { bubbles: true }))
  await settle()
}
/** The program's wording (`src-tauri/src/messages/reading.rs`). */
const REFUSED =
  'EMS merges rows while it answers, and q8_0 would round them again each time: choose another method, or a cache precision of 16 or 32 bits.'

describe('how rows are stored', () => {
  it('has people’s words, with the field’s beside them', () => {
    expect(CACHES.map((type) => stored(type.name))).toEqual([
      '32-bit (f32)',
      '16-bit (f16)',
      '8-bit (q8_0)',
      '4-bit (q4_0)',
    ])
    // An unrecorded type is empty; a newer engine's type is shown by its name.
    expect([stored(''), storedShort(''), stored('q2_k')]).toEqual(['', '', 'q2_k'])
    const choice = { method: 'snapkv', parameters: {}, budget: '25%' }
    expect(described({ ...choice, cache: 'q8_0' }, snapshot().methods)).toBe('SnapKV, 25 %, 8-bit')
    expect(described({ ...choice, cache: null }, snapshot().methods)).toBe('SnapKV, 25 %')
  })

  it('is left to the engine until it is chosen in the settings', async () => {
    const kept = given()
    show(Settings, kept, { close: () => {} })
    const field = find<HTMLSelectElement>('settings-cache')!
    expect([field.value, field.options[0]!.text]).toEqual(['', 'Automatic'])
    expect(field.options[3]!.text).toBe('8-bit, about half the memory (q8_0)')
    await choose('settings-cache', 'q8_0')
    expect([kept.app.settings.cache, saved.at(-1)?.cache]).toEqual(['q8_0', 'q8_0'])
    await choose('settings-cache', '')
    expect([kept.app.settings.cache, saved.at(-1)?.cache]).toEqual([null, null])
  })

  it('stands beside the parameters of every method, counts as set, and is reset with them', async () => {
    const kept = given()
    show(Advanced, kept)
    find('advanced')!.click()
    flushSync()
    expect(find('advanced-count')).toBeNull()
    await choose('advanced-cache', 'q4_0')
    expect([kept.app.settings.cache, words('advanced-count')]).toEqual(['q4_0', ', 1 set'])
    expect(words('cache-row')).toContain('a quarter of the memory')
    find('advanced-reset')!.click()
    await settle()
    expect([kept.app.settings.cache, find('advanced-count')]).toEqual([null, null])
  })

  it('is a word of the memory bar and of an answer’s facts', () => {
    const kept = given('q8_0')
    kept.app.estimate = {
      promptTokens: 100, rows: 25, memory: memory(), notes: [], chosen: null, tokensFromVault: 0, tokensToRepeat: 0, cache: 'q8_0',
    } // prettier-ignore
    show(MemoryBar, kept)
    expect(words('memory-kept')).toContain('100 B, 8-bit')
    kept.app.estimate = { ...kept.app.estimate, cache: '' }
    flushSync()
    expect(find('memory-cache')).toBeNull()
  })

  it('stands in an answer’s facts, and in what asking again would take', () => {
    const kept = given('q4_0')
    const facts = answerFacts({ cache: 'q8_0' })
    kept.app.apply({ event: 'turn', turn: turn({ facts, cache: 'q8_0', answer: 'Yes.' }) })
    show(Conversation, kept)
    expect(words('facts')).toBe(
      '1.0 s to first word · 60 tokens/s · Remembers 25 % of document and question · SnapKV, 8-bit',
    )
    expect(words('ask-again')).toBe('Try again with SnapKV, 4-bit')
  })

  it('is refused in a sentence where the method does not work with it, with a way out; nothing changes by itself', async () => {
    const kept = given('q8_0')
    kept.app.estimateError = { message: REFUSED, code: { kind: 'cacheType' } }
    show(Header, kept)
    expect(words('budget-error')).toBe(REFUSED)
    find('advanced')!.click()
    flushSync()
    expect(words('cache-error')).toBe(REFUSED)
    expect(find('advanced-cache')!.getAttribute('aria-invalid')).toBe('true')
    expect(saved).toEqual([])
    find('store-wider')!.click()
    await settle()
    expect([kept.app.settings.cache, saved.length]).toEqual(['f16', 1])
    kept.app.estimateError = { message: 'A budget of 1 KiB is less than one row.', code: null }
    flushSync()
    expect([find('store-wider'), find('cache-error')]).toEqual([null, null])
  })

  it('is said of a comparison where it was chosen', () => {
    show(Setup, given('q8_0'), { about: '', begun: () => {}, cancel: null })
    expect(words('compare-cache')).toContain('8-bit (q8_0)')
  })
})
