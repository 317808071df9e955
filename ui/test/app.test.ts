import { describe, expect, it } from 'vitest'
import type { AppEvent, Estimate, Memory, Progress, Turn } from '../src/lib/contract'
import { AppState } from '../src/lib/app.svelte'
import { figures, segments, shortage } from '../src/lib/memory'
import { documentFacts, memory, snapshot, turn } from './given'

function app(...events: AppEvent[]): AppState {
  const app = new AppState()
  app.load(snapshot())
  events.forEach((event) => app.apply(event))
  return app
}
const progress = (done: number, phase: Progress['phase'] = 'reading'): Progress => ({
  phase,
  tokensDone: done,
  tokensTotal: 100,
  tokensPerSecond: 50,
  secondsLeft: 2,
  tokensFromVault: 0,
})
const step = (id: number, done: number): AppEvent => ({
  event: 'progress',
  turn: id,
  progress: progress(done),
  memory: memory(),
})

describe('the app', () => {
  it('follows a question from asked to done, its answer growing by pieces', () => {
    const d = app({ event: 'turn', turn: turn({ id: 7, state: 'asked' }) })
    expect(d.running?.id).toBe(7)
    expect(d.selected).toBe(7)
    d.apply({ event: 'turn', turn: turn({ id: 7, state: 'reading' }) })
    d.apply(step(7, 30))
    expect(d.live?.progress.tokensDone).toBe(30)
    d.apply({ event: 'map', turn: 7, layersDone: 2, layers: 6 })
    expect(d.mapped?.layersDone).toBe(2)
    d.apply({ event: 'turn', turn: turn({ id: 7, state: 'answering' }) })
    d.apply({ event: 'token', turn: 7, text: 'It is ', attended: [] })
    d.apply({ event: 'token', turn: 7, text: '47', attended: [] })
    expect(d.shown?.answer).toBe('')
    expect(d.hasPieces).toBe(true)
    d.writePieces()
    expect(d.shown?.answer).toBe('It is 47')
    // A pending piece is part of the turn's complete answer: not added twice.
    d.apply({ event: 'token', turn: 7, text: '11', attended: [] })
    d.apply({ event: 'turn', turn: turn({ id: 7, state: 'done', answer: 'It is 4711', hasMap: true }) })
    d.writePieces()
    expect(d.shown?.answer).toBe('It is 4711')
    expect(d.running).toBeNull()
    expect(d.turns).toHaveLength(1)
    expect(d.announcement).toBe('Answer: It is 4711')
  })

  it('keeps what was answered when the engine dies', () => {
    const d = app(
      { event: 'turn', turn: turn({ id: 1, state: 'answering', answer: 'Half' }) },
      { event: 'worker', worker: { state: 'restarting', message: 'The engine was ended.' } },
      { event: 'turn', turn: turn({ id: 1, state: 'failed', answer: 'Half', error: 'The engine was ended.' }) },
      { event: 'notice', kind: 'error', where: 'conversation', message: 'The engine was ended.' },
      { event: 'worker', worker: { state: 'ready', message: null } },
    )
    expect(d.turns[0]?.answer).toBe('Half')
    expect(d.turns[0]?.error).toBe('The engine was ended.')
    expect(d.running).toBeNull()
    expect(d.worker.state).toBe('ready')
    expect(d.notices.map((n) => n.where)).toEqual(['conversation'])
  })

  it('takes a new document with its own turns, new facts of the same one, and none', () => {
    const d = app({ event: 'turn', turn: turn({ id: 1, state: 'done' }) }, step(1, 5))
    d.apply({ event: 'opening', name: 'b.pdf' })
    expect(d.opening).toBe('b.pdf')
    expect(d.turns).toHaveLength(1)
    d.apply({
      event: 'document',
      document: documentFacts({ id: 2, name: 'b.pdf', tokens: null }),
      turns: [turn({ id: 9 })],
    })
    expect([d.opening, d.selected, d.live, d.mapped]).toEqual([null, 9, null, null])
    d.selected = 9
    d.apply({ event: 'document', document: documentFacts({ id: 2, tokens: 77 }), turns: [turn({ id: 9 })] })
    expect([d.document?.tokens, d.selected]).toEqual([77, 9])
    d.apply({ event: 'document', document: documentFacts({ id: 2 }), turns: [] })
    expect(d.selected).toBeNull()
    d.apply({ event: 'document', document: null, turns: [] })
    expect(d.document).toBeNull()
  })

  it('knows the estimate of a running question again when its document is back', () => {
    const d = app({ event: 'turn', turn: turn({ id: 1, state: 'reading' }) })
    const planned = {} as Estimate
    d.estimate = planned
    const open = (id: number, turns: Turn[]) => {
      d.apply({ event: 'document', document: documentFacts({ id, name: `${id}.pdf` }), turns })
      return d.estimate === planned
    }
    expect(open(2, [])).toBe(false)
    expect(open(1, [turn({ id: 1, state: 'answering' })])).toBe(true)
    expect(open(2, [turn({ id: 9 })])).toBe(false)
    expect(open(1, [turn({ id: 1, state: 'done' })]), 'of other settings, perhaps').toBe(false)
  })

  it('keeps few notices of one place, none twice', () => {
    const d = app()
    const say = (message: string) => d.apply({ event: 'notice', kind: 'error', where: 'document', message })
    for (const message of ['a', 'b', 'b', 'c', 'd']) say(message)
    expect(d.notices.map((n) => n.message)).toEqual(['b', 'c', 'd'])
    d.dismiss(d.notices[1]!.id)
    expect(d.notices.map((n) => n.message)).toEqual(['b', 'd'])
    d.apply({ event: 'opening', name: 'x' })
    expect(d.notices).toEqual([])
  })

  it('takes what was refused because something ran away with it', () => {
    const d = app({ event: 'turn', turn: turn({ id: 7, state: 'reading' }) })
    d.notify('conversation', 'A question is still being answered.', 'error', d.busy)
    d.notify('settings', 'The disk is full.')
    d.apply({ event: 'turn', turn: turn({ id: 7, state: 'answering' }) })
    expect(d.notices).toHaveLength(2)
    d.apply({ event: 'turn', turn: turn({ id: 7, state: 'done' }) })
    expect(d.notices.map(({ message }) => message)).toEqual(['The disk is full.'])
  })

  it('says of what was done only the latest', () => {
    const d = app()
    for (const name of ['a.md', 'b.json']) d.notify('conversation', `The conversation is saved as ${name}.`, 'info')
    expect(d.notices.map(({ message }) => message)).toEqual(['The conversation is saved as b.json.'])
  })

  it('takes what was said of a document away with it', () => {
    const d = app()
    const say = () => {
      d.notify('conversation', 'The document is too long.')
      d.notify('model', 'The model is missing.')
    }
    say()
    d.apply({ event: 'document', document: documentFacts({ tokens: 5 }), turns: [] })
    expect(d.notices).toHaveLength(2)
    d.apply({ event: 'document', document: documentFacts({ id: 2 }), turns: [] })
    expect(d.notices.map((n) => n.where)).toEqual(['model'])
    say()
    d.apply({ event: 'document', document: null, turns: [] })
    expect(d.notices.map((n) => n.where)).toEqual(['model'])
  })

  it('speaks in steps, not for every figure', () => {
    const d = app({ event: 'turn', turn: turn({ id: 1, state: 'reading' }) })
    const said = new Set<string>()
    for (let done = 0; done <= 100; done++) {
      d.apply(step(1, done))
      said.add(d.announcement)
    }
    expect([...said]).toEqual(['Reading the document', 'Reading, 25 %', 'Reading, 50 %', 'Reading, 75 %'])
  })

  it('shows a drag and its end', () => {
    const d = app({ event: 'drag', files: 3, refusal: 'One file.' })
    expect(d.drag).toEqual({ files: 3, refusal: 'One file.' })
    d.apply({ event: 'drag', files: 0, refusal: null })
    expect(d.drag).toBeNull()
  })
})

describe('the memory bar', () => {
  const settings = { method: 'snapkv', budget: null, cache: null }
  const estimate = {
    promptTokens: 100,
    rows: 25,
    memory: memory({ weights: 400, kept: 25, keptFull: 100, scratch: 75 }),
    notes: [],
    chosen: null,
    tokensFromVault: 0,
    tokensToRepeat: 0,
    cache: 'q8_0',
  }
  const sum = (m: Memory) =>
    segments({ phase: 'live', memory: m, cache: '', full: 0, saved: Math.max(0, m.keptFull - m.kept) }).reduce(
      (a, s) => a + s.share,
      0,
    )

  it('is as wide as the full cache would be', () => {
    const parts = segments(figures(null, null, null, estimate, null, settings)!)
    expect(parts.map((p) => [p.name, p.bytes])).toEqual([
      ['weights', 400],
      ['kept', 25],
      ['tables', 0],
      ['scratch', 75],
      ['saved', 75],
    ])
    expect(parts.reduce((a, p) => a + p.share, 0)).toBeCloseTo(1)
    expect(parts[1]!.share).toBeCloseTo(25 / 575)
  })

  it('never overflows, not even when more is kept than the full cache or nothing is known', () => {
    expect(sum(memory({ kept: 500, keptFull: 100 }))).toBeLessThanOrEqual(1.0001)
    expect(sum(memory({ weights: 0, kept: 0, keptFull: 0, scratch: 0 }))).toBe(0)
    expect(figures(null, null, null, null, null, settings)).toBeNull()
  })

  it('goes from estimate to live to the turn, and back when another budget is chosen', () => {
    const running = turn({ id: 1, state: 'reading' })
    const live = { turn: 1, progress: progress(10), memory: memory({ kept: 3, scratch: 10 }) }
    expect(figures(running, running, live, estimate, null, settings)?.phase).toBe('estimate')
    const layers = (layersDone: number) => ({ turn: 1, layersDone, layers: 4 })
    const half = figures(running, running, live, estimate, null, settings, layers(2))
    // The width does not shrink with the scratch memory; unread layers are not counted as saved.
    expect([half?.phase, half?.full, half?.saved]).toEqual(['live', 575, 47])
    expect(figures(running, running, live, estimate, null, settings, layers(0))?.phase).toBe('estimate')
    expect(figures(running, running, live, null, null, settings)).toMatchObject({ phase: 'live', saved: 0 })
    const answering = { ...live, progress: progress(1, 'answering') }
    expect(figures(running, running, answering, estimate, null, settings)?.saved).toBe(97)
    const done: Turn = { ...running, state: 'done', facts: { ...facts, keptBytes: 25, fullBytes: 101 } }
    const after = figures(null, done, live, estimate, null, settings)
    expect([after?.phase, after?.memory.kept, after?.memory.keptFull]).toEqual(['turn', 25, 101])
    // The same for the cache type: estimated, requested, actual, and estimated again.
    expect([half?.cache, after?.cache]).toEqual(['q8_0', 'f16'])
    const narrow = { ...running, cache: 'q4_0' }
    expect(figures(narrow, narrow, live, estimate, null, settings, layers(2))?.cache).toBe('q4_0')
    expect(figures(null, done, live, estimate, null, { ...settings, cache: 'q4_0' })).toMatchObject({
      phase: 'estimate',
      cache: 'q8_0',
    })
    expect(figures(null, done, live, estimate, null, { ...settings, budget: '10%' })?.phase).toBe('estimate')
    expect(figures(null, done, null, null, null, { ...settings, method: 'full' })).toBeNull()
  })

  it('says when the machine is too small', () => {
    const small = { ...estimate, memory: { ...estimate.memory, available: 499 } }
    expect(shortage(figures(null, null, null, small, null, settings))).toContain('only 499 B')
    expect(
      shortage(figures(null, null, null, { ...small, memory: { ...small.memory, available: 500 } }, null, settings)),
    ).toBeNull()
    expect(
      shortage(figures(null, null, null, { ...small, memory: { ...small.memory, available: null } }, null, settings)),
    ).toBeNull()
  })
})

const facts = {
  finish: 'end' as const,
  promptTokens: 100,
  answerTokens: 1,
  rows: 25,
  keptBytes: 0,
  fullBytes: 0,
  firstTokenSeconds: 1,
  prefillSeconds: 1,
  decodeSeconds: 1,
  tokensPerSecond: 10,
  notes: [],
  chosen: null,
  tokensFromVault: 0,
  turnsSeen: 0,
  turnsKept: null,
  citations: [],
  streamed: false,
  cache: 'f16',
  doubt: null,
}
