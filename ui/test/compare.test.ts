import { clearMocks, mockIPC } from '@tauri-apps/api/mocks'
import { flushSync, mount, unmount, type Component } from 'svelte'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import {
  COLUMNS,
  answersOf,
  beginning,
  changedAt,
  divergenceBar,
  doneRows,
  doneShare,
  entriesOf,
  expected,
  readings,
  keyOf,
  nameOf,
  nextOrder,
  proposedBudgets,
  proposedMethods,
  remaining,
  rowsOf,
  runsOf,
  sorted,
} from '../src/lib/compare'
import type { Kept } from '../src/lib/context'
import type { Comparison, Facts, MethodFacts, RunReport } from '../src/lib/contract'
import { AppState } from '../src/lib/app.svelte'
import { bars, decades, heat, line } from '../src/lib/figures'
import { begun, referenceOf, runOf } from './comparison'
import Compare from '../src/parts/compare/Compare.svelte'
import Frame from './Frame.svelte'
import { snapshot, turn } from './given'
import { keptOf } from './kept'

const METHODS: MethodFacts[] = ['full', 'snapkv', 'h2o', 'novel'].map((name) => ({
  name,
  title: { full: 'Full cache', snapkv: 'SnapKV', h2o: 'H2O' }[name] ?? name,
  paper: '',
  keeps: 'a part',
  acts: '',
  parameters: [],
  streams: false,
  seesQuestion: true,
}))
const entry = (method: string, parameters = {}) => ({ method, parameters })
const choice = (method: string, budget: string, parameters = {}) => ({ method, parameters, budget })
/** Two of three runs are done, the last one refused. */
function comparison(some: Partial<Comparison> = {}): Comparison {
  const runs = [choice('snapkv', '25%', { kernel: '5' }), choice('h2o', '25%'), choice('h2o', '2')]
  const refused: RunReport = {
    run: 'method',
    method: 'h2o',
    label: 'h2o',
    parameters: [],
    budget: '2',
    prompt_tokens: 100,
    refused: 'H2O needs a budget of at least 10 rows per head.',
  }
  const reports = [runOf(runs[0]!, 1, 100, 4, 4000), runOf(runs[1]!, 2, 100, 4, 4000), refused]
  return {
    ...begun(7, 'Who pays?', runs, 'sample.txt'),
    state: 'done',
    reference: { seconds: 2, report: referenceOf(100, 4, 2, 4000) },
    runs: runs.map((c, i) => ({ choice: c, result: { seconds: 3, report: reports[i]! } })),
    ...some,
  }
}

describe('what is compared', () => {
  it('proposes methods of different kinds and the chosen one, but not the full cache', () => {
    expect(proposedMethods(METHODS, 'novel')).toEqual(['snapkv', 'h2o', 'novel'])
    expect(proposedMethods(METHODS, 'full')).toEqual(['snapkv', 'h2o'])
    expect(proposedBudgets(null)).toEqual(['25%', '10%'])
    expect(proposedBudgets('64MiB')).toEqual(['64MiB', '10%'])
    expect(proposedBudgets('10%')).toEqual(['10%', '5%'])
  })

  it('runs every method at every budget with its parameters, the full cache once', () => {
    const entries = [entry('full'), entry('snapkv', { kernel: '5' })]
    expect(runsOf(entries, ['25%', '10%'])).toEqual([
      choice('full', '100%'),
      choice('snapkv', '25%', { kernel: '5' }),
      choice('snapkv', '10%', { kernel: '5' }),
    ])
    expect(runsOf(entries.slice(1), [])).toEqual([])
  })

  it('lists every method as it is set, and behind it the same with other parameters, none twice', () => {
    const added = [entry('snapkv', { w: '8' }), entry('h2o', { sinks: '0' }), entry('snapkv', { kernel: '5' })]
    const list = entriesOf(METHODS, { snapkv: { kernel: '5' } }, added)
    expect(list.map(keyOf)).toEqual(['full', 'snapkv[kernel=5]', 'snapkv[w=8]', 'h2o', 'h2o[sinks=0]', 'novel'])
    expect(keyOf(entry('snapkv', { w: '8', sinks: '0' }))).toBe(keyOf(entry('snapkv', { sinks: '0', w: '8' })))
    expect(nameOf(list[2]!, METHODS)).toBe('SnapKV w=8')
    expect(nameOf(list[3]!, METHODS)).toBe('H2O')
  })

  it('begins with what the last one had, else with what is proposed', () => {
    const settings = { method: 'novel', parameters: {}, budget: null }
    expect(beginning(null, METHODS, settings)).toEqual({
      added: [],
      chosen: ['snapkv', 'h2o', 'novel'],
      budgets: ['25%', '10%'],
    })
    expect(beginning(comparison(), METHODS, settings)).toEqual({
      added: [entry('snapkv', { kernel: '5' })],
      chosen: ['snapkv[kernel=5]', 'h2o'],
      budgets: ['25%', '2'],
    })
    // With the same parameters set for questions, it is the method's own row.
    const set = { ...settings, parameters: { snapkv: { kernel: '5' } } }
    expect(beginning(comparison(), METHODS, set).added).toEqual([])
  })

  it('says how long from what the last question took', () => {
    // The last question had its document from the vault: its prefill says nothing.
    const facts = { promptTokens: 200, prefillSeconds: 0.1, decodeSeconds: 1 } as Facts
    const off = readings(4, 'off', false)
    expect(expected(facts, 100, 4, off)).toEqual([9, 27])
    expect(expected(facts, undefined, 4, off)).toBeNull()
    expect(expected(null, 100, 4, off)).toBeNull()
    // With the vault the document is read once or twice, and after a comparison perhaps not at all.
    const [first, again] = [readings(4, 'q8_0', false), readings(4, 'f16', true)]
    expect(expected(facts, 100, 4, first)![1]).toBeLessThan(15)
    expect(expected(facts, 100, 4, first)![0]).toBeGreaterThan(7)
    expect(expected(facts, 100, 4, again)![0]).toBeLessThan(6)
  })
})

describe('how far it is', () => {
  it('goes by what has been done', () => {
    const done = comparison()
    const running = comparison({
      state: 'running',
      current: 1,
      runs: done.runs.map((run, i) => (i === 0 ? run : { ...run, result: null })),
    })
    expect(
      remaining(comparison({ reference: null, runs: running.runs.map((r) => ({ ...r, result: null })) })),
    ).toBeNull()
    expect(remaining(running)).toBe(6)
    // Of many runs, the first one includes the reading of all.
    expect(remaining({ ...running, runs: [...running.runs, ...running.runs.slice(1)] })).toBeNull()
    const half = {
      tokensDone: 50,
      tokensTotal: 100,
      tokensPerSecond: 1,
      secondsLeft: 1,
      tokensFromVault: 0,
      phase: 'reading' as const,
    }
    expect(doneShare(running)).toBe(0.5)
    expect(doneShare({ ...running, progress: half })).toBe(0.5625)
    // Two runs share the prefill.
    expect(doneShare({ ...running, sharing: 2, progress: half })).toBe(0.625)
    expect(doneShare(done)).toBe(1)
  })

  it('gives every run its row, whatever became of it', () => {
    const states = (c: Comparison) => rowsOf(c, METHODS).map((row) => row.state)
    expect(states(comparison())).toEqual(['done', 'done', 'refused'])
    const runs = comparison().runs.map((run, i) => (i === 0 ? run : { ...run, result: null }))
    expect(states(comparison({ state: 'running', current: 1, runs }))).toEqual(['done', 'running', 'waiting'])
    expect(states(comparison({ state: 'stopped', runs }))).toEqual(['done', 'left out', 'left out'])
    const before = comparison({ state: 'running', reference: null, current: null, runs })
    expect(states(before).slice(1)).toEqual(['waiting', 'waiting'])
    expect(rowsOf(comparison(), METHODS)[0]).toMatchObject({
      title: 'SnapKV',
      set: 'kernel=5',
      name: 'SnapKV kernel=5',
      budget: '25 %',
    })
  })
})

describe('the table', () => {
  it('sorts by any column, the best first, and back; rows without a figure stay last', () => {
    const rows = rowsOf(comparison(), METHODS)
    const kl = (row: (typeof rows)[number]) => row.run?.fidelity.kl ?? null
    const first = nextOrder(null, 'kl')
    expect(first).toEqual({ by: 'kl', descending: false })
    const by = sorted(rows, first)
    expect(kl(by[0]!)!).toBeLessThan(kl(by[1]!)!)
    expect(by[2]?.state).toBe('refused')
    const other = nextOrder(first, 'kl')
    expect(other).toEqual({ by: 'kl', descending: true })
    expect(sorted(rows, other).map((r) => r.index)).toEqual([by[1]!.index, by[0]!.index, 2])
    expect(nextOrder(other, 'kl')).toBeNull()
    expect(nextOrder(other, 'recall')).toEqual({ by: 'recall', descending: true })
    expect(sorted(rows, { by: 'method', descending: false }).map((r) => r.title)).toEqual(['H2O', 'H2O', 'SnapKV'])
    expect(sorted(rows, null).map((r) => r.index)).toEqual([0, 1, 2])
  })

  it('has a text and a bar between nothing and full for every figure', () => {
    const runs = doneRows(rowsOf(comparison(), METHODS)).map((row) => row.run)
    for (const column of COLUMNS) {
      for (const run of runs) {
        expect(column.text(run), column.name).toMatch(/\d/)
        const bar = column.bar?.(run, runs) ?? 0
        expect(bar >= 0 && bar <= 1, column.name).toBe(true)
      }
    }
    const mute = { ...runs[0]!, fidelity: { ...runs[0]!.fidelity, kl: null, top1: null, attention_recall: null } }
    expect(COLUMNS.slice(0, 3).map((c) => c.text(mute))).toEqual(['–', '–', '–'])
    expect([divergenceBar(0), divergenceBar(0.0001), divergenceBar(10), divergenceBar(1e6)]).toEqual([0, 0, 1, 1])
  })

  it('tells the largest budget at which the answer is another one', () => {
    const runs = ['25%', '10%', '5%'].map((budget) => choice('h2o', budget))
    const results = runs.map((run, i) => {
      const report = { ...runOf(run, i, 100, 4, 4000), same_answer: i === 0, budget_rows: [25, 10, 5][i]! }
      return { choice: run, result: { seconds: 1, report: report as RunReport } }
    })
    const done = comparison({ runs: results })
    expect(changedAt(done, 'Who pays?', entry('h2o'))).toBe(10)
    expect(changedAt(done, 'Who pays?', entry('snapkv'))).toBeNull()
    expect(changedAt(done, 'Who pays?', entry('h2o', { sinks: '0' }))).toBeNull()
    expect([changedAt(done, 'Who?', entry('h2o')), changedAt(null, 'Who pays?', entry('h2o'))]).toEqual([null, null])
  })

  it('says each answer once', () => {
    const rows = doneRows(rowsOf(comparison(), METHODS))
    const said = rows.map((row, i) => ({ ...row, run: { ...row.run, same_answer: i === 0, answer: 'Another.' } }))
    const answers = answersOf('The full one.', said)
    expect(answers.map((a) => [a.text, a.same, a.rows.length])).toEqual([
      ['The full one.', true, 1],
      ['Another.', false, 1],
    ])
  })
})

describe('the pictures', () => {
  it('draw a heat map with a path for each colour, runs of one colour as one', () => {
    const patches = heat([
      [0, 0, 1],
      [1, 0, 0],
    ])
    expect(patches.map((p) => p.d)).toEqual(['M0 0h2v1h-2zM1 1h2v1h-2z', 'M2 0h1v1h-1zM0 1h1v1h-1z'])
    expect(heat([[Number.NaN, 2, -1]])).toHaveLength(2)
  })

  it('draw bars from below and lines through the middles', () => {
    expect(bars([0, 2], 4, 1, 0)).toBe('M1 1v-0.5h1V1z')
    expect(bars([1], 0, 1)).toBe('')
    expect(line([1, 3], (v) => v / 2)).toBe('M0.5 0.5L1.5 1.5')
    expect(decades([0.02, 300, 0])).toEqual({ lowest: -2, highest: 3 })
    expect(decades([1e-30, 1])).toEqual({ lowest: -6, highest: 0 })
    expect(decades([])).toEqual({ lowest: -1, highest: 0 })
  })
})

describe('the view', () => {
  let asked: { name: string; args: Record<string, unknown> }[]
  let refusal: string | null
  let notAllowed: string | null
  let shown: Record<string, unknown> | null = null
  let kept: Kept

  beforeEach(() => {
    asked = []
    refusal = null
    notAllowed = null
    mockIPC((name, args) => {
      asked.push({ name, args: (args ?? {}) as Record<string, unknown> })
      if (name === 'compare' && refusal !== null) throw refusal
      if (name === 'check_method' && notAllowed !== null) throw notAllowed
      return null
    })
    const app = new AppState()
    app.load(snapshot({ methods: METHODS, turns: [turn({ question: 'Who pays?' })] }))
    kept = keptOf(app)
  })
  afterEach(async () => {
    if (shown) await unmount(shown)
    shown = null
    clearMocks()
    document.body.replaceChildren()
  })
  function show() {
    const props = { given: kept, part: Compare as Component<never>, props: { close: () => {} } }
    shown = mount(Frame, { target: document.body, props })
    flushSync()
    // The table is one click away.
    find('compare-figures')?.click()
    flushSync()
  }
  const find = <T extends HTMLElement = HTMLElement>(id: string) => document.querySelector<T>(`[data-testid=${id}]`)
  const all = (id: string) => [...document.querySelectorAll<HTMLElement>(`[data-testid=${id}]`)]
  async function settle() {
    await new Promise((resolve) => setTimeout(resolve, 0))
    flushSync()
  }

  it('asks for what is chosen; a refusal stands there and nothing is lost', async () => {
    show()
    expect(find<HTMLTextAreaElement>('compare-question')?.value).toBe('Who pays?')
    expect(find('compare-cost')?.textContent).toContain('4 runs')
    const other = find<HTMLInputElement>('compare-other')!
    other.value = '15 %'
    other.dispatchEvent(new InputEvent('input', { bubbles: true }))
    other.dispatchEvent(new KeyboardEvent('keydown', { key: 'Enter', bubbles: true }))
    flushSync()
    all('compare-method')[2]!.click()
    flushSync()
    refusal = 'A question is still being answered.'
    find('compare-start')!.click()
    await settle()
    const sent = asked.filter((call) => call.name === 'compare').map((call) => call.args)
    expect(sent).toEqual([
      { question: 'Who pays?', runs: ['25%', '10%', '15 %'].map((budget) => choice('snapkv', budget)) },
    ])
    expect(find('compare-refused')?.textContent).toBe(refusal)
    expect(find('compare-refused')?.getAttribute('role')).toBe('alert')
    expect(find('compare-setup')).not.toBeNull()
    all('compare-method')[1]!.click()
    flushSync()
    expect([find('compare-refused'), find<HTMLButtonElement>('compare-start')!.disabled]).toEqual([null, true])
  })

  it('takes a method again with other parameters, which are checked at their fields', async () => {
    const parameters = [
      { name: 'w', default: '32', range: 'a whole number from 1', meaning: 'last queries that vote' },
      { name: 'sinks', default: '4', range: 'a whole number from 0', meaning: 'first tokens' },
    ]
    kept.app.methods = METHODS.map((m) => (m.name === 'snapkv' || m.name === 'h2o' ? { ...m, parameters } : m))
    show()
    const set = async (name: string, value: string) => {
      const field = find<HTMLInputElement>(`parameter-${name}`)!
      field.value = value
      field.dispatchEvent(new Event('change', { bubbles: true }))
      await settle()
    }
    const addIt = async () => {
      find('compare-adding-add')!.click()
      await settle()
    }
    const listed = () => all('compare-method').map((box) => [box.dataset['value'], (box as HTMLInputElement).checked])
    find('compare-none')!.click()
    find('compare-add')!.click()
    await settle()
    // With the parameters for questions, it is in the list already.
    await addIt()
    expect(find('compare-adding-refused')?.textContent).toContain('SnapKV with these values is already in the list')
    notAllowed = '“0” is not possible: w takes a whole number from 1.'
    await set('w', '0')
    expect(find('parameter-error')?.textContent).toBe(notAllowed)
    expect(find('parameter-error')?.closest('[data-name]')?.getAttribute('data-name')).toBe('w')
    expect(find('compare-adding-refused')?.textContent?.trim()).toBe('')
    await addIt()
    expect(find('compare-adding')).not.toBeNull()
    notAllowed = null
    await set('w', '8')
    expect(find('parameter-error')).toBeNull()
    await set('sinks', '0')
    expect(asked.at(-1)).toEqual({
      name: 'check_method',
      args: { method: 'snapkv', parameters: { w: '8', sinks: '0' } },
    })
    await addIt()
    expect(find('compare-adding')).toBeNull()
    expect(kept.app.announcement).toBe('SnapKV w=8, sinks=0 is added')
    // A second variant starts with the last input; another method with its defaults.
    find('compare-add')!.click()
    await settle()
    expect(find<HTMLInputElement>('parameter-w')?.value).toBe('8')
    await set('w', '')
    await addIt()
    find('compare-add')!.click()
    await settle()
    const which = find<HTMLSelectElement>('compare-adding-method')!
    which.value = 'h2o'
    which.dispatchEvent(new Event('change', { bubbles: true }))
    await settle()
    expect(find<HTMLInputElement>('parameter-sinks')?.value).toBe('')
    await set('w', '4')
    await addIt()
    expect(listed()).toEqual([
      ['full', false],
      ['snapkv', false],
      ['snapkv[sinks=0,w=8]', true],
      ['snapkv[sinks=0]', true],
      ['h2o', false],
      ['h2o[w=4]', true],
      ['novel', false],
    ])
    const remove = all('compare-remove')
    expect(remove.map((button) => button.getAttribute('aria-label'))).toEqual([
      'Remove SnapKV w=8, sinks=0',
      'Remove SnapKV sinks=0',
      'Remove H2O w=4',
    ])
    remove[2]!.click()
    flushSync()
    expect(document.activeElement).toBe(find('compare-add'))
    all('compare-method')[1]!.click()
    flushSync()
    find('compare-start')!.click()
    await settle()
    const runs = asked.findLast((call) => call.name === 'compare')?.args['runs'] as { parameters: unknown }[]
    expect(runs.map((run) => run.parameters)).toEqual(
      [{}, { w: '8', sinks: '0' }, { sinks: '0' }].flatMap((set) => [set, set]),
    )
  })

  it('tells runs of one method apart by their parameters, in every part of the results', () => {
    const runs = ['8', '16'].map((w) => choice('snapkv', '25%', { w }))
    const reports = runs.map((run, i) => ({
      ...runOf(run, i, 100, 4, 4000),
      same_answer: false,
      answer: `Answer ${i}.`,
    }))
    const results = runs.map((run, i) => ({ choice: run, result: { seconds: 3, report: reports[i]! as RunReport } }))
    kept.app.apply({ event: 'comparison', comparison: comparison({ runs: results }) })
    show()
    const names = ['w=8', 'w=16']
    const each = (elements: Iterable<Element>, text: (element: Element) => string | null | undefined) =>
      [...elements].forEach((element, i) => expect(text(element)).toContain(names[i]))
    const counts = ['compare-row', 'compare-answer'].map((id) => all(id).length)
    expect(counts).toEqual([2, 3])
    each(all('compare-row'), (row) => row.querySelector('th')?.textContent)
    each(all('compare-answer').slice(1), (answer) => answer.querySelector('h3')?.textContent)
    for (const id of ['compare-recall', 'compare-divergence', 'compare-positions', 'compare-similarity']) {
      const labels = document.querySelectorAll(`[data-testid=${id}] .name`)
      expect(labels, id).toHaveLength(2)
      each(labels, (label) => label.textContent)
    }
    each(document.querySelectorAll('[data-testid=compare-similarity] svg'), (svg) => svg.getAttribute('aria-label'))
    const waiting = results.map((run) => ({ ...run, result: null }))
    kept.app.apply({ event: 'comparison', comparison: comparison({ state: 'running', current: 1, runs: waiting }) })
    flushSync()
    expect(find('compare-now')?.textContent).toBe('Starting with SnapKV w=16 at 25 %')
  })

  it('fills the table as runs come, and keeps what is there when it is stopped', async () => {
    const whole = comparison()
    kept.app.apply({
      event: 'comparison',
      comparison: begun(
        7,
        'Who pays?',
        whole.runs.map((r) => r.choice),
        'a.txt',
      ),
    })
    show()
    expect(find('compare-now')?.textContent).toBe('Starting with the full cache')
    const progress = {
      phase: 'reading' as const,
      tokensDone: 30,
      tokensTotal: 100,
      tokensPerSecond: 5,
      secondsLeft: 14,
      tokensFromVault: 0,
    }
    kept.app.apply({ event: 'comparisonProgress', comparison: 7, run: null, sharing: 1, progress })
    flushSync()
    expect(find('compare-now')?.textContent).toBe('Reading with the full cache: 30 % done, 15 s left for this reading')
    kept.app.apply({ event: 'comparisonReference', comparison: 7, result: whole.reference! })
    kept.app.apply({ event: 'comparisonRun', comparison: 7, run: 0, result: whole.runs[0]!.result! })
    // Events of another comparison are ignored.
    kept.app.apply({ event: 'comparisonRun', comparison: 6, run: 1, result: whole.runs[1]!.result! })
    kept.app.apply({
      event: 'comparisonProgress',
      comparison: 7,
      run: 1,
      sharing: 2,
      progress,
    })
    flushSync()
    expect(all('compare-row').map((row) => row.dataset['state'])).toEqual(['done', 'running', 'running'])
    expect(find('compare-now')?.textContent).toBe('Reading with H2O at 25 % and 1 more: 30 % done')
    find('compare-stop')!.click()
    await settle()
    expect(asked.some((call) => call.name === 'stop_comparison')).toBe(true)
    kept.app.apply({ event: 'comparisonEnded', comparison: 7, state: 'stopped', error: null })
    flushSync()
    expect(all('compare-row').map((row) => row.dataset['state'])).toEqual(['done', 'left out', 'left out'])
    expect(find('compare-status')?.textContent).toContain('Stopped: 1 of 3 runs finished.')
    find('compare-save')!.click()
    await settle()
    expect(asked.some((call) => call.name === 'save_comparison')).toBe(true)
    find('compare-continue')!.click()
    await settle()
    expect(asked.some((call) => call.name === 'continue_comparison')).toBe(true)
    // The full cache answers once more, and what is done stays.
    const stopped = kept.app.comparison!
    kept.app.apply({ event: 'comparison', comparison: { ...stopped, id: 8, state: 'running', sharing: 1 } })
    flushSync()
    expect(find('compare-now')?.textContent).toBe('Starting with the full cache')
    expect(all('compare-row').map((row) => row.dataset['state'])).toEqual(['done', 'waiting', 'waiting'])
    kept.app.apply({ event: 'comparisonReference', comparison: 8, result: whole.reference! })
    flushSync()
    expect(all('compare-row').map((row) => row.dataset['state'])).toEqual(['done', 'running', 'waiting'])
    kept.app.apply({ event: 'comparison', comparison: whole })
    flushSync()
    expect(find('compare-continue')).toBeNull()
  })

  it('shows a refused run in its row, and sorts with a head that says so', () => {
    kept.app.apply({ event: 'comparison', comparison: comparison() })
    show()
    expect(find('compare-said')?.textContent).toContain('H2O needs a budget of at least 10 rows per head.')
    const column = (name: string) =>
      document.querySelector<HTMLElement>(`[data-testid=compare-sort][data-column=${name}]`)
    expect([column('cache')?.textContent, column('answer')?.textContent, column('kl')]).toEqual([
      'Memory',
      'Same as full?',
      null,
    ])
    find('compare-details')!.click()
    flushSync()
    const head = column('kl')!
    head.click()
    flushSync()
    expect(head.closest('th')?.getAttribute('aria-sort')).toBe('ascending')
    expect(all('compare-row').at(-1)?.dataset['state']).toBe('refused')
    expect(all('compare-answer')[0]?.dataset['same']).toBe('true')
    expect(document.querySelectorAll('[data-testid=compare-recall] svg')).toHaveLength(2)
    expect(document.querySelectorAll('[data-testid=compare-similarity] svg')).toHaveLength(2)
    expect(document.querySelectorAll('[data-testid=compare-full] svg')).toHaveLength(2)
  })

  it('shows the full cache’s memory in the precision of the methods, and says so', () => {
    const exact = { ...referenceOf(100, 4, 2, 8000), kv_bytes: 8000 }
    kept.app.apply({ event: 'comparison', comparison: comparison({ reference: { seconds: 2, report: exact } }) })
    show()
    expect(find('compare-reference')?.textContent).toContain('3.9 KiB')
    expect(find('compare-precision')?.textContent).toContain('exact 32-bit rows (7.8 KiB)')
    kept.app.apply({ event: 'comparison', comparison: comparison() })
    flushSync()
    expect(find('compare-precision')).toBeNull()
  })

  it('goes with its document', () => {
    kept.app.apply({ event: 'comparison', comparison: comparison() })
    kept.app.apply({ event: 'comparison', comparison: null })
    expect([kept.app.comparison, kept.app.comparing]).toEqual([null, false])
  })
})
