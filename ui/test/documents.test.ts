/** Several documents in one conversation: their list, their beginnings, the document of a passage. */
import { clearMocks, mockIPC } from '@tauri-apps/api/mocks'
import { flushSync, mount, unmount, type Component } from 'svelte'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { addedLater, blocksOf, pageOf } from '../src/lib/blocks'
import type { Kept } from '../src/lib/context'
import { AppState } from '../src/lib/app.svelte'
import Conversation from '../src/parts/Conversation.svelte'
import Block from '../src/parts/Block.svelte'
import Footer from '../src/parts/Footer.svelte'
import Documents from '../src/parts/Documents.svelte'
import Frame from './Frame.svelte'
import { documentFacts, painted, snapshot, turn } from './given'
import { keptOf } from './kept'

const TEXT = 'one\ntwo\n\n(Here ends the document "a.txt".)\n\nthree four\n\n(Here ends the document "b.pdf".)'
const three = TEXT.indexOf('three')
const DOCUMENTS = [
  { name: 'a.txt', kind: 'text', start: 0, end: 7, pages: 0 },
  { name: 'b.pdf', kind: 'pdf', start: three, end: three + 10, pages: 2 },
]
const PAGES = [
  { number: 1, start: three, end: three + 6 },
  { number: 2, start: three + 6, end: three + 10 },
]

let asked: { name: string; args: Record<string, unknown> }[]
let shown: Record<string, unknown> | null = null
let kept: Kept

beforeEach(() => {
  asked = []
  mockIPC((name, args) => {
    asked.push({ name, args: (args ?? {}) as Record<string, unknown> })
    return name === 'document_text' ? new TextEncoder().encode(TEXT).buffer : null
  })
  const app = new AppState()
  app.load(snapshot({ document: documentFacts({ name: 'a.txt + b.pdf', documents: DOCUMENTS, pages: PAGES }) }))
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
const named = (name: string) => asked.filter((call) => call.name === name).map((call) => call.args)
async function settle() {
  await new Promise((resolve) => setTimeout(resolve, 0))
  flushSync()
}

describe('the text of several documents', () => {
  it('begins a block, with the name, where a document does, and one where it ends', () => {
    const blocks = blocksOf(TEXT, PAGES, DOCUMENTS)
    expect(blocks.map((b) => [b.document, b.page, TEXT.slice(b.start, b.end)])).toEqual([
      ['a.txt', null, 'one\ntwo'],
      [null, null, '(Here ends the document "a.txt".)'],
      ['b.pdf', 1, 'three '],
      [null, 2, 'four'],
      [null, null, '(Here ends the document "b.pdf".)'],
    ])
  })

  it('knows pages only in the document that has them', () => {
    const document = { pages: PAGES, documents: DOCUMENTS }
    expect([0, 8, three, three + 7, TEXT.length - 1].map((at) => pageOf(document, at))).toEqual([
      null,
      null,
      1,
      2,
      null,
    ])
    expect(pageOf({ pages: PAGES, documents: [] }, three)).toBe(1)
    expect(pageOf(null, 0)).toBeNull()
  })

  it('is fetched again when one was added', async () => {
    const facts = documentFacts({ length: 3 })
    await kept.text.show(facts)
    await kept.text.show(facts)
    expect(named('document_text')).toHaveLength(1)
    await kept.text.show({ ...facts, length: TEXT.length, documents: DOCUMENTS })
    expect(named('document_text')).toHaveLength(2)
    expect(kept.text.current?.blocks.filter((b) => b.document !== null)).toHaveLength(2)
  })
})

describe('a map from before a document was added', () => {
  const mapped = (...ends: number[]) =>
    painted(
      ends,
      ends.map(() => 0),
    )

  it('is known by its end', () => {
    const names = (ends: number[] | null) =>
      addedLater(DOCUMENTS, ends === null ? undefined : new Uint32Array(ends)).map((part) => part.name)
    expect([names([3, 7]), names([3, 7, three + 10]), names(null), names([])]).toEqual([['b.pdf'], [], [], []])
    expect(addedLater([], new Uint32Array([3]))).toEqual([])
  })

  it('is said where that document begins, and where it is said how much is in memory', () => {
    const block = blocksOf(TEXT, PAGES, DOCUMENTS)[2]!
    kept.app.apply({ event: 'turn', turn: turn({ hasMap: true }) })
    kept.map.painted = mapped(3, 7)
    show(Block, { block, index: 2, text: TEXT, mono: false })
    expect(all('added-later')).toHaveLength(1)
    kept.map.painted = mapped(3, three + 10)
    flushSync()
    expect(all('added-later')).toHaveLength(0)
  })

  it('and what the model reads between two documents looks like neither', () => {
    kept.app.apply({ event: 'turn', turn: turn({ hasMap: true }) })
    const blocks = blocksOf(TEXT, PAGES, DOCUMENTS)
    show(Block, { block: blocks[1]!, index: 1, text: TEXT, mono: false })
    expect(document.querySelectorAll('p.quiet')).toHaveLength(1)
    show(Block, { block: blocks[2]!, index: 2, text: TEXT, mono: false })
    expect(document.querySelectorAll('p.quiet')).toHaveLength(1)
  })

  it('and the footer does not call it this document', () => {
    kept.app.apply({ event: 'turn', turn: turn({ hasMap: true }) })
    kept.map.painted = mapped(3, 7)
    show(Footer)
    const share = () => all('kept-share')[0]!.textContent?.replace(/\s+/g, ' ').trim()
    expect(share()).toBe('The model remembers 50 % of what was open then')
    kept.map.painted = mapped(3, three + 10)
    flushSync()
    expect(share()).toBe('The model remembers 50 % of this document')
  })
})

describe('the list of documents', () => {
  it('goes to where one begins, adds one, and takes one away at one click', async () => {
    show(Documents)
    all('documents-button')[0]!.click()
    flushSync()
    expect(all('part').map((p) => p.textContent?.replace(/\s+/g, ' ').trim())).toEqual([
      'a.txt Remove',
      'b.pdf 2 pages Remove',
    ])
    kept.app.document = { ...kept.app.document!, pageNoun: 'sheet' }
    flushSync()
    expect(all('part')[1]!.querySelector('small')?.textContent).toBe('2 sheets')
    all('part')[1]!.querySelector('button')!.click()
    expect(kept.reader.target?.offset).toBe(three)
    flushSync()
    all('documents-button')[0]!.click()
    flushSync()
    kept.app.apply({ event: 'turn', turn: turn() })
    flushSync()
    all('part-remove')[1]!.click()
    await settle()
    expect(named('remove_document')).toEqual([{ index: 1 }])
    all('add-button')[0]!.click()
    await settle()
    expect(named('add_document')).toHaveLength(1)
    kept.app.document = documentFacts()
    flushSync()
    expect([all('documents-button').length, all('add-button').length]).toEqual([0, 1])
  })

  it('closes with Escape, a click elsewhere, or when the keyboard goes elsewhere', () => {
    show(Documents)
    const button = all('documents-button')[0]!
    const isOpen = () => all('documents').length === 1
    const opens = () => {
      button.click()
      flushSync()
      expect(isOpen()).toBe(true)
    }
    const inside = () => all('documents')[0]!
    opens()
    inside().dispatchEvent(new MouseEvent('pointerdown', { bubbles: true }))
    flushSync()
    expect(isOpen()).toBe(true)
    inside().dispatchEvent(new KeyboardEvent('keydown', { key: 'Escape', isComposing: true, bubbles: true }))
    flushSync()
    expect(isOpen()).toBe(true)
    inside().dispatchEvent(new KeyboardEvent('keydown', { key: 'Escape', bubbles: true }))
    flushSync()
    expect([isOpen(), document.activeElement]).toEqual([false, button])
    opens()
    document.body.dispatchEvent(new MouseEvent('pointerdown', { bubbles: true }))
    flushSync()
    expect(isOpen()).toBe(false)
    opens()
    inside().dispatchEvent(new FocusEvent('focusout', { bubbles: true, relatedTarget: document.body }))
    flushSync()
    expect(isOpen()).toBe(false)
  })

  it('stands at each passage', () => {
    const source = { start: three, end: three + 5, page: 1, document: 'b.pdf', text: 'three', weight: 1, kept: 1 }
    const sources = [source, { ...source, start: 0, end: 3, page: null, document: 'a.txt', text: 'one' }]
    kept.app.apply({ event: 'turn', turn: turn({ answer: 'Yes.', sources }) })
    show(Conversation)
    const said = all('source').map((s) => s.textContent?.replace(/\s+/g, ' ').trim())
    expect(said).toEqual(['b.pdf, page 1 · three · 100 % remembered', 'a.txt · one · 100 % remembered'])
  })
})
