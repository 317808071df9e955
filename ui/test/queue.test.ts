/** Questions that wait, versions of a question, edited questions and branches, long pasted texts. */
import { clearMocks, mockIPC } from '@tauri-apps/api/mocks'
import { flushSync, mount, unmount, type Component } from 'svelte'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import type { Kept } from '../src/lib/context'
import type { Turn as TurnFacts } from '../src/lib/contract'
import { AppState } from '../src/lib/app.svelte'
import { cardsOf, labelsOf, newestOf } from '../src/lib/versions'
import Composer from '../src/parts/Composer.svelte'
import Conversation from '../src/parts/Conversation.svelte'
import Footer from '../src/parts/Footer.svelte'
import Frame from './Frame.svelte'
import { answerFacts, documentFacts, snapshot, turn } from './given'
import { keptOf } from './kept'

let asked: { name: string; args: Record<string, unknown> }[]
let answers: Record<string, (args: Record<string, unknown>) => unknown>
let shown: Record<string, unknown>[] = []
let kept: Kept
let composed: number

beforeEach(() => {
  asked = []
  answers = { ask: () => 99, save_settings: (args) => args['settings'] }
  mockIPC((name, args) => {
    asked.push({ name, args: (args ?? {}) as Record<string, unknown> })
    return answers[name]?.((args ?? {}) as Record<string, unknown>) ?? null
  })
  const app = new AppState()
  app.load(snapshot())
  composed = 0
  kept = keptOf(app, { compose: () => composed++ })
})
afterEach(async () => {
  for (const one of shown) await unmount(one)
  shown = []
  clearMocks()
  document.body.replaceChildren()
})

function show(part: unknown) {
  shown.push(mount(Frame, { target: document.body, props: { given: kept, part: part as Component<never>, props: {} } }))
  flushSync()
}
const all = (id: string) => [...document.querySelectorAll<HTMLElement>(`[data-testid=${id}]`)]
const one = <T extends HTMLElement = HTMLElement>(id: string) => document.querySelector<T>(`[data-testid=${id}]`)
const words = (element: Element | null | undefined) => element?.textContent?.replace(/\s+/g, ' ').trim()
const named = (name: string) => asked.filter((call) => call.name === name).map((call) => call.args)
const box = () => one<HTMLTextAreaElement>('composer')!
function tell(some: Partial<TurnFacts>) {
  kept.app.apply({ event: 'turn', turn: turn(some) })
  flushSync()
}
function type(text: string) {
  box().value = text
  box().dispatchEvent(new InputEvent('input', { bubbles: true }))
  flushSync()
}
function press(target: Element, key: string) {
  const event = new KeyboardEvent('keydown', { key, bubbles: true, cancelable: true })
  target.dispatchEvent(event)
  flushSync()
  return event
}
async function settle() {
  await new Promise((resolve) => setTimeout(resolve, 0))
  flushSync()
}
const relation = (some: object) => ({ alone: false, again: null, edits: null, ...some })

describe('while a question runs', () => {
  it('has its text back if it is removed before the program has said that it took it', async () => {
    answers['ask'] = () => {
      kept.app.apply({ event: 'turn', turn: turn({ id: 99, question: 'Whose code?', state: 'waiting' }) })
      kept.app.apply({ event: 'turnRemoved', turn: 99 })
      return 99
    }
    show(Composer)
    type('Whose code?')
    press(box(), 'Enter')
    await settle()
    expect(named('ask')).toHaveLength(1)
    expect(box().value).toBe('Whose code?')
  })

  beforeEach(() => tell({ id: 1, state: 'reading', hasMap: true }))

  it('the next one can be asked, with Stop beside it', async () => {
    show(Composer)
    expect([one('send'), words(one('stop'))]).toEqual([null, 'Stop'])
    type('And who not?')
    expect([words(one('send')), words(one('stop'))]).toEqual(['Ask next', 'Stop'])
    answers['ask'] = () => {
      tell({ id: 2, state: 'waiting', question: 'And who not?' })
      return 2
    }
    press(box(), 'Enter')
    await settle()
    expect(named('ask')).toMatchObject([{ question: 'And who not?', relation: relation({}) }])
    expect([box().value, one('send'), words(one('stop'))]).toEqual(['', null, 'Stop'])
  })

  it('a waiting one is a card of its own, which does not touch the map until it starts', () => {
    show(Conversation)
    tell({ id: 2, state: 'waiting', question: 'And who not?' })
    expect(all('turn').map((card) => card.dataset['state'])).toEqual(['reading', 'waiting'])
    expect(words(one('waits'))).toBe('Waits for the question above. Remove')
    expect([one('ask-again'), one('copy'), one('edit-question'), all('progress').length]).toEqual([null, null, null, 1])
    expect([kept.app.running?.id, kept.app.selected, kept.app.busy]).toEqual([1, 1, true])
    expect(kept.app.announcement).toBe('The question waits')
    tell({ id: 1, state: 'done', hasMap: true, answer: 'The lessor.' })
    tell({ id: 2, state: 'asked', question: 'And who not?' })
    expect([kept.app.running?.id, kept.app.selected, one('waits')]).toEqual([2, 2, null])
  })

  it('a waiting one is removed, and its text is in the composer again if that is empty', async () => {
    show(Conversation)
    tell({ id: 2, state: 'waiting', question: 'Two?' })
    tell({ id: 3, state: 'waiting', question: 'Three?' })
    answers['remove_waiting'] = (args) => {
      kept.actions.take({ event: 'turnRemoved', turn: Number(args['turn']) })
      return null
    }
    all('waiting-remove')[1]!.click()
    await settle()
    expect([named('remove_waiting'), box().value, composed]).toEqual([[{ turn: 3 }], 'Three?', 1])
    all('waiting-remove')[0]!.click()
    await settle()
    expect([box().value, kept.app.turns.map(({ id }) => id), kept.app.waiting]).toEqual(['Three?', [1], false])
    kept.app.apply({ event: 'turnRemoved', turn: 77 })
    expect(kept.app.turns).toHaveLength(1)
  })

  it('one that has started meanwhile stays, and the refusal is shown', async () => {
    show(Conversation)
    tell({ id: 2, state: 'waiting' })
    answers['remove_waiting'] = () => {
      throw 'This question no longer waits: it was asked.'
    }
    one('waiting-remove')!.click()
    await settle()
    expect([words(one('notice')?.querySelector('p')), all('turn').length]).toEqual([
      'This question no longer waits: it was asked.',
      2,
    ])
  })
})

describe('waiting questions', () => {
  it('wait for the engine or a comparison, and can be stopped', async () => {
    show(Conversation)
    tell({ id: 1, state: 'waiting' })
    expect(words(one('waits'))).toContain('Waits for the engine.')
    // There is no other map to show.
    expect(kept.app.selected).toBe(1)
    show(Footer)
    expect(words(one('kept-share'))).toBe('No map yet: this question waits.')
    kept.app.comparison = { ...({} as NonNullable<AppState['comparison']>), state: 'running', runs: [] }
    flushSync()
    expect(words(one('waits'))).toContain('Waits for the comparison.')
    kept.actions.stop()
    one('stop')!.click()
    await settle()
    expect(named('stop')).toHaveLength(2)
    tell({ id: 1, state: 'stopped' })
    expect([words(one('turn')?.querySelector('.ended')), one('stop')]).toEqual(['Stopped.', null])
  })

  it('that can no longer be asked come back to an empty composer', () => {
    show(Conversation)
    tell({ id: 1, state: 'waiting', question: 'One?' })
    tell({ id: 2, state: 'waiting', question: 'Two?' })
    tell({ id: 1, state: 'failed', question: 'One?', error: 'The model could not be opened.' })
    tell({ id: 2, state: 'failed', question: 'Two?', error: 'The model could not be opened.' })
    expect(box().value).toBe('One?')
    expect(all('turn-error')).toHaveLength(2)
  })

  it('are not what a loaded conversation shows first', () => {
    const app = new AppState()
    app.load(snapshot({ turns: [turn({ id: 1, state: 'reading' }), turn({ id: 2, state: 'waiting' })] }))
    expect([app.selected, app.running?.id]).toEqual([1, 1])
    expect(newestOf([turn({ id: 3, state: 'waiting' })])?.id).toBe(3)
    expect(newestOf([])).toBeNull()
  })
})

describe('versions', () => {
  const versions = [
    turn({ id: 1, question: 'One?', answer: 'Old.', budget: '25%', hasMap: true }),
    turn({ id: 2, question: 'Two?', answer: 'Other.', hasMap: true }),
    turn({ id: 3, question: 'One?', answer: 'New.', method: 'full', hasMap: true, versionOf: 1 }),
  ]
  const state = () => all('version').map((tab) => [words(tab), tab.getAttribute('aria-selected')])
  const given = (turns = versions) => {
    kept.app.apply({ event: 'document', document: documentFacts(), turns: structuredClone(turns) })
    flushSync()
  }

  it('are one card in the place of the first, labelled with how they were made', () => {
    expect(cardsOf(versions).map(({ first, versions }) => [first, versions.map(({ id }) => id)])).toEqual([
      [1, [1, 3]],
      [2, [2]],
    ])
    const { methods } = snapshot()
    expect(labelsOf(versions, methods)).toEqual(['SnapKV, 25 %', 'SnapKV', 'Full cache'])
    expect(labelsOf([turn(), turn({ model: 'other' })], methods)).toEqual(['SnapKV, mini', 'SnapKV, other'])
    expect(labelsOf([turn(), turn(), turn()], methods)).toEqual(['SnapKV', 'SnapKV (2)', 'SnapKV (3)'])
    const after = (turnsSeen: number) => turn({ facts: answerFacts({ turnsSeen }) })
    expect(labelsOf([after(1), after(0)], methods)).toEqual(['SnapKV', 'SnapKV, without earlier questions'])
    expect(labelsOf([after(0), after(0)], methods)).toEqual(['SnapKV', 'SnapKV (2)'])
  })

  it('have tabs if there are several; a click shows one with its map', () => {
    show(Conversation)
    given([versions[0]!])
    expect([all('versions').length, all('version').length]).toEqual([0, 0])
    given()
    expect([all('turn').length, all('versions').length]).toEqual([2, 1])
    expect(state()).toEqual([
      ['SnapKV, 25 %', 'false'],
      ['Full cache', 'true'],
    ])
    expect([one('versions')?.getAttribute('role'), one('version')?.getAttribute('role')]).toEqual(['tablist', 'tab'])
    expect(one('versions')?.title).toContain('the newest version')
    expect(words(one('answer'))).toBe('New.')
    one('version')!.click()
    flushSync()
    expect([words(one('answer')), kept.app.selected, one('turn')?.dataset['turn']]).toEqual(['Old.', 1, '1'])
    // It stays when the map of another question is selected.
    one('version')!.click()
    all('turn')[1]!.click()
    flushSync()
    expect([words(one('answer')), kept.app.selected]).toEqual(['Old.', 2])
    // Also when the same version is chosen again.
    one('version')!.click()
    flushSync()
    expect(kept.app.selected).toBe(1)
  })

  it('are chosen with the arrow keys, Home and End', () => {
    show(Conversation)
    given()
    const tabs = all('version')
    tabs[1]!.focus()
    const seen = ['ArrowLeft', 'ArrowLeft', 'ArrowRight', 'ArrowRight', 'Home', 'End'].map((key) => {
      expect(press(document.activeElement!, key).defaultPrevented).toBe(true)
      return [tabs.indexOf(document.activeElement as HTMLElement), kept.app.selected]
    })
    expect(seen).toEqual([
      [0, 1],
      [1, 3],
      [0, 1],
      [1, 3],
      [0, 1],
      [1, 3],
    ])
    expect(tabs.map((tab) => tab.tabIndex)).toEqual([-1, 0])
    expect(press(tabs[1]!, 'n').defaultPrevented).toBe(false)
  })

  it('are asked with the first or any other version, and the new one shows at once', async () => {
    show(Conversation)
    given()
    one('version')!.click()
    flushSync()
    answers['ask'] = () => {
      tell({ id: 4, question: 'One?', state: 'asked', versionOf: 1 })
      return 4
    }
    one('ask-again')!.click()
    await settle()
    expect(named('ask')).toMatchObject([{ question: 'One?', relation: relation({ again: 1 }) }])
    expect(state().map(([, selected]) => selected)).toEqual(['false', 'false', 'true'])
    expect([all('turn').length, one('turn')?.dataset['state'], kept.app.selected, composed]).toEqual([2, 'asked', 4, 1])
  })

  it('begin again in the place of one without a word, without its map', () => {
    show(Conversation)
    for (const state of ['failed', 'stopped'] as const) {
      given([turn({ id: 1, question: 'One?', state }), versions[1]!])
      kept.app.apply({ event: 'map', turn: 1, layersDone: 1, layers: 6 })
      tell({ id: 1, question: 'One?', state: 'asked', method: 'full' })
      expect([kept.app.selected, kept.app.mapped, all('turn').map((card) => card.dataset['state'])]).toEqual([
        1,
        null,
        ['asked', 'done'],
      ])
    }
  })

  it('wait in their card, without the map, and leave it again', async () => {
    show(Conversation)
    given()
    tell({ id: 5, state: 'reading' })
    tell({ id: 6, question: 'One?', state: 'waiting', versionOf: 1 })
    expect([one('turn')?.dataset['state'], words(one('waits'))]).toEqual([
      'waiting',
      'Waits for the question that runs. Remove',
    ])
    expect(kept.app.selected).toBe(5)
    all('version').at(-1)!.click()
    kept.app.apply({ event: 'turnRemoved', turn: 6 })
    flushSync()
    // Its question is still there: the composer stays empty.
    expect([words(one('answer')), kept.app.selected, box().value]).toEqual(['New.', 3, ''])
  })

  it('are counted as one question by the earlier ones', () => {
    show(Conversation)
    const many = Array.from({ length: 45 }, (_, i) => turn({ id: i + 1 }))
    given([...many, ...many.map(({ id }) => turn({ id: id + 100, versionOf: id }))])
    expect([words(one('earlier')), all('turn').length]).toEqual(['Show 5 earlier of 5', 40])
  })

  it('show when a passage was found in them', async () => {
    show(Conversation)
    given()
    kept.app.conversation = 7
    await kept.actions.goTo({ conversation: 7, turn: 1, pieces: [] })
    await settle()
    expect([words(one('answer')), kept.app.selected, kept.app.goal]).toEqual(['Old.', 1, null])
  })
})

describe('editing a question', () => {
  const edit = (index = 0) => {
    all('edit-question')[index]!.click()
    flushSync()
  }
  beforeEach(() => {
    tell({ id: 1, question: 'One?', answer: 'Yes.' })
    tell({ id: 2, question: 'Two?', answer: 'No.' })
    show(Conversation)
  })

  it('puts it into the composer; Cancel and Escape bring the draft back', async () => {
    type('A draft')
    edit()
    expect([box().value, composed]).toEqual(['One?', 1])
    expect(words(one('editing'))).toBe('Your edited question begins a branch: this conversation stays as it is. Cancel')
    expect(box().getAttribute('aria-describedby')).toBe(one('editing')!.id)
    type('One and a half?')
    // Another one is edited instead: the draft is still that from before.
    edit(1)
    expect(box().value).toBe('Two?')
    one('edit-cancel')!.click()
    flushSync()
    expect([box().value, one('editing'), document.activeElement]).toEqual(['A draft', null, box()])
    edit()
    expect(press(box(), 'Escape').defaultPrevented).toBe(true)
    expect([box().value, one('editing')]).toEqual(['A draft', null])
    expect(press(box(), 'Escape').defaultPrevented).toBe(false)
  })

  it('asks in a branch, and the draft from before is there again', async () => {
    type('A draft')
    edit(1)
    type('Two, please?')
    answers['ask'] = () => {
      kept.actions.take({
        event: 'document',
        document: documentFacts(),
        turns: [turn({ id: 3, question: 'One?', answer: 'Yes.' })],
      })
      tell({ id: 4, question: 'Two, please?', state: 'asked' })
      return 4
    }
    press(box(), 'Enter')
    await settle()
    expect(named('ask')).toMatchObject([{ question: 'Two, please?', relation: relation({ edits: 2 }) }])
    expect(all('question').map(words)).toEqual(['One?', 'Two, please?'])
    expect([box().value, one('editing')]).toEqual(['A draft', null])
    expect(named('save_drafts')).toContainEqual({ drafts: { 'document 1': 'A draft' } })
  })

  it('keeps the text when it is refused', async () => {
    edit()
    type('Other?')
    answers['ask'] = () => {
      throw 'A question is still being answered.'
    }
    one('send')!.click()
    await settle()
    expect([box().value, one('editing') !== null, one('notice') !== null]).toEqual(['Other?', true, true])
  })

  it('ends with its conversation', () => {
    type('A draft')
    edit()
    kept.app.apply({ event: 'document', document: documentFacts({ tokens: 5 }), turns: kept.app.turns })
    flushSync()
    expect(box().value).toBe('One?')
    kept.app.apply({ event: 'document', document: documentFacts({ id: 2 }), turns: [] })
    flushSync()
    expect([box().value, one('editing')]).toEqual(['A draft', null])
  })

  it('is not offered, nor a branch, while something runs or waits', () => {
    const disabled = () => ['edit-question', 'branch', 'ask-again'].map((id) => one<HTMLButtonElement>(id)!.disabled)
    expect(disabled()).toEqual([false, false, false])
    tell({ id: 3, state: 'waiting' })
    expect(disabled()).toEqual([true, true, false])
    tell({ id: 3, state: 'reading' })
    expect(disabled()).toEqual([true, true, false])
    tell({ id: 3, state: 'done' })
    expect(disabled()).toEqual([false, false, false])
  })

  it('is not what Branch does: the conversation goes on from the turn', async () => {
    all('branch')[1]!.click()
    await settle()
    expect([named('branch_conversation'), composed]).toEqual([[{ turn: 2 }], 1])
    answers['branch_conversation'] = () => {
      throw 'A question is still being answered.'
    }
    one('branch')!.click()
    await settle()
    expect([words(one('notice')?.querySelector('p')), composed]).toEqual(['A question is still being answered.', 1])
  })
})

describe('a pasted text', () => {
  const paste = async (text: string | null) => {
    const event = new Event('paste', { bubbles: true, cancelable: true })
    const clipboardData = text === null ? null : { getData: (kind: string) => (kind === 'text/plain' ? text : '') }
    box().dispatchEvent(Object.assign(event, { clipboardData }))
    await settle()
    return event.defaultPrevented
  }
  const long = 'Word '.repeat(401)
  beforeEach(() => show(Composer))

  it('is opened as a document if it is long, and inserted otherwise', async () => {
    expect([await paste('x'.repeat(2000)), await paste(''), await paste(null), named('open_text').length]).toEqual([
      false,
      false,
      false,
      0,
    ])
    expect(await paste(long)).toBe(true)
    expect([named('open_text'), box().value]).toEqual([[{ text: long }], ''])
    expect(kept.app.announcement).toBe('The pasted text is opened as a document')
  })

  it('is inserted after all when it is refused', async () => {
    type('Is this so: ?')
    box().setSelectionRange(12, 12)
    answers['open_text'] = () => {
      throw 'Kept is still working on the open document.'
    }
    expect(await paste(long)).toBe(true)
    expect(box().value).toBe(`Is this so: ${long}?`)
    expect([kept.app.draft, box().selectionStart]).toEqual([box().value, 12 + long.length])
    expect(words(one('notice')?.querySelector('p'))).toBe('Kept is still working on the open document.')
  })
})
