/** The list of conversations: groups, open, rename, pin, delete, search, fold, keyboard. */
import { clearMocks, mockIPC } from '@tauri-apps/api/mocks'
import { flushSync, mount, unmount, type Component } from 'svelte'
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import App from '../src/App.svelte'
import type { Kept } from '../src/lib/context'
import type { AppEvent, ConversationEntry, FoundPassage, Snapshot } from '../src/lib/contract'
import { byDocument, exactly, grouped, when } from '../src/lib/conversations'
import { AppState } from '../src/lib/app.svelte'
import { Find } from '../src/lib/find.svelte'
import Composer from '../src/parts/Composer.svelte'
import Conversation from '../src/parts/Conversation.svelte'
import Opening from '../src/parts/Opening.svelte'
import Sidebar from '../src/parts/Sidebar.svelte'
import Frame from './Frame.svelte'
import { documentFacts, entry, snapshot, turn } from './given'
import { keptOf } from './kept'

const seconds = (days: number) => Math.floor(Date.now() / 1000) - days * 86_400
const ENTRIES = [
  entry({ id: 3, title: 'Where is the key?', document: 'house.txt', updated: seconds(40), pinned: true }),
  entry({ id: 1, title: 'Who pays?', document: 'lease.pdf', updated: seconds(0) }),
  entry({ id: 2, title: 'Which day?', document: 'market.txt', updated: seconds(1) }),
]

let asked: { name: string; args: Record<string, unknown> }[]
let answers: Record<string, (args: Record<string, unknown>) => unknown>
let shown: Record<string, unknown>[] = []
let kept: Kept
let composed: number

beforeEach(() => {
  asked = []
  answers = { save_settings: (args) => args['settings'] }
  mockIPC((name, args) => {
    asked.push({ name, args: (args ?? {}) as Record<string, unknown> })
    return answers[name]?.((args ?? {}) as Record<string, unknown>) ?? null
  })
  const app = new AppState()
  app.load(snapshot({ conversations: ENTRIES, conversation: 1, turns: [turn()] }))
  composed = 0
  kept = keptOf(app, { compose: () => composed++ })
})
afterEach(async () => {
  for (const one of shown) await unmount(one)
  shown = []
  vi.useRealTimers()
  clearMocks()
  document.body.replaceChildren()
})
function show(part: unknown) {
  shown.push(mount(Frame, { target: document.body, props: { given: kept, part: part as Component<never>, props: {} } }))
  flushSync()
}
const all = (id: string) => [...document.querySelectorAll<HTMLElement>(`[data-testid=${id}]`)]
const one = <T extends HTMLElement = HTMLElement>(id: string) => document.querySelector<T>(`[data-testid=${id}]`)
const row = (id: number) => document.querySelector<HTMLElement>(`[data-testid=conversation][data-id="${id}"]`)!
const button = (id: number) => row(id).querySelector<HTMLElement>('.open')!
const named = (name: string) => asked.filter((call) => call.name === name).map((call) => call.args)
const words = (element: Element | null | undefined) => element?.textContent?.replace(/\s+/g, ' ').trim()
async function settle() {
  await new Promise((resolve) => setTimeout(resolve, 0))
  flushSync()
}
function press(target: Element | null, init: KeyboardEventInit) {
  const event = new KeyboardEvent('keydown', { bubbles: true, cancelable: true, ...init })
  target?.dispatchEvent(event)
  flushSync()
  return event
}
function choose(id: number, action: string) {
  row(id).querySelector<HTMLElement>('[data-testid=conversation-menu]')!.click()
  flushSync()
  one(`conversation-${action}`)!.click()
  flushSync()
}
function type(text: string) {
  const field = one<HTMLInputElement>('conversation-search')!
  field.value = text
  field.dispatchEvent(new InputEvent('input', { bubbles: true }))
  flushSync()
  return field
}
const list = (conversations: ConversationEntry[], current: number | null = 1): AppEvent => ({
  event: 'conversations',
  conversations,
  current,
})

describe('times', () => {
  const now = new Date(2025, 2, 12, 0, 30).getTime()
  const at = (...date: [number, number, number]) => new Date(...date, 23, 59).getTime() / 1000

  it('are those of the calendar', () => {
    expect([at(2025, 2, 13), at(2025, 2, 12), at(2025, 2, 11), at(2025, 2, 10), at(2024, 2, 9)].map((t) => when(t, now))).toEqual([
      'today', 'today', 'yesterday', '10 Mar', '9 Mar 2024',
    ]) // prettier-ignore
  })

  it('are exact in the tooltip', () => {
    expect(exactly(at(2024, 2, 9))).toBe('9 Mar 2024, 23:59')
  })

  it('make groups; pinned ones are first, whatever their age', () => {
    const entries = [
      entry({ id: 1, updated: at(2020, 0, 1), pinned: true }),
      ...[at(2025, 2, 12), at(2025, 2, 11), at(2025, 2, 10), at(2025, 2, 5), at(2025, 2, 4)].map((updated, i) =>
        entry({ id: i + 2, updated }),
      ),
    ]
    expect(grouped(entries, now).map((group) => [group.name, group.entries.map(({ id }) => id)])).toEqual([
      ['Pinned', [1]],
      ['Today', [2]],
      ['Yesterday', [3]],
      ['Last 7 days', [4, 5]],
      ['Older', [6]],
    ])
    expect(grouped([], now)).toEqual([])
  })

  it('are grouped by document, with what is known about it', () => {
    const now = new Date(2026, 10, 25, 12).getTime()
    const entries = [
      entry({ id: 1, document: 'lease.pdf', documentId: 7, pages: 12 }),
      entry({ id: 2, document: '', documentId: 8, pages: 0 }),
      entry({ id: 3, document: 'lease.pdf', documentId: 7, pages: 12 }),
      entry({ id: 4, document: '', documentId: 9, pages: 0 }),
    ]
    const stored = [{ name: 'lease.pdf', tokens: 5114, bytes: 2 ** 20, used: now / 1000 }]
    expect(
      byDocument(entries, stored, now).map(({ name, facts, entries }) => [name, facts, entries.map(({ id }) => id)]),
    ).toEqual([
      ['lease.pdf', '12 pages · 1.0 MiB in the vault · read today', [1, 3]],
      ['Without a document', '', [2, 4]],
    ])
    // Of two documents of one name it is not known which one the vault is of.
    const another = entry({ id: 5, document: 'lease.pdf', documentId: 10, pages: 3, pageNoun: 'slide' })
    expect(byDocument([...entries, another], stored, now).map(({ facts }) => facts)).toEqual([
      '12 pages',
      '',
      '3 slides',
    ])
    expect(byDocument(entries, [...stored, ...stored], now)[0]?.facts).toBe('12 pages')
  })
})

describe('the list', () => {
  it('has title, document and time of each, the open one marked, or a line if it is empty', () => {
    show(Sidebar)
    expect([...one('conversations')!.querySelectorAll('h2')].map(words)).toEqual(['Pinned', 'Today', 'Yesterday'])
    expect(words(button(1))).toMatch(/^Who pays\? lease\.pdf · \d\d:\d\d$/)
    expect(button(1).querySelector('.title')?.getAttribute('title')).toBe('Who pays?')
    expect(button(1).querySelector('.of')?.getAttribute('title')).toBe(`lease.pdf, ${exactly(ENTRIES[1]!.updated)}`)
    expect(all('conversation').map((r) => r.getAttribute('aria-current'))).toEqual([null, 'true', null])
    kept.app.apply(list([], null))
    flushSync()
    expect([all('conversation').length, words(one('conversations'))]).toEqual([0, 'Conversations appear here.'])
  })

  it('opens one at a click, and not the open one again', async () => {
    show(Sidebar)
    button(1).click()
    await settle()
    expect(named('open_conversation')).toEqual([])
    button(2).click()
    await settle()
    expect(named('open_conversation')).toEqual([{ id: 2 }])
    kept.app.apply(list(ENTRIES, 2))
    flushSync()
    expect(row(2).getAttribute('aria-current')).toBe('true')
  })

  it('marks the one that is being loaded, says so if that takes long, and opens the last one chosen', async () => {
    vi.useFakeTimers()
    const after = async (ms: number) => {
      await vi.advanceTimersByTimeAsync(ms)
      flushSync()
      return words(one('opening'))
    }
    const due = new Map<unknown, (opened: boolean) => void>()
    answers['open_conversation'] = ({ id }) => new Promise((resolve) => due.set(id, resolve))
    const marked = () => all('conversation').filter((r) => r.hasAttribute('aria-current')).map((r) => r.dataset['id']) // prettier-ignore
    await kept.text.show(kept.app.document)
    show(Sidebar)
    show(Opening)
    button(2).click()
    expect(await after(190)).toBeUndefined()
    expect(marked()).toEqual(['2'])
    expect(await after(20)).toBe('Opening market.txt Stop')
    button(2).click()
    button(3).click()
    expect(await after(210)).toBe('Opening house.txt Stop')
    expect(named('open_conversation')).toEqual([{ id: 2 }, { id: 3 }])
    due.get(2)!(false)
    await after(0)
    expect([marked(), kept.app.announcement]).toEqual([['3'], ''])
    // Its text takes long as well: the line stays.
    due.get(3)!(true)
    const house = documentFacts({ id: 9, name: 'house.txt' })
    kept.app.apply({ event: 'document', document: house, turns: [] })
    kept.app.apply(list(ENTRIES, 3))
    expect(await after(0)).toBe('Opening house.txt')
    expect([marked(), kept.app.announcement]).toEqual([['3'], '“Where is the key?” is open'])
    answers['document_text'] = () => new ArrayBuffer(0)
    await kept.text.show(house)
    expect(await after(0)).toBeUndefined()
    // A stop, or the way back to the open one.
    button(2).click()
    expect(await after(210)).toBe('Opening market.txt Stop')
    one('opening-stop')!.click()
    expect([await after(0), marked(), named('stop').length]).toEqual([undefined, ['3'], 1])
    button(2).click()
    await after(0)
    button(3).click()
    expect([await after(0), named('open_conversation').at(-1)]).toEqual([undefined, { id: 3 }])
  })

  it('shows a refusal as a notice of the conversation', async () => {
    const sentence = 'A question is still being answered: stop it first.'
    answers['open_conversation'] = () => {
      throw sentence
    }
    show(Sidebar)
    button(2).click()
    await settle()
    expect(kept.app.notices.map((n) => [n.where, n.message])).toEqual([['conversation', sentence]])
    expect(row(2).hasAttribute('aria-current')).toBe(false)
  })

  it('begins a new conversation only about a document with turns', async () => {
    show(Sidebar)
    const fresh = one<HTMLButtonElement>('new-conversation')!
    fresh.click()
    await settle()
    expect([named('new_conversation').length, composed]).toEqual([1, 1])
    kept.app.apply({ event: 'document', document: kept.app.document, turns: [] })
    flushSync()
    expect(fresh.disabled).toBe(true)
    kept.app.close()
    flushSync()
    expect(fresh.disabled).toBe(true)
  })

  it('renames in place: Enter saves, Escape does not, leaving the field does, the same title is no change', async () => {
    show(Sidebar)
    const field = () => one<HTMLInputElement>('conversation-title')
    choose(2, 'rename')
    expect([document.activeElement, field()?.value]).toEqual([field(), 'Which day?'])
    field()!.value = ' Market '
    press(field(), { key: 'Enter', isComposing: true })
    expect(field()).not.toBeNull()
    press(field(), { key: 'Enter' })
    await settle()
    expect([field(), document.activeElement]).toEqual([null, button(2)])
    expect(named('rename_conversation')).toEqual([{ id: 2, title: 'Market' }])

    press(button(2), { key: 'F2' })
    field()!.value = 'Other'
    expect(press(field(), { key: 'Escape' }).defaultPrevented).toBe(true)
    press(button(2), { key: 'F2' })
    press(field(), { key: 'Enter' })
    expect(named('rename_conversation')).toHaveLength(1)

    press(button(2), { key: 'F2' })
    field()!.value = ''
    field()!.dispatchEvent(new FocusEvent('blur'))
    await settle()
    expect(named('rename_conversation').at(-1)).toEqual({ id: 2, title: '' })
  })

  it('pins and unpins, exports and imports', async () => {
    show(Sidebar)
    choose(2, 'pin')
    choose(3, 'pin')
    choose(3, 'export')
    one('conversation-import')!.click()
    await settle()
    expect(named('pin_conversation')).toEqual([
      { id: 2, pinned: true },
      { id: 3, pinned: false },
    ])
    expect([named('export_conversation'), named('import_conversation').length]).toEqual([[{ id: 3 }], 1])
  })

  it('keeps the focus on a row that moves', async () => {
    show(Sidebar)
    choose(2, 'pin')
    kept.app.apply(list(ENTRIES.map((e) => ({ ...e, pinned: e.pinned || e.id === 2 }))))
    await settle()
    expect(document.activeElement).toBe(row(2).querySelector('.more'))
  })

  it('keeps what is typed with its conversation', async () => {
    answers['open_conversation'] = () => true
    const open = (id: number, document: number) => {
      kept.app.apply({ event: 'document', document: documentFacts({ id: document }), turns: [turn({ id: 10 * id })] })
      kept.app.apply(list(ENTRIES, id))
    }
    kept.app.draft = 'Half a question'
    kept.app.coming = 2
    open(2, 1)
    expect(kept.app.draft).toBe('')
    kept.app.draft = 'Another half'
    kept.app.coming = 1
    open(1, 1)
    expect(kept.app.draft).toBe('Half a question')
    // A branch, which is not chosen in the list, takes it along; another document does not.
    open(3, 1)
    expect(kept.app.draft).toBe('Half a question')
    open(2, 5)
    expect(kept.app.draft).toBe('Another half')
    // Sent, it is not there again.
    kept.app.draft = ''
    open(1, 1)
    open(2, 5)
    expect(kept.app.draft).toBe('')
    // What is typed without a document goes to the first one, unless that has its own.
    kept.app.draft = 'Its own'
    open(1, 1)
    kept.app.apply({ event: 'document', document: null, turns: [] })
    kept.app.apply(list(ENTRIES, null))
    kept.app.draft = 'Without a document'
    open(2, 5)
    expect(kept.app.draft).toBe('Its own')
    // All of them are there after a restart, but those of conversations that are gone.
    open(1, 1)
    kept.app.draft = 'Open'
    const drafts = kept.app.drafts()
    expect(drafts).toEqual({
      'conversation 1': 'Open',
      'conversation 2': 'Its own',
      'conversation 3': 'Half a question',
    })
    const again = new AppState()
    again.load(snapshot({ conversations: ENTRIES, conversation: 2, drafts }))
    expect(again.draft).toBe('Its own')
    again.apply(
      list(
        ENTRIES.filter(({ id }) => id !== 1),
        2,
      ),
    )
    expect(again.drafts()).toEqual({ 'conversation 2': 'Its own', 'conversation 3': 'Half a question' })
  })

  it('opens another conversation while a question is answered', async () => {
    kept.app.apply({ event: 'turn', turn: turn({ id: 7, state: 'reading' }) })
    show(Sidebar)
    button(2).click()
    await settle()
    expect(named('open_conversation')).toEqual([{ id: 2 }])
  })

  it('says how far a conversation is that was left, and opens or stops it', async () => {
    answers['open_conversation'] = () => true
    const progress = {
      phase: 'reading',
      tokensDone: 240,
      tokensTotal: 1000,
      tokensFromVault: 0,
      tokensPerSecond: 10,
      secondsLeft: 76,
    } as const
    const left = {
      conversation: 2,
      question: 'Which day?',
      document: 'market.txt',
      state: 'answering',
      waiting: 1,
      runs: null,
      progress,
    } as const
    kept.app.apply({ event: 'elsewhere', elsewhere: [left] })
    show(Sidebar)
    show(Composer)
    const said = () => words(one('elsewhere'))
    expect(said()).toBe('Which day? Reading 24 %, 80 s left, 1 more waits · market.txt Open Stop')
    expect(row(2).querySelector('.dot')).not.toBeNull()
    expect([kept.app.busy, kept.app.engaged, words(one('send'))]).toEqual([false, true, 'Ask next'])
    one('elsewhere-stop')!.click()
    kept.app.apply({ event: 'elsewhere', elsewhere: [{ ...left, state: 'done', waiting: 0, progress: null }] })
    await settle()
    expect(said()).toBe('Which day? Answered · market.txt Open Close')
    expect([kept.app.announcement, kept.app.engaged]).toEqual(['“Which day?” is done', false])
    one('elsewhere-open')!.click()
    await settle()
    expect([named('stop_elsewhere'), named('open_conversation')]).toEqual([[{ id: 2 }], [{ id: 2 }]])
    const runs: [number, number] = [2, 14]
    kept.app.apply({ event: 'elsewhere', elsewhere: [{ ...left, state: 'comparing', runs }] })
    flushSync()
    expect(said()).toContain('Comparing, 2 of 14')
    one('elsewhere-open')!.click()
    await settle()
    expect(kept.app.comparesIn).toBe(2)
    kept.app.apply({ event: 'elsewhere', elsewhere: [] })
    flushSync()
    expect([one('elsewhere'), row(2).querySelector('.dot')]).toEqual([null, null])
  })

  it('deletes at once, and offers to undo it for a while', async () => {
    vi.useFakeTimers()
    show(Sidebar)
    choose(1, 'delete')
    // The next row has the focus.
    expect(document.activeElement).toBe(button(2))
    await vi.advanceTimersByTimeAsync(0)
    flushSync()
    expect(named('delete_conversation')).toEqual([{ id: 1 }])
    expect(words(one('deleted')?.querySelector('span'))).toBe('Deleted “Who pays?”')
    expect(one('deleted')?.getAttribute('role')).toBe('status')
    one('undo-delete')!.click()
    flushSync()
    expect([named('restore_conversation'), one('deleted')]).toEqual([[{ id: 1 }], null])
    // The next question is typed in the composer.
    expect([composed, document.activeElement === one('conversation-search')]).toEqual([1, false])

    await vi.advanceTimersByTimeAsync(59_000)
    press(button(2), { key: 'Delete' })
    await vi.advanceTimersByTimeAsync(59_000)
    flushSync()
    expect(words(one('deleted'))).toContain('Which day?')
    // Another deletion takes its place, with its own time.
    press(button(3), { key: 'Delete' })
    await vi.advanceTimersByTimeAsync(59_000)
    flushSync()
    expect(words(one('deleted'))).toContain('Where is the key?')
    // The one before comes back too.
    one('undo-delete')!.click()
    await vi.advanceTimersByTimeAsync(0)
    flushSync()
    expect(named('restore_conversation').at(-1)).toEqual({ id: 3 })
    expect(words(one('deleted'))).toContain('Which day?')
    await vi.advanceTimersByTimeAsync(1001)
    flushSync()
    expect(one('deleted')).toBeNull()
  })

  it('still offers to undo it when the list is hidden and shown again', async () => {
    vi.useFakeTimers()
    show(Sidebar)
    choose(1, 'delete')
    await vi.advanceTimersByTimeAsync(4000)
    await unmount(shown.pop()!)
    await vi.advanceTimersByTimeAsync(55_000)
    show(Sidebar)
    expect(words(one('deleted'))).toBe('Deleted “Who pays?” Undo')
    one('undo-delete')!.click()
    flushSync()
    expect([named('restore_conversation'), one('deleted')]).toEqual([[{ id: 1 }], null])
    choose(2, 'delete')
    await vi.advanceTimersByTimeAsync(0)
    await unmount(shown.pop()!)
    await vi.advanceTimersByTimeAsync(60_001)
    show(Sidebar)
    expect(one('deleted')).toBeNull()
  })

  it('does not say that it deleted what it could not', async () => {
    answers['delete_conversation'] = () => {
      throw 'A question is still being answered: stop it first.'
    }
    show(Sidebar)
    choose(1, 'delete')
    await settle()
    expect([one('deleted'), kept.app.notices.length]).toEqual([null, 1])
  })
})

describe('the keyboard', () => {
  it('moves in the menu; Escape closes it and focuses its button', () => {
    show(Sidebar)
    const more = row(2).querySelector<HTMLElement>('[data-testid=conversation-menu]')!
    more.click()
    flushSync()
    const focused = () => (document.activeElement as HTMLElement).dataset['testid']
    const seen = [focused()]
    for (const key of ['ArrowDown', 'ArrowUp', 'ArrowUp', 'Home', 'End', 'ArrowDown']) {
      press(document.activeElement, { key })
      seen.push(focused())
    }
    expect(seen.map((name) => name?.replace('conversation-', ''))).toEqual([
      'rename', 'pin', 'rename', 'delete', 'rename', 'delete', 'rename',
    ]) // prettier-ignore
    const escape = press(document.activeElement, { key: 'Escape' })
    expect([escape.defaultPrevented, document.activeElement, more.getAttribute('aria-expanded')]).toEqual([
      true,
      more,
      'false',
    ])
  })

  it('moves from the search through the rows', () => {
    show(Sidebar)
    const field = one('conversation-search')!
    field.focus()
    press(document.activeElement, { key: 'ArrowDown' })
    expect(document.activeElement).toBe(button(3))
    press(document.activeElement, { key: 'ArrowDown' })
    press(document.activeElement, { key: 'ArrowDown' })
    press(document.activeElement, { key: 'ArrowDown' })
    expect(document.activeElement).toBe(button(2))
    for (let i = 0; i < 3; i++) press(document.activeElement, { key: 'ArrowUp' })
    expect(document.activeElement).toBe(field)
  })
})

describe('the search', () => {
  const passage = (some: Partial<FoundPassage> = {}): FoundPassage => ({
    conversation: 2,
    turn: 7,
    pieces: [
      { text: 'on ', hit: false },
      { text: 'Thursday', hit: true },
    ],
    ...some,
  })

  it('asks a moment after the last key, and shows passages in place of the list', async () => {
    vi.useFakeTimers()
    answers['search_conversations'] = () => [passage(), passage({ turn: null }), passage({ conversation: 99 })]
    show(Sidebar)
    type('Th')
    vi.advanceTimersByTime(149)
    const field = type('Thu')
    vi.advanceTimersByTime(149)
    expect(named('search_conversations')).toEqual([])
    await vi.advanceTimersByTimeAsync(1)
    flushSync()
    expect(named('search_conversations')).toEqual([{ query: 'Thu' }])
    // The conversation 99 is not in the list.
    expect(all('found-passage').map(words)).toEqual([
      'Which day? on Thursday in the conversation',
      'Which day? on Thursday in the document',
    ])
    expect([words(one('found')?.querySelector('mark')), one('conversations')]).toEqual(['Thursday', null])
    expect(kept.app.announcement).toBe('2 passages found')

    expect(press(field, { key: 'Escape' }).defaultPrevented).toBe(true)
    expect([field.value, one('found'), composed]).toEqual(['', null, 0])
    press(field, { key: 'Escape' })
    expect([one('conversations') !== null, composed]).toEqual([true, 1])
  })

  it('never shows an older result over a newer one, nor over the list', async () => {
    vi.useFakeTimers()
    const late: ((found: FoundPassage[]) => void)[] = []
    answers['search_conversations'] = () => new Promise((resolve) => late.push(resolve))
    show(Sidebar)
    for (const query of ['a', 'ab']) {
      type(query)
      await vi.advanceTimersByTimeAsync(150)
    }
    late[1]!([])
    await vi.advanceTimersByTimeAsync(0)
    late[0]!([passage()])
    await vi.advanceTimersByTimeAsync(0)
    flushSync()
    expect([all('found-passage').length, document.body.textContent?.includes('Nothing found')]).toEqual([0, true])
    type('abc')
    await vi.advanceTimersByTimeAsync(150)
    type('')
    late[2]!([passage()])
    await vi.advanceTimersByTimeAsync(0)
    flushSync()
    expect([one('found'), one('conversations') !== null]).toEqual([null, true])
  })

  it('leads to a turn of another conversation once that is open', async () => {
    const scrolled: (string | undefined)[] = []
    const before = HTMLElement.prototype.scrollIntoView
    HTMLElement.prototype.scrollIntoView = function () {
      scrolled.push(this.dataset['turn'])
    }
    try {
      show(Conversation)
      await kept.actions.goTo(passage({ turn: 7 }))
      await settle()
      expect(named('open_conversation')).toEqual([{ id: 2 }])
      expect(scrolled).toEqual([])
      // Further up than a long conversation shows at first.
      const turns = Array.from({ length: 60 }, (_, i) => turn({ id: i + 5 }))
      kept.app.apply({ event: 'document', document: documentFacts({ id: 2 }), turns })
      kept.app.apply(list(ENTRIES, 2))
      await settle()
      expect([kept.app.selected, scrolled, kept.app.goal]).toEqual([7, ['7'], null])
      await kept.actions.goTo(passage({ turn: 9 }))
      await settle()
      expect([named('open_conversation').length, kept.app.selected, scrolled]).toEqual([1, 9, ['7', '9']])
    } finally {
      HTMLElement.prototype.scrollIntoView = before
    }
  })

  it('goes nowhere if the conversation cannot be opened', async () => {
    answers['open_conversation'] = () => {
      throw 'A question is still being answered: stop it first.'
    }
    expect([await kept.actions.goTo(passage()), kept.app.goal]).toEqual([false, null])
  })

  it('finds the passage in the document, not an earlier place with the same word', () => {
    const find = new Find()
    const text = 'The wall stands.\n\nBehind the\nwall grows a tree.'
    find.searchPassage(text, [
      { text: '…Behind the ', hit: false },
      { text: 'wall', hit: true },
      { text: ' grows a…', hit: false },
    ])
    expect([find.query, find.count, find.current?.start]).toEqual(['wall', 2, text.lastIndexOf('wall')])
    find.searchPassage(text, [{ text: 'wall', hit: true }])
    expect(find.current?.start).toBe(text.indexOf('wall'))
  })
})

describe('the window', () => {
  const TEXT = 'The wall stands.\n\nBehind the wall grows a tree.'
  let tell: (event: AppEvent) => void

  async function start(some: Partial<Snapshot>) {
    let index = 0
    const internals = () => (window as unknown as { __TAURI_INTERNALS__: { runCallback: (...all: unknown[]) => void } }).__TAURI_INTERNALS__ // prettier-ignore
    answers['subscribe'] = ({ channel }) => {
      tell = (message) => internals().runCallback((channel as { id: number }).id, { message, index: index++ })
      return null
    }
    answers['snapshot'] = () => snapshot({ conversations: ENTRIES, conversation: 1, turns: [turn()], ...some })
    answers['document_text'] = () => new TextEncoder().encode(TEXT).buffer
    const report = (kind: string, problem: unknown) => expect.fail(`${kind}: ${String(problem)}`)
    shown.push(mount(App, { target: document.body, props: { report } }))
    for (let i = 0; i < 5; i++) await settle()
  }
  const settings = (sidebar: boolean | null) => ({ ...snapshot().settings, sidebar })
  const control = async (key: string) => {
    press(document.activeElement, { key, ctrlKey: true })
    await settle()
  }

  it.each([
    [null, 3, true],
    [null, 1, false],
    [true, 0, true],
    [false, 3, false],
  ])('with the setting %s and %i conversations shows the column: %s', async (sidebar, number, there) => {
    await start({ settings: settings(sidebar), conversations: ENTRIES.slice(0, number) })
    expect(one('sidebar') !== null).toBe(there)
    expect(one('sidebar-button')?.getAttribute('aria-expanded')).toBe(String(there))
  })

  it('does not show the column by itself later', async () => {
    await start({ conversations: [ENTRIES[1]!] })
    tell(list(ENTRIES))
    await settle()
    expect(one('sidebar')).toBeNull()
  })

  it('folds and unfolds it with the button and with Ctrl + B, and remembers that', async () => {
    await start({})
    button(2).focus()
    await control('b')
    expect([one('sidebar'), document.activeElement]).toEqual([null, one('composer')])
    one('sidebar-button')!.click()
    await settle()
    expect(one('sidebar')).not.toBeNull()
    expect(named('save_settings').map((args) => (args['settings'] as Snapshot['settings']).sidebar)).toEqual([
      false,
      true,
    ])
  })

  it('opens the find bar at a found passage of another document', async () => {
    await start({})
    answers['search_conversations'] = () => [
      {
        conversation: 2,
        turn: null,
        pieces: [
          { text: '…Behind the ', hit: false },
          { text: 'wall', hit: true },
        ],
      },
    ]
    answers['open_conversation'] = () => {
      tell({ event: 'document', document: documentFacts({ id: 2, length: TEXT.length }), turns: [turn({ id: 20 })] })
      tell(list(ENTRIES, 2))
      return null
    }
    type('wall')
    await new Promise((resolve) => setTimeout(resolve, 160))
    flushSync()
    one('found-passage')!.click()
    for (let i = 0; i < 6; i++) await settle()
    expect([one<HTMLInputElement>('find')?.value, words(one('find-count'))]).toEqual(['wall', '2 of 2'])
    expect(document.activeElement).toBe(one('find'))
  })
})
