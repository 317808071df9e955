/**
 * Answers the page's commands without the program, for developing the page (`vite build --mode mock`, `vite --mode
 * mock`). Never in the production build. Options: `?document=none|sample|long`, `?theme=`, `?slow=`,
 * `?pages=`, `?lift`, `?replay`, `?doubt=unseen|forgotten`;
 * `window.mock.emit(event)` sends any event.
 */
import { mockIPC, mockWindows } from '@tauri-apps/api/mocks'
import sample from '../../../assets/sample.txt?raw'
import suggested from '../../../assets/sample.json'
import type {
  AppEvent,
  Choice,
  DocumentFacts,
  EarlierTurns,
  Memory,
  Parameters,
  PictureOf,
  Relation,
  Settings,
  Snapshot,
  Theme,
  Turn,
} from '../lib/contract'
import { begun, referenceOf, runOf } from './comparison'
import { mockConversations, nameOf, type Which } from './conversations'
import { longText, outlineOf, pagesOf } from './long'
import { LEVELS, Mind } from './mind'
import { mockModels } from './models'
import { mockQuestions, type Asked } from './questions'

declare global {
  interface Window {
    mock: { emit: (event: AppEvent) => void; calls: { name: string; args: unknown }[]; refuse: Record<string, string> }
    __TAURI_INTERNALS__: { runCallback: (id: number, data: unknown) => void }
  }
}

const wait = (ms: number) => new Promise((resolve) => setTimeout(resolve, ms))

const STREAMING =
  'This document has 1,234,567 tokens (pieces of words), and Llama 3.1 8B Instruct takes 131,072 at once. It is read in pieces, and the model forgets as it goes, so answers may miss things. A model with a longer context reads it whole.'

export function start(): void {
  const query = new URLSearchParams(location.search)
  const slow = Number(query.get('slow') ?? 1)
  const long = query.get('document') === 'long'
  const layers = long ? 32 : 6
  const kvHeads = long ? 8 : 2
  const bytesPerRow = layers * kvHeads * 64 * 2 * 2
  let channel = 0
  let index = 0
  let turnId = 1000
  let documentId = 0
  let text = ''
  let which: Which = 'sample'
  const minds = new Map<number, Mind>()

  const emit = (event: AppEvent) => window.__TAURI_INTERNALS__.runCallback(channel, { message: event, index: index++ })
  const calls: { name: string; args: unknown }[] = []
  const refuse: Record<string, string> = {}
  window.mock = { emit, calls, refuse }

  const settings: Settings = {
    theme: (query.get('theme') as Theme | null) ?? 'system',
    model: 'mini',
    method: 'auto',
    parameters: {},
    budget: null,
    maxTokens: 512,
    repeatPenalty: null,
    zoom: 100,
    keep: 'q8_0',
    keepBudget: null,
    cache: null,
    memory: null,
    device: null,
    sidebar: null,
  }

  function textOf(which: Which): string {
    if (which === 'long') return longText(Number(query.get('pages') ?? 312))
    return which === 'sample' ? ((window as unknown as { mockText?: string }).mockText ?? sample) : which
  }

  function open(wanted: Which): DocumentFacts | null {
    if (wanted === 'none') return null
    which = wanted
    text = textOf(which)
    const pages = which === 'long' ? pagesOf(text) : []
    return {
      id: ++documentId,
      pageNoun: 'page',
      name: nameOf(which),
      kind: which === 'long' ? 'pdf' : 'text',
      sourceBytes: text.length,
      length: text.length,
      pages,
      documents: [],
      outline: outlineOf(text, pages),
      notes: which === 'long' ? ['Page 12 has no text: it may be a picture.'] : [],
      tokens: new Mind(text, '', layers, kvHeads).ends.length,
      moreTokens: false,
      tooLong: null,
      streaming: query.has('streaming') ? STREAMING : null,
      sample: which === 'sample',
      beyondBox: which !== 'sample',
      suggestions: which === 'sample' ? [suggested.question, ...suggested.more.slice(0, 4).map((m) => m.question)] : [],
    }
  }

  const snapshot: Snapshot = {
    settings,
    models: [
      { id: 'mini', label: 'mini', inBox: true, stretch: null },
      { id: 'm1', label: 'Llama-3.1-8B-Instruct-Q4_K_M.gguf', inBox: false, stretch: null },
    ],
    model: {
      name: long ? 'Llama 3.1 8B Instruct' : 'Kept mini',
      file: long ? 'Llama-3.1-8B-Instruct-Q4_K_M.gguf' : 'mini.gguf',
      quantisation: long ? 'Q4_K_M' : 'Q8_0',
      layers,
      kvHeads,
      context: long ? 131072 : 8192,
      parameters: long ? 8.03e9 : 5.1e6,
      weightsBytes: long ? 4.9e9 : 5.6e6,
      stretch: null,
      canThink: long,
      computesOn: 'the processor',
      whyProcessor: null,
    },
    modelError: null,
    methods: [
      { name: 'full', title: 'Full cache', paper: '', keeps: 'everything', acts: 'never', parameters: [], streams: false, seesQuestion: true },
      ...[
        ['streaming_llm', 'StreamingLLM', 'arXiv 2309.17453', 'the first tokens and the most recent ones'],
        ['h2o', 'H2O', 'arXiv 2306.14048', 'what all queries so far attended to most, and the most recent tokens'],
        ['tova', 'TOVA', 'arXiv 2401.06104', 'what the last query attends to, the same in every head of a layer'],
        ['snapkv', 'SnapKV', 'arXiv 2404.14469', 'what the last queries attend to, with neighbours, per kv head'],
        ['pyramidkv', 'PyramidKV', 'arXiv 2406.02069', 'what SnapKV keeps, with more rows in the lower layers'],
        ['chunkkv', 'ChunkKV', 'arXiv 2502.00299', 'whole chunks of text that the last queries attend to'],
        ['treekv', 'TreeKV', 'arXiv 2501.04987', 'tokens from all of the text: dense near the end, sparse further back'],
        ['ems', 'EMS', 'OpenReview 2024', 'what all or the last queries attend to; tokens that are alike share a row'],
      ].map(([name, title, paper, keeps]) => ({ name: name!, title: title!, paper: paper!, keeps: keeps!, acts: 'prefill', parameters: [
        { name: 'w', default: '32, 16 below a budget of 256 rows, 8 below 128', range: 'a whole number from 1', meaning: 'last queries that vote; their tokens are kept' },
        { name: 'kernel', default: '7', range: 'an odd whole number from 1', meaning: 'neighbours a score is pooled over' },
        { name: 'pooling', default: 'max', range: 'max or avg', meaning: 'how a score is pooled' },
        { name: 'sinks', default: '4', range: 'a whole number from 0 (0 is the paper\'s)', meaning: 'first tokens that are always kept' },
        { name: 'decode_cap', default: 'off', range: 'a whole number from the budget on', meaning: 'rows per head that the cache is cut back to while answering (not in the paper)' },
      ], streams: ['streaming_llm', 'h2o', 'tova', 'treekv', 'ems'].includes(name!), seesQuestion: true })),
    ], // prettier-ignore
    document: open(query.get('document') ?? 'sample'),
    opening: null,
    turns: [],
    conversations: [],
    conversation: null,
    comparison: null,
    draft: '',
    thinking: false,
    worker: { state: 'ready', message: null },
    vault: { kind: 'q8_0', folder: '/home/ann/.cache/kept/vaults', documents: 3, bytes: 8.6e9, budget: 20 * 2 ** 30, stored: [] },
    reading: null,
    gpus: { gpus: [], whyNone: 'No NVIDIA driver was found (libcuda); without one Kept answers on the processor.' },
    saves: true,
    version: '0.1.0',
  }

  function rowsOf(budget: string | null, tokens: number): number {
    const share = /^([\d.]+)%$/.exec(budget ?? '25%')
    return Math.min(
      tokens,
      share ? Math.max(1, Math.floor((tokens * Number(share[1])) / 100)) : Number.parseInt(budget ?? '256'),
    )
  }

  function memory(kept: number, full: number): Memory {
    const weights = snapshot.model?.weightsBytes ?? 0
    return {
      weights,
      kept,
      keptFull: full,
      tables: 0,
      scratch: long ? 6.1e8 : 4.2e6,
      resident: null,
      available: long ? 9.1e9 : 21.4e9,
      total: 25.2e9,
    }
  }

  /** The newest version of each question that was answered before. */
  function before(turn: Turn): Turn[] {
    const first = (other: Turn) => other.versionOf ?? other.id
    const answered = conversations.turns().filter((other) => other.state === 'done' && first(other) < first(turn))
    return [...new Map(answered.map((other) => [first(other), other])).values()]
  }

  /** Questions whose answers the model sees. */
  const seen = ({ turn, alone }: Asked) => (alone || !long ? 0 : before(turn).length)

  /** The last of them are kept whole. */
  function earlier(id: number, layer: number | null): EarlierTurns | null {
    const turn = conversations.turns().find((one) => one.id === id)
    const said = turn ? before(turn).slice(0, turn.facts?.turnsSeen ?? 0) : []
    if (said.length === 0) return null
    const result: EarlierTurns = {
      text: '',
      turns: [],
      ends: [],
      counts: [],
      slots: kvHeads * (layer === null ? layers : 1),
    }
    said.forEach(({ question, answer }, i) => {
      const place = (part: string): [number, number] => {
        if (result.text) result.text += '\n\n'
        const start = result.text.length
        result.text += part
        for (const word of part.matchAll(/\s*\S+/g)) {
          result.ends.push(start + word.index + word[0].length)
          result.counts.push(i >= said.length - 2 || result.ends.length % 3 === 0 ? result.slots : 0)
        }
        return [start, result.text.length]
      }
      const from = result.counts.length
      const places = { question: place(question), answer: place(answer) }
      const own = result.counts.slice(from)
      const kept = own.reduce((sum, count) => sum + count, 0) / (own.length * result.slots)
      result.turns.push({ number: i + 1, ...places, kept })
    })
    return result
  }

  async function run(asked: Asked, tell: (event: AppEvent) => void): Promise<void> {
    const { turn } = asked
    const mind = new Mind(text, turn.question, layers, kvHeads, rowsOf(turn.budget, snapshot.document?.tokens ?? 1))
    minds.set(turn.id, mind)
    const tokens = mind.ends.length
    const full = tokens * bytesPerRow
    const kept = rowsOf(turn.budget, tokens) * bytesPerRow
    const failed = () => asked.stopped
    await wait(150 * slow)
    if (!failed()) {
      turn.state = 'reading'
      tell({ event: 'turn', turn: { ...turn } })
    }
    const steps = 40
    for (let step = 1; step <= steps && !failed(); step++) {
      await wait(40 * slow)
      const layer = Math.floor((step / steps) * layers)
      if (layer > mind.layersDone) {
        mind.layersDone = layer
        tell({ event: 'map', turn: turn.id, layersDone: layer, layers })
      }
      tell({
        event: 'progress',
        turn: turn.id,
        progress: {
          phase: 'reading',
          tokensDone: (tokens * step) / steps,
          tokensTotal: tokens,
          tokensPerSecond: 812,
          secondsLeft: ((steps - step) * 40 * slow) / 1000,
          tokensFromVault: 0,
        },
        memory: memory((kept * step) / steps, full),
      })
    }
    turn.hasMap = mind.layersDone > 0
    const answer =
      turn.question.length > 200
        ? 'A longer answer. '.repeat(300)
        : 'The lessor pays for **structural repairs** to the quay wall, including storm damage, unless the tenant moored vessels above the agreed draught.\n\nIn that case:\n\n- the costs are shared *equally*;\n- a written warning, at least ten days before, moves the share back to `4711`.\n'
    if (!failed()) {
      turn.state = 'answering'
      tell({ event: 'turn', turn: { ...turn } })
      for (const piece of answer.match(/\s*\S+/g) ?? []) {
        if (failed()) break
        turn.answer += piece
        tell({ event: 'token', turn: turn.id, text: piece, attended: mind.lookedAt(piece) })
        await wait(25 * slow)
      }
    }
    turn.state = failed() ? 'stopped' : 'done'
    if (!failed()) {
      turn.sources = mind.sources(snapshot.document?.pages ?? [], query.get('doubt') === 'unseen' ? 0.1 : 0.3)
      if (query.get('doubt') === 'forgotten') for (const source of turn.sources) source.kept = 0.04
      turn.hasLift = query.has('lift')
      turn.hasReplay = query.has('replay')
      turn.facts = {
        finish: 'end',
        promptTokens: tokens,
        answerTokens: 61,
        rows: kept / bytesPerRow,
        keptBytes: kept,
        fullBytes: full,
        firstTokenSeconds: 1.4,
        prefillSeconds: 1.3,
        decodeSeconds: 1,
        tokensPerSecond: 61,
        notes: [],
        chosen: null,
        tokensFromVault: 0,
        turnsSeen: seen(asked),
        turnsKept: null,
        citations: query.has('doubt') ? [] : [{ end: answer.indexOf('.') + 1, source: 0 }],
        streamed: false,
        cache: snapshot.settings.cache ?? 'f16',
      }
    }
    tell({ event: 'map', turn: turn.id, layersDone: mind.layersDone, layers })
    tell({ event: 'turn', turn: { ...turn } })
  }

  async function less(id: number): Promise<void> {
    const turn = conversations.turns().find((turn) => turn.id === id)
    if (!turn) return
    for (turn.levels = 1; turn.levels <= LEVELS.length; turn.levels++) {
      await wait(60 * slow)
      turn.levelsDone = turn.levels === LEVELS.length
      emit({ event: 'turn', turn: structuredClone(turn) })
      if (turn.levelsDone) return
    }
  }

  const models = mockModels(emit)
  const questions = mockQuestions(emit, run, () => comparing > 0)
  const conversations = mockConversations(
    emit,
    textOf,
    (turns, wanted) => {
      questions.leave()
      if (wanted && (wanted !== which || !snapshot.document)) snapshot.document = open(wanted)
      emit({ event: 'document', document: snapshot.document, turns: structuredClone(turns) })
    },
    (turn) => {
      const id = ++turnId
      const mind = minds.get(turn.id)
      if (mind) minds.set(id, mind)
      return { ...turn, id }
    },
    () => (questions.busy() || comparing > 0 ? 'A question is still being answered: stop it first.' : null),
  )
  snapshot.conversations = conversations.list()
  let comparing = 0
  let comparedRuns: { question: string; runs: Choice[] } = { question: '', runs: [] }
  /** Ends, or shares of a run. */
  function compared(run: number | null): Uint32Array<ArrayBuffer> | Uint8Array<ArrayBuffer> | null {
    const choice = run === null ? null : comparedRuns.runs[run]
    const rows = rowsOf(choice?.budget ?? null, snapshot.document?.tokens ?? 1)
    const mind = new Mind(text, comparedRuns.question, layers, kvHeads, rows)
    if (!choice) return mind.ends.slice()
    mind.layersDone = layers
    const counts = mind.counts(null)
    // The last tokens, whatever is asked.
    if (choice.method === 'streaming_llm')
      counts.forEach((_, i) => (counts[i] = i < 4 || i > counts.length - rows ? layers * kvHeads : 0))
    return Uint8Array.from(counts, (count) => Math.round((count * 255) / (layers * kvHeads)))
  }
  async function compare(question: string, runs: Choice[]): Promise<void> {
    const id = (comparing = Math.abs(comparing) + 1)
    comparedRuns = { question, runs }
    const tokens = snapshot.document?.tokens ?? 1
    emit({ event: 'comparison', comparison: begun(id, question, runs, snapshot.document?.name ?? '') })
    for (let run = -1; run < runs.length; run++) {
      for (let step = 1; step <= 12 && comparing === id; step++) {
        await wait(30 * slow)
        const progress = { phase: 'reading' as const, tokensDone: (tokens * step) / 12, tokensTotal: tokens, tokensPerSecond: 812, secondsLeft: 1, tokensFromVault: 0 }
        emit({ event: 'comparisonProgress', comparison: id, run: run < 0 ? null : run, sharing: 1, progress })
      }
      if (comparing !== id) {
        emit({ event: 'comparisonEnded', comparison: id, state: 'stopped', error: null })
        return questions.next()
      }
      if (run < 0)
        emit({ event: 'comparisonReference', comparison: id, result: { seconds: 1.6, report: referenceOf(tokens, layers, kvHeads, tokens * bytesPerRow) } })
      else
        emit({ event: 'comparisonRun', comparison: id, run, result: { seconds: 1.4, report: runOf(runs[run]!, run, tokens, layers, tokens * bytesPerRow) } })
    }
    comparing = -comparing
    emit({ event: 'comparisonEnded', comparison: id, state: 'done', error: null })
    return questions.next()
  } // prettier-ignore

  function show(wanted: Which): null {
    questions.leave()
    snapshot.document = open(wanted)
    emit({ event: 'document', document: snapshot.document, turns: [] })
    conversations.leave()
    return null
  }

  mockWindows('main')
  mockIPC(async (name, payload) => {
    const args = (payload ?? {}) as {
      channel: { id: number }
      settings: Settings
      method: string
      parameters: Parameters
      budget: string | null
      runs: Choice[]
      question: string
      choice: Choice
      relation: Relation
      text: string
      turn: number
      layer: number | null
      lift: boolean
      token: number
      run: number | null
      from: number
      to: number
      columns: number
      heads: boolean
      of: PictureOf
      thinking: boolean
      id: string | number
      stretch: string | null
      name: string
      reference: string
      title: string
      pinned: boolean
      query: string
    }
    calls.push({ name, args })
    if (refuse[name]) throw refuse[name]
    const mind = () => {
      const found = minds.get(args.turn)
      if (!found) throw 'There is no map of this answer.'
      return found
    }
    switch (name) {
      case 'subscribe':
        channel = args.channel.id
        return null
      case 'snapshot':
        return structuredClone(snapshot)
      case 'document_text':
        return new TextEncoder().encode(text).buffer
      case 'save_settings': {
        const kernel = args.settings.parameters['snapkv']?.['kernel']
        if (kernel !== undefined && Number(kernel) % 2 !== 1)
          throw `“${kernel}” is not possible: kernel takes an odd whole number from 1.`
        return Object.assign(snapshot.settings, args.settings)
      }
      case 'check_method':
        if (args.parameters['w'] !== undefined && !(Number(args.parameters['w']) >= 1))
          throw `“${args.parameters['w']}” is not possible: w takes a whole number from 1.`
        return null
      case 'compare':
        void compare(args.question, args.runs)
        return comparing
      case 'stop_comparison':
        comparing = -comparing
        return null
      case 'estimate': {
        const tokens = snapshot.document?.tokens ?? 0
        const rows = args.method === 'full' ? tokens : rowsOf(args.budget, tokens)
        if (!Number.isFinite(rows))
          throw `"${String(args.budget)}" is not a budget: write rows (512), a share (25%) or bytes (64MiB).`
        return {
          promptTokens: tokens,
          rows,
          memory: memory(rows * bytesPerRow, tokens * bytesPerRow),
          notes: [],
          chosen: null,
          tokensFromVault: 0,
          tokensToRepeat: 0,
          cache: snapshot.settings.cache ?? 'f16',
        }
      }
      case 'ask': {
        const { again, edits, alone } = args.relation
        const original = conversations.turns().find((turn) => turn.id === again)
        if (edits !== null) conversations.branch(edits, args.question)
        const turn: Turn = {
          id: ++turnId,
          question: args.question,
          answer: '',
          state: 'waiting',
          error: null,
          ...args.choice,
          cache: snapshot.settings.cache,
          memory: snapshot.settings.memory,
          model: snapshot.models.find(({ id }) => id === snapshot.settings.model)?.label ?? 'mini',
          sources: [],
          facts: null,
          hasMap: false,
          thinking: snapshot.thinking,
          windows: [],
          hasLift: false,
          hasReplay: false,
          levels: 0,
          levelsDone: false,
          versionOf: original ? (original.versionOf ?? original.id) : null,
        }
        conversations.add(turn, which)
        questions.ask(turn, alone)
        return turn.id
      }
      case 'remove_waiting':
        questions.remove(args.turn)
        conversations.remove(args.turn)
        return null
      case 'stop':
        questions.stop()
        return null
      case 'open_text':
        if (questions.busy()) throw 'Kept is still working on the open document: stop it or wait until it is done.'
        if (args.text.trim() === '') throw 'There is no text to open.'
        return show(args.text)
      case 'open_sample':
        return show('sample')
      case 'choose_document':
        return show('long')
      case 'close_document':
        questions.leave()
        snapshot.document = null
        emit({ event: 'document', document: null, turns: [] })
        conversations.leave()
        return null
      case 'map_ends':
        return mind().ends.slice().buffer
      case 'map_counts':
        return mind().counts(args.layer, args.lift).buffer
      case 'show_less_memory':
        mind()
        void less(args.turn)
        return null
      case 'map_levels':
        return mind().levels(conversations.turns().find(({ id }) => id === args.turn)?.levels ?? 0).buffer
      case 'compared_map': {
        const found = snapshot.document && compared(args.run)
        if (!found) throw 'There is no map of this answer.'
        return found.buffer
      }
      case 'map_picture':
        return mind().picture(args.from, args.to, args.columns, args.heads, args.of === 'attention').buffer
      case 'save_export':
        return null
      case 'map_token':
        return mind().token(args.token, snapshot.document?.pages ?? [])
      case 'map_table':
        return mind().table(snapshot.document?.pages ?? [], args.layer)
      case 'map_layers':
        return mind().layerRows()
      case 'map_earlier':
        return earlier(args.turn, args.layer)
      case 'map_attended': {
        const { answer } = conversations.turns().find(({ id }) => id === args.turn)!
        const pieces = [...answer.matchAll(/\s*\S+/g)]
        return pieces.map((piece) => ({ said: piece.index, cells: mind().lookedAt(piece[0]) }))
      }
      case 'map_evictions': {
        const { answer, hasReplay } = conversations.turns().find(({ id }) => id === args.turn)!
        return mind().evictions(hasReplay ? (answer.match(/\s*\S+/g) ?? []).length : 0).buffer
      }
      case 'set_thinking':
        snapshot.thinking = args.thinking
        emit({ event: 'thinking', thinking: args.thinking })
        return null
      case 'report':
        console.error('reported', args)
        return null
      default:
        return /_conversations?$/.test(name) ? conversations.answer(name, args) : models(name, args)
    }
  })
}
