/** The mock's questions: one runs, the others wait; see `index.ts`. */
import type { AppEvent, Turn } from '../lib/contract'

export interface Asked {
  turn: Turn
  /** The model does not see the earlier turns. */
  alone: boolean
  stopped: boolean
}

/** `answer` runs a question to its end; `tell` says nothing of a conversation that was left. `held` is whether a comparison runs. */
export function mockQuestions(
  emit: (event: AppEvent) => void,
  answer: (asked: Asked, tell: (event: AppEvent) => void) => Promise<void>,
  held: () => boolean,
) {
  let queue: Asked[] = []
  let running: Asked | null = null

  async function next(): Promise<void> {
    if (running || held()) return
    const asked = (running = queue.shift() ?? null)
    if (!asked) return
    asked.turn.state = 'asked'
    emit({ event: 'turn', turn: { ...asked.turn } })
    await answer(asked, (event) => running === asked && emit(event))
    if (running !== asked) return
    running = null
    await next()
  }

  function ask(turn: Turn, alone: boolean): void {
    queue.push({ turn, alone, stopped: false })
    if (running || held()) emit({ event: 'turn', turn: { ...turn } })
    else void next()
  }

  function stop(): void {
    if (running) running.stopped = true
    else {
      const first = queue.shift()
      if (first) emit({ event: 'turn', turn: Object.assign(first.turn, { state: 'stopped' }) })
    }
  }

  function remove(id: number): void {
    if (!queue.some(({ turn }) => turn.id === id)) throw 'This question no longer waits: it was asked.'
    queue = queue.filter(({ turn }) => turn.id !== id)
    emit({ event: 'turnRemoved', turn: id })
  }

  /** The conversation was left: its questions are stopped. */
  function leave(): void {
    for (const { turn } of running ? [running, ...queue] : queue) turn.state = 'stopped'
    if (running) running.stopped = true
    running = null
    queue = []
  }

  return { ask, stop, remove, leave, next, busy: () => running !== null || queue.length > 0 }
}
