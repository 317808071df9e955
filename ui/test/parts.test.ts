import { clearMocks, mockIPC } from '@tauri-apps/api/mocks'
import { flushSync, mount, unmount, type Component } from 'svelte'
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import type { Kept } from '../src/lib/context'
import type { AppEvent, Facts, Library, Progress } from '../src/lib/contract'
import { AppState } from '../src/lib/app.svelte'
import Composer from '../src/parts/Composer.svelte'
import Conversation from '../src/parts/Conversation.svelte'
import Header from '../src/parts/Header.svelte'
import MemoryBar from '../src/parts/MemoryBar.svelte'
import Settings from '../src/parts/Settings.svelte'
import Turn from '../src/parts/Turn.svelte'
import Frame from './Frame.svelte'
import { answerFacts, memory, snapshot, turn } from './given'
import { keptOf } from './kept'

let asked: { name: string; args: Record<string, unknown> }[]
let answers: Record<string, (args: Record<string, unknown>) => unknown>
let shown: Record<string, unknown> | null = null

beforeEach(() => {
  asked = []
  answers = { ask: () => 1, save_settings: (args) => args['settings'] }
  mockIPC((name, args) => {
    asked.push({ name, args: (args ?? {}) as Record<string, unknown> })
    return answers[name]?.((args ?? {}) as Record<string, unknown>) ?? null
  })
})
afterEach(async () => {
  if (shown) await unmount(shown)
  shown = null
  clearMocks()
  document.body.replaceChildren()
})

function given(): Kept {
  const app = new AppState()
  app.load(snapshot())
  return keptOf(app)
}
function show(part: unknown, kept: Kept, props: Record<string, unknown> = {}) {
  shown = mount(Frame, { target: document.body, props: { given: kept, part: part as Component<never>, props } })
  flushSync()
}
const find = <T extends HTMLElement = HTMLElement>(testid: string) =>
  document.querySelector<T>(`[data-testid=${testid}]`)
const named = (name: string) => asked.filter((call) => call.name === name)
async function settle() {
  await new Promise((resolve) => setTimeout(resolve, 0))
  flushSync()
}

describe('the memory', () => {
  it('is automatic again with the automatic method, and with one click', async () => {
    const kept = given()
    kept.app.settings = { ...kept.app.settings, budget: '8%' }
    show(Header, kept)
    expect(find<HTMLInputElement>('budget-field')!.value).toBe('8 %')
    find('budget-reset')!.click()
    await settle()
    expect([find<HTMLInputElement>('budget-field')!.value, find('budget-reset')]).toEqual(['Automatic', null])
    const saved = () => named('save_settings').at(-1)?.args['settings']
    expect(saved()).toMatchObject({ method: 'snapkv', budget: null })
    await kept.actions.change({ budget: '8%' })
    await kept.actions.setMethod('h2o')
    expect(saved()).toMatchObject({ method: 'h2o', budget: '8%' })
    await kept.actions.setMethod('auto')
    expect(saved()).toMatchObject({ method: 'auto', budget: null })
  })
})

describe('the composer', () => {
  const type = (text: string) => {
    const area = find<HTMLTextAreaElement>('composer')!
    area.value = text
    area.dispatchEvent(new InputEvent('input', { bubbles: true }))
    flushSync()
    return area
  }
  const press = (area: HTMLElement, init: KeyboardEventInit) => {
    const event = new KeyboardEvent('keydown', { bubbles: true, cancelable: true, ...init })
    area.dispatchEvent(event)
    return event
  }

  it('asks with Enter, with the method and budget now chosen, and is empty then', async () => {
    const kept = given()
    kept.app.settings = { ...kept.app.settings, method: 'full', budget: '10%' }
    show(Composer, kept)
    const area = type('  Who pays?  ')
    expect(press(area, { key: 'Enter' }).defaultPrevented).toBe(true)
    await settle()
    expect(named('ask').map((c) => c.args)).toEqual([
      {
        question: 'Who pays?',
        choice: { method: 'full', parameters: {}, budget: '10%' },
        relation: { alone: false, again: null, edits: null },
      },
    ])
    expect(area.value).toBe('')
    expect(named('save_drafts').at(-1)?.args).toEqual({ drafts: {} })
  })

  it('makes a line with Shift+Enter, leaves a composed character alone, asks nothing of nothing', async () => {
    show(Composer, given())
    const area = type('a')
    expect(press(area, { key: 'Enter', shiftKey: true }).defaultPrevented).toBe(false)
    expect(press(area, { key: 'Enter', isComposing: true }).defaultPrevented).toBe(false)
    press(type('   '), { key: 'Enter' })
    await settle()
    expect(named('ask')).toEqual([])
    expect(find<HTMLButtonElement>('send')!.disabled).toBe(true)
  })

  it('gives the focus to the text for a press beside it, and leaves buttons alone', () => {
    show(Composer, given())
    const area = type('Who pays?')
    const down = (element: Element, button = 0) => {
      area.blur()
      const event = new MouseEvent('mousedown', { bubbles: true, cancelable: true, button })
      element.dispatchEvent(event)
      return [event.defaultPrevented, document.activeElement === area]
    }
    expect(down(area.parentElement!)).toEqual([true, true])
    expect(down(find('how-read')!)).toEqual([true, true])
    expect(down(find('send')!)).toEqual([false, false])
    expect(down(area)).toEqual([false, false])
    expect(down(area.parentElement!, 2)).toEqual([false, false])
  })

  it('keeps the question when it is refused, with the sentence above it', async () => {
    answers['ask'] = () => {
      throw 'The engine is restarting; ask again in a moment.'
    }
    show(Composer, given())
    const area = type('Who pays?')
    find('send')!.click()
    await settle()
    expect(area.value).toBe('Who pays?')
    expect(find('notice')?.textContent).toContain('The engine is restarting; ask again in a moment.')
    expect(find('notice')?.getAttribute('role')).toBe('alert')
  })

  it('says a sentence once, and a refused question comes back', async () => {
    const kept = given()
    const sentence = 'The document is too long for mini.'
    kept.app.document = { ...kept.app.document!, tooLong: sentence }
    show(Composer, kept)
    expect(find('hint')?.textContent).toBe(sentence)
    answers['ask'] = () => {
      throw sentence
    }
    const area = type('Who pays?')
    find('send')!.click()
    await settle()
    expect([find('notice')?.querySelector('p')?.textContent, find('hint')]).toEqual([sentence, null])
    // Refused by the engine itself: before and after the command's reply.
    answers['ask'] = () => {
      kept.app.apply({ event: 'turn', turn: turn({ id: 3, state: 'asked' }) })
      kept.app.apply({ event: 'turn', turn: turn({ id: 3, state: 'failed', error: 'Too long.' }) })
      return 3
    }
    find('send')!.click()
    await settle()
    expect(area.value).toBe('Who pays?')
    type('')
    kept.app.apply({ event: 'turn', turn: turn({ id: 4, state: 'asked', question: 'And who?' }) })
    kept.app.apply({ event: 'turn', turn: turn({ id: 4, state: 'failed', question: 'And who?', error: 'Too long.' }) })
    flushSync()
    expect(area.value).toBe('And who?')
  })

  it('says how far the document is read in the background', async () => {
    const kept = given()
    show(Composer, kept)
    const say = (running: boolean, tokensDone: number) => {
      const progress = {
        phase: 'reading' as const,
        tokensTotal: 1000,
        tokensPerSecond: 5,
        tokensFromVault: 0,
        secondsLeft: 130,
        tokensDone,
      }
      kept.app.apply({ event: 'readAhead', reading: { running, progress } })
      flushSync()
      return find('reading')?.textContent?.replace(/\s+/g, ' ').trim()
    }
    expect(find('reading')).toBeNull()
    expect(say(true, 340)).toBe('Reading in the background: 34 %, 2 min left Stop')
    expect(find('how-read')).toBeNull()
    find('reading-stop')!.click()
    // Within its first section nothing is stored.
    expect(say(false, 340)).toBe('Reading was stopped. Read on')
    kept.app.estimate = {
      promptTokens: 1000, rows: 100, memory: memory(), notes: [], chosen: null, tokensFromVault: 300, tokensToRepeat: 0, cache: 'f16',
    } // prettier-ignore
    expect(say(false, 340)).toBe('Reading was stopped: 30 % of the document is saved. Read on')
    // A question read on, and was stopped.
    kept.app.estimate = { ...kept.app.estimate, tokensFromVault: 600 }
    expect(say(false, 340)).toBe('Reading was stopped: 60 % of the document is saved. Read on')
    find('reading-resume')!.click()
    await settle()
    expect([named('stop_reading').length, named('resume_reading').length]).toEqual([1, 1])
    kept.app.apply({ event: 'readAhead', reading: null })
    flushSync()
    expect([find('reading'), find('how-read') !== null]).toEqual([null, true])
    // A document that takes hours waits for the user, unless the vault has it.
    kept.app.apply({ event: 'readAhead', reading: { running: false, progress: null } })
    flushSync()
    expect(find('reading')?.textContent).toContain('takes hours')
    find('reading-begin')!.click()
    await settle()
    expect(named('resume_reading').length).toBe(2)
    kept.app.estimate = { ...kept.app.estimate, tokensFromVault: 1000 }
    flushSync()
    expect(find('reading')).toBeNull()
  })

  it('says how long reading takes, once an answer has shown how fast the model reads', () => {
    const kept = given()
    show(Composer, kept)
    const how = () => {
      flushSync()
      return find('how-read')?.textContent?.trim()
    }
    const answered = (some: Parameters<typeof answerFacts>[0], model = 'mini') =>
      kept.app.apply({ event: 'turn', turn: turn({ id: kept.app.turns.length + 1, model, facts: answerFacts(some) }) })
    const plain = 'The first question reads the document. Later ones start at once.'
    expect(how()).toBe(plain)
    // Too few tokens, and another model.
    answered({ promptTokens: 2000, tokensFromVault: 1900, prefillSeconds: 1 })
    answered({ promptTokens: 2000, prefillSeconds: 1 }, 'other')
    expect(how()).toBe(plain)
    answered({ promptTokens: 2000, tokensFromVault: 1000, prefillSeconds: 4 })
    // The next document.
    kept.app.apply({ event: 'document', document: { ...kept.app.document!, id: 2, tokens: 10_000 }, turns: [] })
    expect(how()).toBe('The first question reads the document (about 40 s). Later ones start at once.')
    kept.app.settings = { ...kept.app.settings, keep: 'off' }
    expect(how()).toBe('Every question reads the document again (about 40 s): the vault is off.')
  })

  it('has the message about a model, which would cover the question elsewhere', () => {
    const kept = given()
    show(Composer, kept)
    kept.app.notify('model', 'broken.gguf is no model.')
    flushSync()
    expect(find('notice')?.querySelector('p')?.textContent).toBe('broken.gguf is no model.')
  })

  it('lets the engine that failed speak alone', () => {
    const kept = given()
    show(Composer, kept)
    kept.app.notify('conversation', 'It has been restarted.')
    kept.app.apply({ event: 'worker', worker: { state: 'failed', message: 'It was not started again.' } })
    kept.app.notify('conversation', 'The engine is not running.')
    flushSync()
    expect(find('notice')).toBeNull()
    expect(find('restart-button')?.textContent).toBe('Start again')
    kept.app.apply({ event: 'worker', worker: { state: 'ready', message: null } })
    flushSync()
    expect([find('notice'), find('worker-message')]).toEqual([null, null])
  })

  it('saves the draft once, a moment after the last key', async () => {
    vi.useFakeTimers()
    try {
      show(Composer, given())
      type('W')
      type('Wh')
      vi.advanceTimersByTime(399)
      expect(named('save_drafts')).toEqual([])
      vi.advanceTimersByTime(2)
      expect(named('save_drafts').map((c) => c.args)).toEqual([{ drafts: { 'document 1': 'Wh' } }])
    } finally {
      vi.useRealTimers()
    }
  })

  it('has Stop in the place of Ask while a question runs', () => {
    const kept = given()
    kept.app.apply({ event: 'turn', turn: turn({ state: 'reading' }) })
    show(Composer, kept)
    expect(find('send')).toBeNull()
    find('stop')!.click()
    expect(named('stop')).toHaveLength(1)
    // The button disappears: the composer has the focus.
    expect(document.activeElement).toBe(find('composer'))
  })

  it('says before a question what the built-in model cannot do, and leads to others', () => {
    const opened: string[] = []
    const kept = { ...given(), open: (view: string) => void opened.push(view) }
    show(Composer, kept)
    const said = () => find('trying')?.textContent?.replace(/\s+/g, ' ').trim()
    expect(said()).toBe('This demo model only handles simple look-ups. Get a real model')
    kept.app.document = { ...kept.app.document!, sample: false, beyondBox: true }
    flushSync()
    expect(said()).toContain('one plain sentence')
    const above = find('trying')!.compareDocumentPosition(find('composer')!)
    expect(above & Node.DOCUMENT_POSITION_FOLLOWING).toBeTruthy()
    find('trying-models')!.click()
    expect(opened).toEqual(['models'])
    const other = { id: 'm1', label: 'other', inBox: false, stretch: null }
    kept.app.models = [...kept.app.models, other]
    flushSync()
    expect(said()).toContain('one plain sentence')
    kept.app.settings = { ...kept.app.settings, model: 'm1' }
    flushSync()
    expect(said()).toBeUndefined()
    kept.app.settings = { ...kept.app.settings, model: 'mini' }
    kept.app.document = { ...kept.app.document!, sample: true, beyondBox: false }
    flushSync()
    expect(said()).toBeUndefined()
  })

  it('recommends one model, the best that answers, also one that was chosen before', () => {
    const kept = given()
    const model = {
      id: 'f1', name: 'big.gguf', title: null, architecture: null, quantisation: null, bytes: 9e8, parts: 1, parameters: null, context: 32_768,
      place: 'Kept', lies: '', reason: null, chats: true, choice: 'm1', inBox: false, removable: true,
    } // prettier-ignore
    const others = [
      { ...model, id: 'f2', name: 'base.gguf', chats: false, choice: null },
      { ...model, id: 'f3', name: 'small.gguf', bytes: 1e8, context: 131_072, choice: null },
    ]
    kept.app.library = {
      found: [...others, model], unfinished: [], troubles: [], folders: [], catalogue: [], freeMemory: 8e9, freeDisk: 9e9, offline: false,
    } // prettier-ignore
    kept.app.document = { ...kept.app.document!, sample: false, beyondBox: true }
    show(Composer, kept)
    expect(find('trying-found')?.textContent).toBe('Use big')
    // The message about a long document names the one that reads it at once.
    kept.app.document = { ...kept.app.document, tokens: 100_000, streaming: 'Too long.' }
    flushSync()
    expect(find('streaming-longer')?.textContent).toBe('Use small, which reads 131,072 tokens')
    expect([find('trying') !== null, find('trying-found'), find('trying-models')]).toEqual([true, null, null])
  })

  it('says that a question waits for the comparison', () => {
    const kept = given()
    const how = () => {
      flushSync()
      return find('how-read')?.textContent?.trim()
    }
    kept.app.estimate = {
      promptTokens: 100, rows: 100, memory: memory(), notes: [], chosen: null, tokensFromVault: 100, tokensToRepeat: 0, cache: 'f16',
    } // prettier-ignore
    show(Composer, kept)
    expect(how()).toBe('Already read: answers start soon.')
    kept.app.comparison = { state: 'running' } as Kept['app']['comparison']
    expect(how()).toBe('A question waits until the comparison is done.')
  })

  it('says what the engine does, and offers to start it again', () => {
    const kept = given()
    show(Composer, kept)
    expect(find('worker-message')).toBeNull()
    kept.app.apply({ event: 'worker', worker: { state: 'failed', message: '/x/kept-worker is missing.' } })
    flushSync()
    expect(find('worker-message')?.textContent).toContain('/x/kept-worker is missing.')
    find('restart-button')!.click()
    expect(named('restart_worker')).toHaveLength(1)
  })
})

describe('a turn', () => {
  it('shows each state', () => {
    const kept = given()
    kept.app.apply({ event: 'turn', turn: turn({ state: 'asked' }) })
    show(Conversation, kept)
    const state = () => find('turn')!.dataset['state']
    expect([state(), find('progress')?.textContent?.trim(), find('answer')]).toEqual([
      'asked',
      'Starting to read',
      null,
    ])

    kept.app.apply({ event: 'turn', turn: turn({ state: 'reading' }) })
    kept.app.apply({
      event: 'progress',
      turn: 1,
      progress: {
        phase: 'reading',
        tokensDone: 43,
        tokensTotal: 100,
        tokensPerSecond: 812,
        secondsLeft: 2.4,
        tokensFromVault: 0,
      },
      memory: memory(),
    })
    flushSync()
    expect([state(), find('progress')?.textContent?.trim()]).toEqual([
      'reading',
      'Reading 43 % · 812 tokens/s · 3 s left',
    ])

    kept.app.apply({ event: 'turn', turn: turn({ state: 'answering' }) })
    kept.app.apply({ event: 'token', turn: 1, text: 'The **lessor', attended: [] })
    kept.app.writePieces()
    flushSync()
    expect([state(), find('answer')?.textContent]).toEqual(['answering', 'The lessor\n'])

    kept.app.apply({ event: 'turn', turn: turn({ state: 'stopped', answer: 'The **lessor**' }) })
    flushSync()
    expect([state(), find('answer')?.innerHTML.trim()]).toEqual(['stopped', '<p>The <strong>lessor</strong></p>'])
    expect(document.body.textContent).toContain('Stopped.')

    kept.app.apply({ event: 'turn', turn: turn({ state: 'failed', answer: 'The', error: 'The engine was ended.' }) })
    flushSync()
    expect([state(), find('turn-error')?.textContent, find('answer')?.textContent?.trim()]).toEqual([
      'failed',
      'The engine was ended.',
      'The',
    ])
  })

  it('goes to its sources, and asks again with what is now chosen', async () => {
    const kept = given()
    const done = turn({
      id: 5,
      answer: 'Yes.',
      hasMap: true,
      sources: [{ start: 40, end: 80, page: 4, document: null, text: 'the lessor shall bear the cost', weight: 0.5, kept: 0.94 }],
      facts: answerFacts({
        finish: 'length', promptTokens: 1250, rows: 312, firstTokenSeconds: 1.42, tokensPerSecond: 61.2, turnsSeen: 2,
      }),
    }) // prettier-ignore
    kept.app.apply({ event: 'turn', turn: done })
    kept.app.settings = { ...kept.app.settings, method: 'full' }
    show(Turn, kept, { versions: kept.app.turns })
    // Only the figure does not break: the lines are as wide as the card.
    const said = find('source')
      ?.textContent.replace(/[ \n]+/g, ' ')
      .trim()
    expect(said).toBe('page 4 ·\u00a0the lessor shall bear the cost\u00a0· 94\u00a0% remembered')
    find('source')!.click()
    await settle()
    expect(kept.reader.passage).toEqual({ start: 40, end: 80 })
    expect(kept.reader.target?.offset).toBe(40)
    expect(find('facts')?.textContent).toBe(
      '1.4 s to first word · 61 tokens/s · Remembers 25 % of document, conversation and question · Saw 2 earlier questions · SnapKV',
    )
    expect(find('facts')?.title).toBe('312 of 1,250 rows per head, 16-bit')
    expect(document.body.textContent).toContain('maximum length')
    expect(find('ask-again')?.textContent).toBe('Try again with Full cache')
    find('ask-again')!.click()
    await settle()
    const asked = { question: 'Who pays?', choice: { method: 'full', parameters: {}, budget: null } }
    expect(named('ask')[0]?.args).toEqual({ ...asked, relation: { alone: false, again: 5, edits: null } })
    find('ask-alone')!.click()
    await settle()
    expect(named('ask')[1]?.args).toEqual({ ...asked, relation: { alone: true, again: 5, edits: null } })
  })

  it('leads from an earlier answer to its place on the page', () => {
    const kept = given()
    const source = (start: number) => ({
      start,
      end: start + 9,
      page: null,
      document: null,
      text: '',
      weight: 1,
      kept: 1,
    })
    const facts = answerFacts({ citations: [{ end: 4, source: 1 }] })
    const earlier = turn({ id: 1, answer: 'Yes.', hasMap: true, sources: [source(40), source(900)], facts })
    const later = turn({ id: 2, answer: 'No.', hasMap: true })
    for (const one of [earlier, later]) kept.app.apply({ event: 'turn', turn: one })
    show(Turn, kept, { versions: [kept.app.turns[0]!] })
    find('show-map')!.click()
    flushSync()
    expect([kept.app.selected, kept.reader.target?.offset]).toEqual([1, 900])
  })

  it('lists passages that read the same once, and says when the first word came at once', () => {
    const kept = given()
    const source = (text: string, page: number | null) => ({
      start: text.length,
      end: 80,
      page,
      document: null,
      text,
      weight: 0.5,
      kept: 0.9,
    })
    const sources = [
      source('the lessor', null),
      source('the  lessor', null),
      source('the lessor', 2),
      source('he', null),
    ]
    const citations = [
      { end: 4, source: 1 },
      { end: 8, source: 3 },
    ]
    const facts = answerFacts({ citations, firstTokenSeconds: 0.04 })
    kept.app.apply({ event: 'turn', turn: turn({ answer: 'Yes. No.', sources, facts }) })
    show(Turn, kept, { versions: kept.app.turns })
    const all = (id: string) => [...document.querySelectorAll<HTMLElement>(`[data-testid=${id}]`)]
    const words = all('source').map(({ textContent }) => textContent.replace(/\s+/g, ' ').trim())
    expect(words).toEqual([
      '1the lessor · 90 % remembered',
      '2page 2 · the lessor · 90 % remembered',
      '3he · 90 % remembered',
    ])
    expect(all('citation').map(({ textContent }) => textContent)).toEqual(['1', '3'])
    all('citation')[1]!.click()
    expect(find('facts')?.textContent).toMatch(/^First word at once · /)
  })

  it('shows a passage of Markdown without its marks', () => {
    const kept = given()
    kept.app.document = { ...kept.app.document!, kind: 'markdown' }
    const source = { start: 40, end: 80, page: null, document: null, text: 'the **lessor**', weight: 0.5, kept: 0.94 }
    kept.app.apply({ event: 'turn', turn: turn({ answer: 'Yes.', sources: [source], facts: answerFacts() }) })
    show(Turn, kept, { versions: kept.app.turns })
    expect(find('source')?.querySelector('bdi')?.textContent).toBe('the lessor')
  })

  it('shows a passage of a table of Markdown as its cells', () => {
    const kept = given()
    kept.app.document = { ...kept.app.document!, kind: 'markdown' }
    const text = '| **AquaNord** |  | €1,325 |'
    const source = { start: 40, end: 80, page: null, document: null, text, weight: 0.5, kept: 0.94 }
    const facts = answerFacts({ citations: [{ end: 4, source: 0 }] })
    kept.app.apply({ event: 'turn', turn: turn({ answer: 'Yes.', sources: [source], facts }) })
    show(Turn, kept, { versions: kept.app.turns })
    const cells = 'AquaNord · €1,325'
    expect([find('source')?.querySelector('bdi')?.textContent, find('citation')?.title]).toEqual([cells, cells])
  })

  it('is copied with its passages whenever there are some', () => {
    const kept = given()
    const source = { start: 40, end: 80, page: null, document: null, text: 'the lessor', weight: 0.5, kept: 0.94 }
    kept.app.apply({ event: 'turn', turn: turn({ answer: 'Yes.', sources: [source], facts: answerFacts() }) })
    show(Turn, kept, { versions: kept.app.turns })
    expect(find('copy-sources')?.textContent).toBe('Copy with sources')
    kept.app.apply({ event: 'turn', turn: turn({ answer: 'Yes.', facts: answerFacts() }) })
    flushSync()
    expect(find('copy-sources')).toBeNull()
  })

  it('says how many passages there are, and folds them', () => {
    const kept = given()
    const source = { start: 40, end: 80, page: null, document: null, text: 'the lessor', weight: 0.5, kept: 0.94 }
    const sources = Array.from({ length: 6 }, (_, i) => ({ ...source, text: `the lessor ${i}` }))
    kept.app.apply({ event: 'turn', turn: turn({ answer: 'Yes.', sources, facts: answerFacts() }) })
    show(Turn, kept, { versions: kept.app.turns })
    const passages = () => [document.querySelectorAll('[data-testid=source]').length, find('fold-sources')?.textContent]
    expect(passages()).toEqual([4, 'Show all 6 passages'])
    expect(find('sources-order')?.textContent).toBe('The passages that the answer used:')
    find('fold-sources')!.click()
    flushSync()
    expect(passages()).toEqual([6, 'Show fewer passages'])
    kept.app.apply({ event: 'turn', turn: turn({ answer: 'Yes.', sources: sources.slice(2), facts: answerFacts() }) })
    flushSync()
    expect(passages()).toEqual([4, undefined])
    kept.app.apply({ event: 'turn', turn: turn({ answer: 'Yes.', sources: [source], facts: answerFacts() }) })
    flushSync()
    expect(find('sources-order')?.textContent.trim()).toBe('The passage that the answer used:')
    expect(find('no-source')).toBeNull()
    const without = (finish: 'end' | 'length') =>
      turn({
        answer: 'Yes.',
        sources: [],
        hasMap: true,
        facts: answerFacts({ finish, doubt: finish === 'end' ? 'unseen' : null }),
      })
    kept.app.apply({ event: 'turn', turn: without('length') })
    flushSync()
    expect(find('no-source')?.textContent).toContain('No passage of the document stands out')
    // The doubt says the same.
    kept.app.apply({ event: 'turn', turn: without('end') })
    flushSync()
    expect([find('no-source'), find('doubt') !== null]).toEqual([null, true])
  })

  it('answers again at more length if it was cut off', async () => {
    const kept = given()
    const facts = answerFacts({ finish: 'length', answerTokens: 512 })
    kept.app.apply({ event: 'turn', turn: turn({ id: 5, answer: 'Yes, and', budget: '10%', facts }) })
    show(Turn, kept, { versions: kept.app.turns })
    expect(find('ask-longer')?.textContent).toBe('Answer again with up to 1,024 tokens')
    find('ask-longer')!.click()
    await settle()
    expect(named('save_settings')[0]?.args['settings']).toMatchObject({ maxTokens: 1024 })
    expect(named('ask')[0]?.args).toMatchObject({
      choice: { method: 'snapkv', parameters: {}, budget: '10%' },
      relation: { alone: false, again: 5, edits: null },
    })
    // Longer answers were allowed since: nothing is set.
    kept.app.settings = { ...kept.app.settings, maxTokens: 4096 }
    flushSync()
    expect(find('ask-longer')?.textContent).toBe('Answer again with up to 4,096 tokens')
    find('ask-longer')!.click()
    await settle()
    expect([named('save_settings').length, named('ask').length]).toEqual([1, 2])
    for (const ended of [{ finish: 'end' as const }, { finish: 'length' as const, answerTokens: 32768 }]) {
      kept.app.apply({ event: 'turn', turn: turn({ id: 5, answer: 'Yes.', facts: answerFacts(ended) }) })
      flushSync()
      expect(find('ask-longer')).toBeNull()
    }
  })

  it('does not repeat the notes of the answer above', () => {
    const kept = given()
    const notes = () => {
      flushSync()
      return [...document.querySelectorAll('[data-testid=turn]')].map((card) =>
        [...card.querySelectorAll('.ended')].map((note) => note.textContent?.trim()),
      )
    }
    const tell = (id: number, notes: string[], some = {}) =>
      kept.app.apply({ event: 'turn', turn: turn({ id, answer: 'Yes.', facts: answerFacts({ notes }), ...some }) })
    show(Conversation, kept)
    tell(1, ['A.', 'B.'])
    tell(2, ['A.', 'C.'])
    tell(3, ['A.', 'B.'], { answer: '' })
    tell(4, ['A.'])
    expect(notes()).toEqual([['A.', 'B.'], ['C.'], ['A.', 'B.'], []])
    // Another version of the first question: that one is shown.
    tell(5, ['C.'], { versionOf: 1 })
    expect(notes().slice(0, 2)).toEqual([['C.'], ['A.']])
    kept.app.selected = 1
    expect(notes().slice(0, 2)).toEqual([['A.', 'B.'], ['C.']])
  })

  it('names its model where there is more than one', () => {
    const kept = given()
    const tell = (id: number, model: string) =>
      kept.app.apply({ event: 'turn', turn: turn({ id, model, answer: 'Yes.', facts: answerFacts() }) })
    const models = () => {
      flushSync()
      const facts = [...document.querySelectorAll('[data-testid=facts]')]
      return facts.map(({ textContent }) => /SnapKV(?: · (.+))?$/.exec(textContent)?.[1])
    }
    show(Conversation, kept)
    tell(1, 'mini')
    tell(2, 'mini')
    expect(models()).toEqual([undefined, undefined])
    tell(2, 'large')
    expect(models()).toEqual(['mini', 'large'])
    tell(1, 'large')
    // Another one is chosen now.
    expect(models()).toEqual(['large', 'large'])
    kept.app.models = [{ ...kept.app.models[0]!, label: 'large' }]
    expect(models()).toEqual([undefined, undefined])
  })

  it('has nothing about a text in a chat without a document', () => {
    const kept = given()
    kept.app.document = { ...kept.app.document!, length: 0 }
    kept.app.apply({ event: 'turn', turn: turn({ answer: 'Good morning.', facts: answerFacts() }) })
    show(Conversation, kept)
    expect(find('facts')?.textContent).toBe('1.0 s to first word · 60 tokens/s · SnapKV')
    expect([find('compare'), find('copy') !== null]).toEqual([null, true])
    // Automatic kept everything: the budget is not of it.
    const chosen = { method: 'full', reason: 'It fits.' } as NonNullable<Facts['chosen']>
    const whole = answerFacts({ rows: 100, chosen })
    kept.app.apply({
      event: 'turn',
      turn: turn({ answer: 'Good morning.', method: 'auto', budget: '8%', facts: whole }),
    })
    flushSync()
    expect(find('facts')?.textContent).toMatch(/ · Full cache, chosen automatically$/)
  })

  it('folds a long question', () => {
    const kept = given()
    const question = 'x'.repeat(599) + '😀' + 'y'.repeat(100_000)
    kept.app.apply({ event: 'turn', turn: turn({ question }) })
    show(Conversation, kept)
    expect(find('question')?.textContent).toBe('x'.repeat(599) + ' …')
    find('fold')!.click()
    flushSync()
    expect(find('question')?.textContent).toBe(question)
    kept.app.apply({ event: 'turn', turn: turn({ question: 'a\n'.repeat(40) }) })
    find('fold')!.click()
    flushSync()
    expect(find('question')?.textContent?.split('\n')).toHaveLength(12)
  })

  it('says when the engine has not answered for long', () => {
    vi.useFakeTimers()
    try {
      const kept = given()
      kept.app.apply({ event: 'turn', turn: turn({ state: 'reading' }) })
      show(Conversation, kept)
      const words = () => {
        flushSync()
        return find('progress')?.textContent?.trim()
      }
      vi.advanceTimersByTime(7500)
      expect(words()).toBe('Starting to read')
      vi.advanceTimersByTime(4500)
      expect(words()).toBe('The engine has not answered for 12 s.')
      kept.app.apply({ event: 'map', turn: 1, layersDone: 1, layers: 4 })
      vi.advanceTimersByTime(1000)
      expect(words()).toBe('Starting to read')
      // The question waits for the section that is being read.
      const progress = { tokensDone: 4, tokensTotal: 10, tokensPerSecond: 9, secondsLeft: 3 } as Progress
      for (let second = 0; second < 20; second += 5) {
        vi.advanceTimersByTime(5000)
        kept.app.apply({ event: 'readAhead', reading: { running: true, progress } })
      }
      vi.advanceTimersByTime(1000)
      expect(words()).toMatch(/^Reading 40 %/)
    } finally {
      vi.useRealTimers()
    }
  })

  it('survives long names, right-to-left text and a long answer', () => {
    const kept = given()
    kept.app.apply({ event: 'turn', turn: turn({ question: 'מי משלם?'.repeat(40), answer: 'word '.repeat(1000) }) })
    show(Conversation, kept)
    expect(find('answer')?.textContent?.length).toBeGreaterThan(4900)
    expect(find('question')?.getAttribute('dir')).toBe('auto')
  })

  it('offers the first questions in an empty conversation; one click asks', async () => {
    show(Conversation, given())
    find('suggestion')!.click()
    await settle()
    expect(named('ask')[0]?.args['question']).toBe('Who pays?')
  })
})

describe('the memory bar', () => {
  it('shows the estimate as about, the running question as it is', () => {
    const kept = given()
    kept.app.estimate = {
      promptTokens: 100,
      rows: 25,
      memory: memory({ kept: 2048, keptFull: 8192 }),
      notes: [],
      chosen: null,
      tokensFromVault: 0,
      tokensToRepeat: 0,
      cache: 'f16',
    }
    show(MemoryBar, kept)
    expect(find('memory-bar')?.dataset['phase']).toBe('estimate')
    expect(find('memory-kept')?.textContent?.replace(/\s+/g, ' ')).toBe('Kept about 2.0 KiB of 8.0 KiB, 16-bit')
    const widths = [...document.querySelectorAll<HTMLElement>('[data-segment]')].map((s) => parseFloat(s.style.width))
    expect(widths.reduce((a, b) => a + b)).toBeCloseTo(100)
    kept.app.apply({ event: 'turn', turn: turn({ state: 'reading' }) })
    const step = (kept: number): AppEvent => ({
      event: 'progress',
      turn: 1,
      progress: {
        phase: 'reading',
        tokensDone: 1,
        tokensTotal: 2,
        tokensPerSecond: 1,
        secondsLeft: 1,
        tokensFromVault: 0,
      },
      memory: memory({ kept, keptFull: 8192 }),
    })
    // No layer yet: nothing is kept or saved, and the bar does not jump.
    kept.app.apply(step(0))
    flushSync()
    expect(find('memory-bar')?.dataset['phase']).toBe('estimate')
    expect(find('memory-saved')?.textContent).toContain('Saved 6.0 KiB')
    kept.app.apply({ event: 'map', turn: 1, layersDone: 2, layers: 4 })
    kept.app.apply(step(1024))
    flushSync()
    expect(find('memory-bar')?.dataset['phase']).toBe('live')
    // Of the half read so far.
    expect(find('memory-saved')?.textContent).toContain('Saved 3.0 KiB')
    expect(find('memory-kept')?.textContent?.replace(/\s+/g, ' ')).toBe('Kept 1.0 KiB of 8.0 KiB, 16-bit')
    expect(find('memory-free')?.textContent).toMatch(/Free 9\.8 KiB.of 19\.5 KiB/)
  })
})

describe('the estimate', () => {
  it('is asked again when an engine that was just restarted refuses, and then believed', async () => {
    vi.useFakeTimers()
    try {
      const kept = given()
      let refusals = 2
      answers['estimate'] = () => {
        if (refusals-- > 0) throw 'No document is open.'
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
      kept.actions.estimateSoon(kept.app.choice)
      await vi.advanceTimersByTimeAsync(3000)
      expect([kept.app.estimate?.rows, kept.app.estimateError]).toEqual([25, null])
      // Long after the restart the refusal is shown at once.
      await vi.advanceTimersByTimeAsync(10_000)
      const before = named('estimate').length
      refusals = 100
      kept.actions.estimateSoon({ ...kept.app.choice, budget: 'ten' })
      await vi.advanceTimersByTimeAsync(5000)
      expect([kept.app.estimate, kept.app.estimateError]).toEqual([
        null,
        { message: 'No document is open.', code: null },
      ])
      expect(named('estimate').length).toBe(before + 1)
    } finally {
      vi.useRealTimers()
    }
  })

  it('outlives a restart of the engine with the same model', () => {
    const kept = given()
    kept.app.estimate = {
      promptTokens: 100,
      rows: 25,
      memory: memory(),
      notes: [],
      chosen: null,
      tokensFromVault: 0,
      tokensToRepeat: 0,
      cache: 'f16',
    }
    const model = kept.app.model!
    kept.app.apply({ event: 'model', model: null, error: null })
    kept.app.apply({ event: 'model', model, error: null })
    expect(kept.app.estimate?.rows).toBe(25)
    kept.app.apply({ event: 'model', model: { ...model, file: 'other.gguf' }, error: null })
    expect(kept.app.estimate).toBeNull()
  })
})

describe('the header', () => {
  it('says by the field why a budget cannot be had, until another is chosen', () => {
    const kept = given()
    kept.app.settings = { ...kept.app.settings, budget: '1KiB' }
    kept.app.estimateError = { message: 'A budget of 1 KiB is less than one row.', code: null }
    show(Header, kept)
    expect(find('budget-error')?.textContent).toBe('A budget of 1 KiB is less than one row.')
    expect(find('budget-field')?.getAttribute('aria-invalid')).toBe('true')
    expect(find<HTMLInputElement>('budget')?.value).toBe('1')
    kept.app.document = { ...kept.app.document!, tooLong: 'Too long.' }
    flushSync()
    expect(find('budget-error')).toBeNull()
    kept.app.document = { ...kept.app.document!, tooLong: null }
    kept.app.estimateError = null
    flushSync()
    expect([find('budget-error'), find('budget-field')?.getAttribute('aria-invalid')]).toEqual([null, 'false'])
  })

  it('lists models by their names, with size and place where they are known', () => {
    const kept = given()
    const choice = { id: 'm1', label: 'tiny-q4_k_m.gguf', inBox: false, stretch: 'yarn:2' }
    kept.app.models = [...kept.app.models, choice, { ...choice, id: 'm2', label: 'gone.gguf', stretch: null }]
    kept.app.settings = { ...kept.app.settings, model: 'm1' }
    kept.app.library = { found: [{ name: 'tiny-q4_k_m.gguf', bytes: 2 ** 20, place: 'Kept', choice: 'm1' }] } as Library
    show(Header, kept)
    expect(find('model-menu')?.textContent).toContain('tiny-q4_k_m Q8_0')
    find('model-menu')!.click()
    flushSync()
    const options = [...document.querySelectorAll('[data-testid=model-menu-option]')]
    expect(options.map(({ textContent }) => textContent.replace(/\s+/g, ' ').trim())).toEqual([
      'mini Built-in demo model: very small, only for simple look-ups.',
      'tiny-q4_k_m1.0 MiB · Q8_0 · 6 layers On this computer: Kept · Context extended: yarn:2',
      'gone',
    ])
  })

  it('goes to the method whose name is typed', () => {
    const kept = given()
    show(Header, kept)
    find('method-menu')!.click()
    flushSync()
    const key = (letter: string) => {
      const event = new KeyboardEvent('keydown', { key: letter, bubbles: true, cancelable: true })
      document.activeElement!.dispatchEvent(event)
      return event.defaultPrevented
    }
    const titles = kept.app.methods.map(({ title }) => title)
    const wanted = titles.at(-1)!
    expect([...wanted.slice(0, 3)].every(key)).toBe(true)
    expect(document.activeElement?.textContent).toContain(wanted)
    expect(key(' ')).toBe(true)
  })

  it('saves a method that is chosen, and takes it back with a sentence if it is refused', async () => {
    const kept = given()
    show(Header, kept)
    find('method-menu')!.click()
    flushSync()
    document.querySelector<HTMLElement>('[data-testid=method-menu-option][data-value=full]')!.click()
    await settle()
    expect(named('save_settings')[0]?.args['settings']).toMatchObject({ method: 'full' })
    expect(kept.app.settings.method).toBe('full')
    answers['save_settings'] = () => {
      throw '"ten" is not a budget.'
    }
    kept.app.settings = { ...kept.app.settings, method: 'snapkv' }
    flushSync()
    const field = find<HTMLInputElement>('budget-field')!
    field.value = 'ten'
    field.dispatchEvent(new InputEvent('input', { bubbles: true }))
    field.dispatchEvent(new Event('change', { bubbles: true }))
    await settle()
    expect(kept.app.settings.budget).toBeNull()
    expect(find('notice')?.textContent).toContain('"ten" is not a budget.')
  })
})

describe('the settings', () => {
  it('refuse a length that is none in words, and show what holds', async () => {
    show(Settings, given(), { close: () => {} })
    const field = find<HTMLInputElement>('settings-length')!
    for (const typed of ['-1', '1.5', '', '32769']) {
      field.value = typed
      field.dispatchEvent(new Event('change', { bubbles: true }))
      await settle()
      expect(find('notice')?.textContent).toContain('a whole number of tokens from 1 to 32,768')
      expect(field.value).toBe('256')
    }
    expect(named('save_settings')).toEqual([])
    field.value = '100'
    field.dispatchEvent(new Event('change', { bubbles: true }))
    await settle()
    expect(named('save_settings')[0]?.args['settings']).toMatchObject({ maxTokens: 100 })
    expect(find('notice')).toBeNull()
  })

  it('close the document, and say that its conversation stays', async () => {
    const kept = given()
    kept.app.apply({ event: 'turn', turn: turn() })
    kept.app.conversation = 1
    show(Settings, kept, { close: () => {} })
    expect(document.body.textContent).toContain('Its conversation stays in the list.')
    find('close-document')!.click()
    await settle()
    expect(named('close_document')).toHaveLength(1)
    expect([kept.app.document, kept.app.conversation]).toEqual([null, null])
  })
})
