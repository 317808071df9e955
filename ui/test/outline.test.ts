import { clearMocks, mockIPC } from '@tauri-apps/api/mocks'
import { flushSync, mount, unmount, type Component } from 'svelte'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { AppState } from '../src/lib/app.svelte'
import type { Kept } from '../src/lib/context'
import type { OutlineEntry } from '../src/lib/contract'
import { indentsOf, sectionIn } from '../src/lib/outline'
import Header from '../src/parts/Header.svelte'
import Outline from '../src/parts/Outline.svelte'
import Frame from './Frame.svelte'
import { documentFacts, snapshot } from './given'
import { keptOf } from './kept'

const entry = (start: number, level: number, page: number | null = null): OutlineEntry => ({
  level,
  title: `Heading ${start}`,
  start,
  page,
})
const ENTRIES = [entry(0, 1, 1), entry(1000, 2, 1), entry(2000, 2, 2), entry(9000, 1, 7)]

let kept: Kept
let shown: Record<string, unknown>[] = []

beforeEach(() => {
  mockIPC(() => null)
  const app = new AppState()
  app.load(snapshot({ document: documentFacts({ length: 10_000, outline: ENTRIES }) }))
  kept = keptOf(app)
})
afterEach(async () => {
  await Promise.all(shown.map((part) => unmount(part)))
  shown = []
  clearMocks()
  document.body.replaceChildren()
})

function show(part: unknown, props: Record<string, unknown> = {}) {
  const given = { given: kept, part: part as Component<never>, props }
  shown.push(mount(Frame, { target: document.body, props: given }))
  flushSync()
}
const all = (id: string) => [...document.querySelectorAll<HTMLElement>(`[data-testid=${id}]`)]
const entries = () => all('outline-entry')
const marked = () => entries().findIndex((button) => button.getAttribute('aria-current') === 'location')
function look(start: number, end: number) {
  kept.reader.visible = { start, end }
  flushSync()
}
function press(key: string) {
  document.activeElement!.dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true, cancelable: true }))
  flushSync()
}

describe('the outline', () => {
  it('lists the headings with their pages and their depth', () => {
    show(Outline, { beside: true })
    const said = entries().map((button) => button.textContent?.replace(/\s+/g, ' ').trim())
    expect(said).toEqual(['Heading 0, page 1', 'Heading 1000, page 1', 'Heading 2000, page 2', 'Heading 9000, page 7'])
    expect(entries().map((button) => button.style.paddingInlineStart)).toEqual(['16px', '30px', '30px', '16px'])
    expect(indentsOf([entry(0, 2), entry(1, 4)])).toEqual([0, 2])
    expect(indentsOf([])).toEqual([])
    expect(document.body.textContent).toContain('the model is not asked')
  })

  it('says that there are none', () => {
    kept.app.document = documentFacts({ outline: [] })
    show(Outline, { beside: true })
    expect(all('outline-none')[0]!.textContent).toBe('No headings were found in this document.')
    expect(document.activeElement).toBe(all('outline-close')[0])
  })

  it('stays beside the document when a heading is chosen', () => {
    kept.reader.contents = true
    show(Outline, { beside: true })
    entries()[2]!.click()
    expect(kept.reader.target).toEqual({ offset: 2000, place: 0, focus: false })
    expect(kept.reader.contents).toBe(true)
  })

  it('gives way to the document that it covers', () => {
    kept.reader.contents = true
    show(Outline, { beside: false })
    entries()[3]!.click()
    expect(kept.reader.target).toEqual({ offset: 9000, place: 0, focus: true })
    expect(kept.reader.contents).toBe(false)
  })

  it('marks the section in view, and a chosen one while its heading is in view', () => {
    show(Outline, { beside: true })
    look(1500, 2500)
    expect(marked()).toBe(1)
    look(1900, 2900)
    expect(marked()).toBe(2)
    entries()[3]!.click()
    // The end of the document: its heading cannot get to the top.
    look(8000, 10_000)
    expect(marked()).toBe(3)
    look(3000, 4000)
    expect(marked()).toBe(2)
    expect(sectionIn([entry(500, 1)], { start: 0, end: 100 }, null)).toBe(-1)
    // A document's name and its first heading begin at the same place.
    const both = [entry(0, 0), entry(0, 1)]
    expect(sectionIn(both, { start: 0, end: 9 }, both[0]!)).toBe(0)
    expect(sectionIn(both, { start: 0, end: 9 }, null)).toBe(1)
  })

  it('is one stop of the Tab key, with arrow keys inside', () => {
    look(1500, 2500)
    show(Outline, { beside: true })
    const stops = () => entries().map((button) => button.tabIndex)
    expect(document.activeElement).toBe(entries()[1])
    press('ArrowDown')
    expect(document.activeElement).toBe(entries()[2])
    expect(stops()).toEqual([-1, -1, 0, -1])
    press('End')
    press('ArrowDown')
    expect(document.activeElement).toBe(entries()[3])
    press('Home')
    press('ArrowUp')
    expect(document.activeElement).toBe(entries()[0])
    all('outline-close')[0]!.focus()
    flushSync()
    expect(stops()).toEqual([-1, 0, -1, -1])
  })

  it('opens with the button of the header and closes with Escape', async () => {
    show(Header)
    const button = all('contents-button')[0]!
    button.click()
    flushSync()
    expect([kept.reader.contents, button.getAttribute('aria-expanded')]).toEqual([true, 'true'])
    show(Outline, { beside: true })
    let passed = 0
    const listen = () => passed++
    window.addEventListener('keydown', listen)
    press('Escape')
    window.removeEventListener('keydown', listen)
    await new Promise((resolve) => setTimeout(resolve, 0))
    expect([kept.reader.contents, document.activeElement, passed]).toEqual([false, button, 0])
    kept.app.document = documentFacts({ length: 0 })
    flushSync()
    expect(all('contents-button')).toHaveLength(0)
  })
})
