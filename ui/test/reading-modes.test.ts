/**
 * How a document is read, as the app describes it: whole or in streaming mode, from the vault or in full, by the
 * current method or another.
 */
import { clearMocks, mockIPC } from '@tauri-apps/api/mocks'
import { flushSync, mount, unmount, type Component } from 'svelte'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import type { Kept } from '../src/lib/context'
import type { Estimate, Facts, Progress, TurnState } from '../src/lib/contract'
import { AppState } from '../src/lib/app.svelte'
import { AUTO, titleOf } from '../src/lib/methods'
import { described } from '../src/lib/parameters'
import Composer from '../src/parts/Composer.svelte'
import Conversation from '../src/parts/Conversation.svelte'
import Header from '../src/parts/Header.svelte'
import MemoryBar from '../src/parts/MemoryBar.svelte'
import Settings from '../src/parts/Settings.svelte'
import Frame from './Frame.svelte'
import { answerFacts, documentFacts, memory, snapshot, turn } from './given'
import { keptOf } from './kept'

let asked: { name: string; args: Record<string, unknown> }[]
let shown: Record<string, unknown> | null = null

beforeEach(() => {
  asked = []
  mockIPC((name, args) => {
    asked.push({ name, args: (args ?? {}) as Record<string, unknown> })
    return name === 'save_settings' ? (args as { settings: unknown }).settings : null
  })
})
afterEach(async () => {
  if (shown) await unmount(shown)
  shown = null
  clearMocks()
  document.body.replaceChildren()
})

const METHODS = [
  ['full', 'Full cache', false],
  ['snapkv', 'SnapKV', false],
  ['ems', 'EMS', true],
].map(([name, title, streams]) => ({
  name: String(name), title: String(title), streams: streams === true, seesQuestion: true, paper: '', keeps: 'a part', acts: '', parameters: [],
})) // prettier-ignore

function given(some: Parameters<typeof documentFacts>[0] = {}, method = 'snapkv'): Kept {
  const app = new AppState()
  const whole = snapshot({ methods: METHODS, document: documentFacts(some) })
  app.load({ ...whole, settings: { ...whole.settings, method } })
  return keptOf(app)
}
function show(part: unknown, kept: Kept, props: Record<string, unknown> = {}) {
  shown = mount(Frame, { target: document.body, props: { given: kept, part: part as Component<never>, props } })
  flushSync()
}
const find = <T extends HTMLElement = HTMLElement>(id: string) => document.querySelector<T>(`[data-testid=${id}]`)
const all = (id: string) => [...document.querySelectorAll<HTMLElement>(`[data-testid=${id}]`)]
const words = (id: string) => find(id)?.textContent?.replace(/\s+/g, ' ').trim()
async function settle() {
  await new Promise((resolve) => setTimeout(resolve, 0))
  flushSync()
}
const estimate = (some: Partial<Estimate> = {}): Estimate => ({
  promptTokens: 1000,
  rows: 250,
  memory: memory(),
  notes: [],
  chosen: null,
  tokensFromVault: 0,
  tokensToRepeat: 0,
  cache: 'f16',
  ...some,
})
const FACTS = answerFacts({ promptTokens: 1000, rows: 250, tokensFromVault: 960 })
const LONG = { streaming: 'This document has 120,000 tokens. Answers are approximate.', tokens: 120_000 }

describe('before a question', () => {
  it('says in a line whether the document has to be read', () => {
    const kept = given()
    show(Composer, kept)
    expect(words('how-read')).toContain('The first question reads the document')
    kept.app.estimate = estimate({ tokensFromVault: 960 })
    flushSync()
    expect(words('how-read')).toContain('Already read')
    kept.app.estimate = estimate({ tokensFromVault: Math.round(kept.app.document!.tokens! / 2) })
    flushSync()
    expect(words('how-read')).toBe(
      '50 % of the document is already read. The first question reads the rest. Later ones start at once.',
    )
    kept.app.estimate = { ...kept.app.estimate, tokensToRepeat: 1000 }
    flushSync()
    expect(words('how-read')).toContain('The first question reads the rest, then all of it once more.')
    kept.app.estimate = estimate()
    kept.app.settings = { ...kept.app.settings, keep: 'off' }
    flushSync()
    expect(words('how-read')).toContain('the vault is off')
    kept.app.apply({ event: 'document', document: null, turns: [] })
    flushSync()
    expect(find('how-read')).toBeNull()
  })

  it('says when an answer starts if earlier turns or the question itself take a while', () => {
    const kept = given()
    show(Composer, kept)
    kept.app.document = documentFacts({ tokens: 1000, length: 4000 })
    const after = (promptTokens: number, some: Partial<Facts> = {}, draft = '') => {
      kept.app.turns = [turn({ answer: 'Yes.', facts: { ...FACTS, ...some } })]
      kept.app.estimate = estimate({ promptTokens, tokensFromVault: 1000 })
      kept.app.draft = draft
      flushSync()
      return words('how-read')
    }
    const soon = 'Already read: answers start right away.'
    expect(after(1400)).toBe('Already read: answers start soon.')
    kept.app.speeds = { mini: 20, 'mini\nh2o': 4 }
    expect(after(1060)).toBe(soon)
    expect(after(1400)).toBe('Already read: an answer starts after about 20 s.')
    const slow = { tokensFromVault: 1000, firstTokenSeconds: 15 }
    expect(after(1060, slow)).toBe('Already read: an answer starts after about 15 s.')
    // Earlier turns are in the vault too.
    expect(after(1400, { tokensFromVault: 1380 })).toBe(soon)
    expect(after(1040, {}, 'x'.repeat(1600))).toBe('Already read: an answer starts after about 25 s.')
    kept.app.document = documentFacts({ ...LONG, tokens: 1000, length: 4000 })
    kept.app.settings = { ...kept.app.settings, method: 'ems' }
    expect(after(1400)).toBe('Already read, in pieces: an answer starts after about 20 s.')
  })

  it('promises nothing of later questions while the document could not be stored', () => {
    const kept = given()
    show(Composer, kept)
    const how = (unwritten: boolean) => {
      kept.app.apply({ event: 'vault', vault: null, unwritten })
      flushSync()
      return words('how-read')
    }
    const repeats = { tokensFromVault: 960, tokensToRepeat: 1000 }
    for (const [of, says] of [
      [estimate(), 'The next question reads the document.'],
      [
        estimate({ tokensFromVault: Math.round(kept.app.document!.tokens! / 2) }),
        '50 % of the document is already read. The next question reads the rest.',
      ],
      [estimate(repeats), 'Already read. The next question reads it once more.'],
    ] as const) {
      // prettier-ignore
      kept.app.estimate = of
      expect(how(true)).toBe(says)
      expect(find('how-read')?.title).toBe('')
      expect(how(false)).toBe(`${says.replace('next', 'first')} Later ones start at once.`)
    }
    kept.app.document = documentFacts(LONG)
    kept.app.settings = { ...kept.app.settings, method: 'ems' }
    kept.app.estimate = null
    expect(how(true)).toBe('The next question reads the document in pieces.')
  })

  it('says nothing of it from a question to the estimate after it', () => {
    const kept = given()
    show(Composer, kept)
    const after = (event: () => void) => {
      event()
      flushSync()
      return words('how-read')
    }
    const is = (state: TurnState) => kept.app.apply({ event: 'turn', turn: turn({ state }) })
    const first = 'The first question reads the document. Later ones start at once.'
    expect(after(() => (kept.app.estimate = estimate()))).toBe(first)
    expect(after(() => is('reading'))).toBe('')
    expect(after(() => is('done'))).toBe('')
    expect(after(() => (kept.app.estimate = estimate({ tokensFromVault: 960 })))).toContain('Already read')
    // What held before the next question holds after it.
    expect(after(() => is('reading'))).toBe('')
    expect(after(() => is('done'))).toContain('Already read')
    // The vault was cleared meanwhile.
    expect(after(() => (kept.app.estimate = estimate()))).toBe(first)
  })

  it('shows the notes on a question that the last answer does not state itself', () => {
    const kept = given()
    show(Composer, kept)
    kept.app.estimate = estimate({ notes: ['The limit is tight.', 'Two rows are merged.'] })
    flushSync()
    expect(words('hint')).toBe('The limit is tight. Two rows are merged.')
    const answered = (notes: string[]) => {
      kept.app.apply({ event: 'turn', turn: turn({ facts: { ...FACTS, notes }, answer: 'Yes.' }) })
      flushSync()
      return words('hint')
    }
    expect(answered(['Two rows are merged.'])).toBe('The limit is tight.')
    expect(answered(['Two rows are merged.', 'The limit is tight.'])).toBeUndefined()
  })

  it('says that a long document is read approximately, and switches only by a click to a method that can', async () => {
    const kept = given(LONG)
    show(Composer, kept)
    expect(words('streaming')).toContain('answers are approximate')
    expect(words('streaming')).toContain(LONG.streaming)
    expect(words('streaming-stuck')).toContain('SnapKV cannot read')
    // The panel explains it: no second message in red.
    kept.app.estimateError = { message: 'SnapKV cannot read a document that is longer.', code: null }
    expect(kept.app.budgetError).toBeNull()
    expect(asked.filter((call) => call.name === 'save_settings')).toEqual([])
    expect(all('streaming-method').map((b) => b.dataset['value'])).toEqual([AUTO, 'ems'])
    // The refusal of a question with the method before is no longer news.
    kept.app.notify('conversation', 'SnapKV cannot read a document that is too long for the model.')
    all('streaming-method')[1]!.click()
    expect(kept.app.notices).toEqual([])
    await settle()
    expect(kept.app.settings.method).toBe('ems')
    expect([find('streaming-stuck'), words('how-read')]).toEqual([
      null,
      'The first question reads the document in pieces. Later ones start at once.',
    ])
    // Next to answers it is short, and can be expanded.
    kept.app.apply({ event: 'turn', turn: turn() })
    flushSync()
    expect(words('streaming')).not.toContain(LONG.streaming)
    find('streaming-more')!.click()
    flushSync()
    expect(words('streaming')).toContain(LONG.streaming)
  })

  it('offers in the menu what can read it, the rest with the reason', async () => {
    const kept = given(LONG, AUTO)
    kept.app.estimate = estimate({ chosen: { method: 'ems', rows: 512, reason: 'EMS follows long texts best.' } })
    show(Header, kept)
    expect(words('method-menu')).toBe('Automatic EMS')
    find('method-menu')!.click()
    flushSync()
    expect(words('chosen-why')).toBe('Now EMS. EMS follows long texts best.')
    const options = all('method-menu-option')
    expect(options.map((o) => [o.dataset['value'], o.getAttribute('aria-disabled')])).toEqual([
      [AUTO, 'false'],
      ['full', 'true'],
      ['snapkv', 'true'],
      ['ems', 'false'],
    ])
    expect(options[2]!.textContent).toContain('too long for the model')
    options[2]!.click()
    await settle()
    expect(kept.app.settings.method).toBe(AUTO)
    options[3]!.click()
    await settle()
    expect(kept.app.settings.method).toBe('ems')
  })
})

describe('while it is read, and after', () => {
  const reading = (some: Partial<Progress>) => ({
    event: 'progress' as const,
    turn: 1,
    progress: {
      phase: 'reading' as const, tokensDone: 43, tokensTotal: 100, tokensPerSecond: 812, secondsLeft: 2.4, tokensFromVault: 0, ...some,
    },
    memory: memory(),
  }) // prettier-ignore

  it('says what comes from the vault, and that streaming is approximate', () => {
    const kept = given()
    kept.app.apply({ event: 'turn', turn: turn({ state: 'reading' }) })
    kept.app.apply(reading({ tokensDone: 3, tokensTotal: 6, tokensFromVault: 11_402 }))
    show(Conversation, kept)
    expect(words('progress')).toBe('Already read: 11,402 tokens come from the vault')
    kept.app.apply(reading({ tokensDone: 3, tokensTotal: 900, tokensFromVault: 11_402 }))
    flushSync()
    expect(words('progress')).toContain('Reading 92 %')
    kept.app.document = documentFacts(LONG)
    kept.app.apply(reading({}))
    flushSync()
    expect(words('progress')).toBe('Reading in pieces, approximate: 43 % · 812 tokens/s · 3 s left')
  })

  it('says what was chosen and why, and what was not read again', () => {
    const kept = given()
    const chosen = { method: 'snapkv', rows: 250, reason: '25 % of the text is remembered.' }
    kept.app.apply({ event: 'turn', turn: turn({ method: AUTO, facts: { ...FACTS, chosen }, answer: 'Yes.' }) })
    show(Conversation, kept)
    expect(words('facts')).toBe(
      '1.0 s to first word · 60 tokens/s · Remembers 25 % of document and question · 960 tokens from the vault · SnapKV, chosen automatically',
    )
    expect(find('chosen-reason')).toBeNull()
    find('chosen-how')!.click()
    flushSync()
    expect(words('chosen-reason')).toBe('25 % of the text is remembered.')
    expect(described({ method: AUTO, parameters: {}, budget: '25%', cache: null }, METHODS)).toBe('Automatic, 25 %')
    expect(titleOf('gone', METHODS)).toBe('gone')
  })
})

describe('the vault in the settings', () => {
  const vault = {
    kind: 'q8_0',
    folder: '/home/ann/.cache/kept/vaults',
    documents: 2,
    bytes: 3 << 20,
    budget: 20 * 2 ** 30,
    stored: [],
  }

  it('shows what is kept, takes the way of keeping, and forgets all at the second click', async () => {
    const kept = given()
    show(Settings, kept, { close: () => {} })
    expect(words('vault-use')).toContain('Known when the engine has started')
    expect(find<HTMLButtonElement>('forget-vault')!.disabled).toBe(true)
    kept.app.apply({ event: 'vault', vault, unwritten: false })
    flushSync()
    expect(words('vault-use')).toContain('2 documents, 3.0 MiB of 20.0 GiB')
    const keep = find<HTMLSelectElement>('settings-keep')!
    keep.value = 'f16'
    keep.dispatchEvent(new Event('change', { bubbles: true }))
    await settle()
    expect(kept.app.settings.keep).toBe('f16')
    const field = find<HTMLInputElement>('settings-keep-budget')!
    for (const [typed, taken] of [
      ['2 GiB', '2 GiB'],
      [' automatic ', null],
    ] as const) {
      field.value = typed
      field.dispatchEvent(new Event('change', { bubbles: true }))
      await settle()
      expect([kept.app.settings.keepBudget, field.value]).toEqual([taken, taken ?? ''])
    }
    find('forget-vault')!.click()
    flushSync()
    expect(asked.filter((call) => call.name === 'clear_vault')).toEqual([])
    expect(words('forget-vault')).toBe('Delete for good')
    find('forget-vault')!.click()
    await settle()
    expect(asked.filter((call) => call.name === 'clear_vault')).toHaveLength(1)
    expect(words('forget-vault')).toBe('Delete all vaults')
  })

  it('stands in the memory bar while it is on', () => {
    const kept = given()
    kept.app.apply({ event: 'vault', vault, unwritten: false })
    show(MemoryBar, kept)
    expect(words('memory-vault')).toBe('All vaults on disk 3.0 MiB')
    kept.app.settings = { ...kept.app.settings, keep: 'off' }
    flushSync()
    expect(find('memory-vault')).toBeNull()
  })
})
