/** Settings of the answers, instructions and numbers: typed, saved, and refused in words. */
import { clearMocks, mockIPC } from '@tauri-apps/api/mocks'
import { flushSync, mount, unmount, type Component } from 'svelte'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import type { Settings as Saved } from '../src/lib/contract'
import { AppState } from '../src/lib/app.svelte'
import Conversation from '../src/parts/Conversation.svelte'
import Settings from '../src/parts/Settings.svelte'
import Frame from './Frame.svelte'
import { answerFacts, snapshot, turn } from './given'
import { keptOf } from './kept'

let app: AppState
let saved: Saved[]
let shown: Record<string, unknown>

beforeEach(() => {
  saved = []
  mockIPC((name, args) => {
    if (name !== 'save_settings') return null
    const { settings } = args as { settings: Saved }
    if (settings.instructions === 'too long') throw 'Shorten them.'
    saved.push(settings)
    return settings
  })
  app = new AppState()
  app.load(snapshot())
})
afterEach(async () => {
  await unmount(shown)
  clearMocks()
  document.body.replaceChildren()
})

function show(part: unknown, props: Record<string, unknown> = {}) {
  const given = { given: keptOf(app), part: part as Component<never>, props }
  shown = mount(Frame, { target: document.body, props: given })
  flushSync()
}
const openSettings = () => show(Settings, { close: () => {} })
const find = <T extends HTMLElement>(id: string) => document.querySelector<T>(`[data-testid=${id}]`)!
const notices = () => app.notices.map(({ message }) => message)
async function type(id: string, value: string) {
  const field = find<HTMLInputElement>(id)
  field.value = value
  field.dispatchEvent(new Event('input', { bubbles: true }))
  field.dispatchEvent(new Event('change', { bubbles: true }))
  await new Promise((resolve) => setTimeout(resolve, 0))
  flushSync()
}

describe('the settings of the answers', () => {
  it('take instructions, and leave refused ones to be shortened', async () => {
    openSettings()
    const field = find<HTMLTextAreaElement>('settings-instructions')
    expect([field.value, field.labels?.[0]?.textContent]).toEqual(['', 'Instructions'])
    expect(document.getElementById(field.getAttribute('aria-describedby')!)?.textContent).toContain('built-in model')
    await type('settings-instructions', 'Be brief.')
    expect([saved.at(-1)?.instructions, field.value]).toEqual(['Be brief.', 'Be brief.'])
    await type('settings-instructions', 'too long')
    expect([app.settings.instructions, field.value, notices()]).toEqual(['Be brief.', 'too long', ['Shorten them.']])
    await type('settings-instructions', '')
    expect([saved.at(-1)?.instructions, field.value, notices()]).toEqual(['', '', []])
  })

  it('show at an answer that it had instructions, and which', () => {
    const answered = { state: 'done', answer: 'Yes.', facts: answerFacts() } as const
    app.apply({ event: 'turn', turn: turn({ ...answered, id: 1 }) })
    app.apply({ event: 'turn', turn: turn({ ...answered, id: 2, instructions: 'Be brief.' }) })
    show(Conversation)
    const shown = [...document.querySelectorAll('[data-testid=facts]')]
    const words = shown.map((facts) => facts.textContent?.match(/SnapKV.*/)?.[0])
    expect(words.toSorted()).toEqual(['SnapKV', 'SnapKV, with instructions'])
    expect(document.querySelectorAll('[data-testid=facts] [title="Be brief."]')).toHaveLength(1)
  })

  it('save instructions that are being typed when Escape closes the dialog', () => {
    openSettings()
    const field = find<HTMLTextAreaElement>('settings-instructions')
    const press = (key: string) => field.dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true }))
    field.focus()
    press('Enter')
    expect(document.activeElement).toBe(field)
    // A browser saves a field that loses the focus.
    press('Escape')
    expect(document.activeElement).not.toBe(field)
  })

  it('take a temperature, with a comma too, and refuse what is no number', async () => {
    openSettings()
    const field = find<HTMLInputElement>('settings-temperature')
    expect([field.value, field.labels?.[0]?.textContent]).toEqual(['0', 'Temperature'])
    await type('settings-temperature', ' 0,7 ')
    expect([saved.at(-1)?.temperature, field.value]).toEqual([0.7, '0.7'])
    for (const typed of ['warm', '1e999']) {
      await type('settings-temperature', typed)
      expect(notices()).toEqual([`“${typed}” is not a temperature: type a number from 0 to 2.`])
      expect([saved.length, field.value]).toEqual([1, '0.7'])
    }
    await type('settings-temperature', '')
    expect([saved.at(-1)?.temperature, field.value, notices()]).toEqual([0, '0', []])
  })

  it('take a repetition penalty, or none', async () => {
    openSettings()
    const field = find<HTMLInputElement>('settings-penalty')
    await type('settings-penalty', '1.1')
    expect([saved.at(-1)?.repeatPenalty, field.value]).toEqual([1.1, '1.1'])
    for (const typed of ['much', '1e999']) {
      await type('settings-penalty', typed)
      expect(notices()).toEqual([`“${typed}” is not a repetition penalty: type a number from 1 (off) to 2.`])
    }
    for (const typed of [' Off ', '']) {
      await type('settings-penalty', '1.1')
      await type('settings-penalty', typed)
      expect([saved.at(-1)?.repeatPenalty, field.value, notices()]).toEqual([null, '', []])
    }
  })
})
