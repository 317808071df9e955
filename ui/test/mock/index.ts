/**
 * Answers the commands that the page's document, questions and maps need without the program, for developing the page
 * (`vite --mode mock`) and for `scripts/bench-page`. Never in the production build. Options: `?document=none|sample|long`,
 * `?theme=`, `?slow=`, `?pages=`, `?lift`, `?replay`, `?doubt=unseen|forgotten`; `window.mock.emit(event)` sends any event.
 */
import { mockIPC, mockWindows } from '@tauri-apps/api/mocks'
import sample from '../../../assets/sample.txt?raw'
import suggested from '../../../assets/sample.json'
import { answerFacts, documentFacts, memory, snapshot as snapshotOf, turn as turnOf } from '../given'
import type { AppEvent, Choice, Doubt, PictureOf, Relation, Settings, Theme, Turn } from '../../src/lib/contract'
import { LEVELS } from '../../src/lib/levels'
import { longText, outlineOf, pagesOf } from './long'
import { Mind } from './mind'

declare global {
  interface Window {
    mock: { emit: (event: AppEvent) => void }
    __TAURI_INTERNALS__: { runCallback: (id: number, data: unknown) => void }
  }
}

/** The arguments of all commands. */
interface Arguments {
  channel: { id: number }
  settings: Settings
  budget: string | null
  question: string
  choice: Choice
  relation: Relation
  turn: number
  layer: number | null
  lift: boolean
  token: number
  from: number
  to: number
  columns: number
  heads: boolean
  of: PictureOf
}

const ANSWER =
  'The lessor pays for **structural repairs** to the quay wall, including storm damage, unless the tenant moored vessels above the agreed draught.\n\nIn that case:\n\n- the costs are shared *equally*;\n- a written warning, at least ten days before, moves the share back to `4711`.\n'

const wait = (ms: number) => new Promise((resolve) => setTimeout(resolve, ms))
const wordsOf = (text: string) => [...text.matchAll(/\s*\S+/g)]

export function start(): void {
  const query = new URLSearchParams(location.search)
  const slow = Number(query.get('slow') ?? 1)
  const long = query.get('document') === 'long'
  const [layers, kvHeads] = long ? [32, 8] : [6, 2]
  const bytesPerRow = layers * kvHeads * 64 * 2 * 2
  const text = long ? longText(Number(query.get('pages') ?? 312)) : sample
  const pages = long ? pagesOf(text) : []
  const tokens = new Mind(text, '', layers, kvHeads).ends.length
  let channel = 0
  let index = 0
  const turns: Turn[] = []
  const minds = new Map<number, Mind>()
  let last = Promise.resolve()
  let running: Turn | null = null

  const emit = (event: AppEvent) => window.__TAURI_INTERNALS__.runCallback(channel, { message: event, index: index++ })
  const tell = (turn: Turn) => emit({ event: 'turn', turn: structuredClone(turn) })
  window.mock = { emit }

  const snapshot = snapshotOf({
    document:
      query.get('document') === 'none'
        ? null
        : documentFacts({
            name: long ? 'Harbour lease, 2019 renewal.pdf' : 'sample.txt',
            kind: long ? 'pdf' : 'text',
            sourceBytes: text.length,
            length: text.length,
            pages,
            outline: outlineOf(text, pages),
            tokens,
            sample: !long,
            beyondBox: long,
            suggestions: long ? [] : [suggested.question, ...suggested.more.slice(0, 4).map((m) => m.question)],
          }),
  })
  const { settings, model } = snapshot
  settings.theme = (query.get('theme') as Theme | null) ?? 'system'
  Object.assign(model!, { layers, kvHeads, context: 131072, canThink: long })

  function rowsOf(budget: string | null): number {
    const share = /^([\d.]+)%$/.exec(budget ?? '25%')
    return Math.min(tokens, share ? Math.ceil((tokens * Number(share[1])) / 100) : Number.parseInt(budget ?? '256'))
  }

  const using = (rows: number) =>
    memory({
      weights: long ? 4.9e9 : 5.6e6,
      kept: rows * bytesPerRow,
      keptFull: tokens * bytesPerRow,
      scratch: long ? 6.1e8 : 4.2e6,
      available: 21.4e9,
      total: 25.2e9,
    })

  async function run(turn: Turn): Promise<void> {
    if (turn.state === 'stopped') return
    running = turn
    const stopped = () => turn.state === 'stopped'
    const rows = rowsOf(turn.budget)
    const mind = new Mind(text, turn.question, layers, kvHeads, rows)
    minds.set(turn.id, mind)
    turn.state = 'reading'
    tell(turn)
    const steps = 40
    for (let step = 1; step <= steps && !stopped(); step++) {
      await wait(40 * slow)
      mind.layersDone = Math.floor((step / steps) * layers)
      emit({ event: 'map', turn: turn.id, layersDone: mind.layersDone, layers })
      const secondsLeft = ((steps - step) * 40 * slow) / 1000
      emit({
        event: 'progress',
        turn: turn.id,
        progress: {
          phase: 'reading',
          tokensDone: (tokens * step) / steps,
          tokensTotal: tokens,
          tokensPerSecond: 812,
          secondsLeft,
          tokensFromVault: 0,
        },
        memory: using((rows * step) / steps),
      })
    }
    turn.hasMap = mind.layersDone > 0
    if (!stopped()) {
      turn.state = 'answering'
      tell(turn)
    }
    for (const [piece] of wordsOf(ANSWER)) {
      if (stopped()) break
      turn.answer += piece
      emit({ event: 'token', turn: turn.id, text: piece, attended: mind.lookedAt(piece) })
      await wait(25 * slow)
    }
    running = null
    if (!stopped()) {
      turn.state = 'done'
      const doubt = query.get('doubt') as Doubt | null
      turn.sources = mind.sources(pages, doubt === 'unseen' ? 0.1 : 0.3)
      if (doubt === 'forgotten') for (const source of turn.sources) source.kept = 0.04
      turn.hasLift = query.has('lift')
      turn.hasReplay = query.has('replay')
      turn.facts = answerFacts({
        promptTokens: tokens,
        rows,
        keptBytes: rows * bytesPerRow,
        fullBytes: tokens * bytesPerRow,
        doubt,
        citations: doubt ? [] : [{ end: ANSWER.indexOf('.') + 1, source: 0 }],
      })
    }
    tell(turn)
  }

  async function less(turn: Turn): Promise<void> {
    while (!turn.levelsDone) {
      await wait(60 * slow)
      turn.levelsDone = ++turn.levels === LEVELS.length
      tell(turn)
    }
  }

  const turnAt = ({ turn }: Arguments) => turns.find(({ id }) => id === turn)!
  function mind({ turn }: Arguments): Mind {
    const found = minds.get(turn)
    if (!found) throw 'There is no map of this answer.'
    return found
  }

  const answers: Record<string, (args: Arguments) => unknown> = {
    subscribe: (args) => (channel = args.channel.id),
    snapshot: () => structuredClone(snapshot),
    document_text: () => new TextEncoder().encode(text).buffer,
    save_settings: (args) => Object.assign(settings, args.settings),
    estimate: ({ budget }) => ({
      promptTokens: tokens,
      rows: rowsOf(budget),
      memory: using(rowsOf(budget)),
      notes: [],
      chosen: null,
      tokensFromVault: 0,
      tokensToRepeat: 0,
      cache: settings.cache ?? 'f16',
    }),
    ask({ question, choice, relation }) {
      const original = turns.find(({ id }) => id === relation.again)
      const versionOf = original ? (original.versionOf ?? original.id) : null
      const turn = turnOf({ id: turns.length + 1, question, ...choice, state: 'waiting', versionOf })
      turns.push(turn)
      tell(turn)
      last = last.then(() => run(turn))
      return turn.id
    },
    stop() {
      const turn = running ?? turns.find(({ state }) => state === 'waiting')
      if (!turn) return
      turn.state = 'stopped'
      tell(turn)
    },
    map_ends: (args) => mind(args).ends.slice().buffer,
    map_counts: (args) => mind(args).counts(args.layer, args.lift).buffer,
    show_less_memory: (args) => void less(turnAt(args)),
    map_levels: (args) => mind(args).levels(turnAt(args).levels).buffer,
    map_picture: (args) =>
      mind(args).picture(args.from, args.to, args.columns, args.heads, args.of === 'attention').buffer,
    map_token: (args) => mind(args).token(args.token, pages),
    map_table: (args) => mind(args).table(pages, args.layer),
    map_layers: (args) => mind(args).layerRows(),
    map_attended: (args) =>
      wordsOf(turnAt(args).answer).map((word) => ({ said: word.index, cells: mind(args).lookedAt(word[0]) })),
    map_evictions: (args) => mind(args).evictions(turnAt(args).hasReplay ? wordsOf(ANSWER).length : 0).buffer,
    report: (args) => console.error('reported', args),
  }
  mockWindows('main')
  // The other commands do nothing.
  mockIPC(async (name, args) => answers[name]?.(args as unknown as Arguments) ?? null)
}
