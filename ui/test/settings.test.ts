/** Settings of the answers: numbers are typed, saved, and refused in words. */
import { clearMocks, mockIPC } from '@tauri-apps/api/mocks'
import { flushSync, mount, unmount } from 'svelte'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import type { Settings as Saved } from '../src/lib/contract'
import { AppState } from '../src/lib/app.svelte'
import Settings from '../src/parts/Settings.svelte'
import Frame from './Frame.svelte'
import { snapshot } from './given'
import { keptOf } from './kept'

let app: AppState
let saved: Saved[]
let shown: Record<string, unknown>

beforeEach(() => {
  saved = []
  mockIPC((name, args) => {
    if (name !== 'save_settings') return null
    const { settings } = args as { settings: Saved }
    saved.push(settings)
    return settings
  })
  app = new AppState()
  app.load(snapshot())
  const props = { given: keptOf(app), part: Settings, props: { close: () => {} } }
  shown = mount(Frame, { target: document.body, props })
  flushSync()
})
afterEach(async () => {
  await unmount(shown)
  clearMocks()
  document.body.replaceChildren()
})

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
  it('take a temperature, with a comma too, and refuse what is no number', async () => {
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
