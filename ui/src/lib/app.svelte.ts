/**
 * The app's state, and its changes by the program's events. No calls and no DOM: `actions.ts` has the calls, the
 * components render. The document's text and the maps are stored elsewhere (see `text.svelte.ts`, `map.svelte.ts`).
 */
import type {
  AppEvent,
  Gpus,
  Choice,
  Comparison,
  ConversationEntry,
  DocumentFacts,
  Download,
  Elsewhere,
  Estimate,
  FoundPassage,
  Library,
  Memory,
  MethodFacts,
  ModelChoice,
  ModelFacts,
  NoticePlace,
  Parameters,
  PendingFile,
  Progress,
  ReadAhead,
  Refusal,
  Settings,
  Snapshot,
  Source,
  Turn,
  TurnState,
  Vault,
  WorkerState,
} from './contract'
import { trailOf, type Cells } from './attended'
import { percent, shorten } from './format'
import { AUTO, AUTOMATIC } from './methods'
import { modelName } from './models'
import { withSpeeds, type Speeds } from './speed'
import { backgroundSweepOf, sweepOf } from './sweep'
import { parted } from './thoughts'
import { newestOf } from './versions'

export type Place = NoticePlace | 'budget'

export interface Notice {
  id: number
  kind: 'error' | 'info'
  where: Place
  message: string
  /** Only true while something runs. */
  passing: boolean
}

/** The last progress and memory of a question that runs or ran since the app started. */
export interface Live {
  turn: number
  progress: Progress
  memory: Memory
}

/** States of a conversation that is not open in which something runs or waits there. */
export const WORKING: readonly Elsewhere['state'][] = ['waiting', 'answering', 'comparing']
const RUNNING: readonly TurnState[] = ['asked', 'reading', 'answering']
/** Maximum notices per location: only the newest are shown. */
const MOST_NOTICES = 3
/** Events that show that the engine works: on a question, or on the section of the document that it waits for. */
const SIGNS_OF_WORK: ReadonlySet<AppEvent['event']> = new Set(['turn', 'token', 'progress', 'map', 'readAhead'])

interface TypedIn {
  document: number | null
  conversation: number | null
}

const placeOf = ({ document, conversation }: TypedIn) =>
  conversation === null ? `document ${document}` : `conversation ${conversation}`

export class AppState {
  loaded = $state(false)
  settings = $state.raw<Settings>({
    theme: 'system',
    model: 'mini',
    method: AUTO,
    parameters: {},
    budget: null,
    maxTokens: 512,
    instructions: '',
    temperature: 0,
    repeatPenalty: null,
    zoom: 100,
    keep: 'q8_0',
    keepBudget: null,
    cache: null,
    memory: null,
    device: null,
    sidebar: null,
  })
  models = $state.raw<ModelChoice[]>([])
  model = $state.raw<ModelFacts | null>(null)
  modelError = $state<string | null>(null)
  methods = $state.raw<MethodFacts[]>([])
  document = $state.raw<DocumentFacts | null>(null)
  opening = $state<string | null>(null)
  /** Pages of the file that is being opened whose text was recognised, of how many. */
  recognising = $state.raw<{ done: number; pages: number } | null>(null)
  turns = $state<Turn[]>([])
  /** All conversations with a question, in the order of the list. */
  conversations = $state.raw<ConversationEntry[]>([])
  /** The conversations that were just deleted, the last one at the end, while undoing that is offered. */
  deleted = $state.raw<ConversationEntry[]>([])
  /** The open conversation's id; null until it has a question. */
  conversation = $state<number | null>(null)
  /** The conversation that the user chose last, until it is open. */
  coming = $state<number | null>(null)
  /** Conversations that were left while they worked, until they are opened again. */
  elsewhere = $state.raw<Elsewhere[]>([])
  /** The conversation whose comparison is shown, once it is open. */
  comparesIn = $state<number | null>(null)
  comparison = $state.raw<Comparison | null>(null)
  /** It is complete, and was not looked at since. */
  newlyCompared = $state(false)
  /** Installed and recommended models; null before the first search. */
  library = $state.raw<Library | null>(null)
  downloads = $state.raw<Download[]>([])
  /** Whether models that can think do so before they answer, in this conversation. */
  thinking = $state(false)
  /** A file that waits for its password, or for the recognition of its text. */
  pending = $state.raw<PendingFile | null>(null)
  /** Whether a dialog asks about that file; one that is open already only has an offer above its page. */
  readonly asks = $derived(this.pending?.needs.kind === 'password' || this.pending?.needs.open === false)
  worker = $state.raw<WorkerState>({ state: 'starting', message: null })
  /** The vaults on disk. */
  vault = $state.raw<Vault | null>(null)
  /** The document was read last without being stored in the vault: the next question reads it again. */
  unwritten = $state(false)
  /** Reading the document in the background, while it runs or is stopped before its end. */
  reading = $state.raw<ReadAhead | null>(null)
  gpus = $state.raw<Gpus>({ gpus: [], whyNone: null })
  saves = $state(true)
  /** Why the last changes are not on the disk yet. */
  saveError = $state<string | null>(null)
  version = $state('')

  live = $state.raw<Live | null>(null)
  /** What the latest pieces of the running answer looked at. */
  looking = $state.raw<{ turn: number; cells: Cells } | null>(null)
  drag = $state.raw<{ files: number; refusal: string | null } | null>(null)
  notices = $state<Notice[]>([])
  /** The turn whose map is shown. */
  selected = $state<number | null>(null)
  /** Progress of a turn's map: the number of layers received. */
  mapped = $state.raw<{ turn: number; layersDone: number; layers: number } | null>(null)
  /** The list of conversations is shown. */
  sidebar = $state(false)
  /** A found passage to show, once its conversation is open. */
  goal = $state.raw<FoundPassage | null>(null)
  /** Text for screen readers, updated in steps. */
  announcement = $state('')

  /** The composer's text. */
  draft = $state('')
  /** Turns that were removed before they were asked. */
  readonly removed = new Set<number>()
  /** The turn whose question is being edited in the composer, and the draft from before. */
  editing = $state.raw<{ turn: number; draft: string } | null>(null)
  /** The budget while the slider moves; undefined at rest. */
  budgetPreview = $state<string | null | undefined>(undefined)
  /** Tokens read per second by each model, as measured last. */
  speeds = $state.raw<Speeds>({})
  estimate = $state.raw<Estimate | null>(null)
  estimateError = $state.raw<Refusal | null>(null)
  /** The estimate of a question that went on while its conversation was left: none is made while one runs. */
  #planned: { turn: number; estimate: Estimate } | null = null
  /** The estimate from before the last question ended: it does not count what that question put into the vault. */
  outdated = $state.raw<Estimate | null>(null)

  /** Time at which the worker became ready, in milliseconds since 1970: it may still be receiving its document. */
  readySince = 0
  /** Time of the program's last event about a question, in milliseconds since 1970. */
  heard = 0

  /** Drafts of conversations and documents that are not open. */
  #drafts = new Map<string, string>()
  /** The document and the conversation to which the draft belongs. */
  #typedIn: TypedIn = { document: null, conversation: null }

  /** Received pieces of answers that are not in `turns` yet. */
  #pieces = new Map<number, string>()
  #announced = 0
  /** The file of the model that was open last. */
  #costedFile: string | null = null
  #noticeId = 0

  /** The running question. At most one. */
  running = $derived(this.turns.find((turn) => RUNNING.includes(turn.state)) ?? null)
  /** How far in the document the running question has read, as a share of it; null while it does not read. */
  sweep = $derived(this.live && this.live.turn === this.running?.id ? sweepOf(this.live.progress) : null)
  /** The same of reading in the background. */
  backgroundSweep = $derived(
    this.reading?.progress && this.reading.running
      ? backgroundSweepOf(this.reading.progress, this.document?.tokens ?? 0)
      : null,
  )
  /** Whether questions wait for their turn. */
  waiting = $derived(this.turns.some((turn) => turn.state === 'waiting'))
  shown = $derived(this.turns.find((turn) => turn.id === this.selected) ?? null)
  /** The passages that the shown answer stands on. */
  used = $derived<readonly Source[]>(this.shown?.sources ?? [])
  /** All choices: Automatic, then the engine's methods. */
  offered = $derived<MethodFacts[]>([AUTOMATIC, ...this.methods])
  method = $derived(this.offered.find((method) => method.name === this.settings.method) ?? null)
  /** The conversation has no document: the open one is empty. */
  chatting = $derived(this.document?.length === 0)
  /** What a question is for. */
  invitation = $derived.by(() => {
    if (this.chatting) return 'Ask anything'
    if (!this.document) return this.opening !== null || this.coming !== null ? 'Opening…' : 'Open a document first'
    return `Ask about ${this.document.documents.length > 0 ? 'these documents' : 'this document'}`
  })
  /** The document exceeds the model's context length, and the current method does not support streaming mode. */
  stuck = $derived(!!this.document?.streaming && this.method !== null && !this.method.streams)
  modelChoice = $derived(this.models.find((model) => model.id === this.settings.model) ?? null)
  /** The labels of the models of this conversation's turns, and of the one now chosen. */
  labels = $derived(
    new Set([...this.turns.map(({ model }) => model), ...(this.modelChoice ? [this.modelChoice.label] : [])]),
  )
  /** Why the current budget is impossible; null if it is possible, or if the reason lies elsewhere. */
  budgetError = $derived(
    this.document && !this.document.tooLong && !this.stuck && this.model && this.worker.state === 'ready'
      ? this.estimateError
      : null,
  )
  budget = $derived(this.budgetPreview === undefined ? this.settings.budget : this.budgetPreview)
  /** The current method's non-default parameters. */
  parameters = $derived<Parameters>(this.settings.parameters[this.settings.method] ?? {})
  /** The choice for the next question. */
  choice = $derived<Choice>({ method: this.settings.method, parameters: this.parameters, budget: this.budget })
  comparing = $derived(this.comparison?.state === 'running')
  /** Whether a question or a comparison of the open conversation runs or waits. */
  busy = $derived(this.running !== null || this.waiting || this.comparing)
  /** Whether one of another conversation does. */
  awayBusy = $derived(this.elsewhere.some(({ state }) => WORKING.includes(state)))
  /** Whether one of any conversation does. */
  engaged = $derived(this.busy || this.awayBusy)

  /** Loads the whole state, at the start. */
  load(snapshot: Snapshot): void {
    const { turns, drafts, ...facts } = snapshot
    Object.assign(this, facts satisfies Partial<AppState>)
    this.#costedFile = snapshot.model?.file ?? null
    this.#setTurns(turns)
    this.#typedIn = { document: snapshot.document?.id ?? null, conversation: snapshot.conversation }
    this.#drafts = new Map(Object.entries(drafts))
    this.#takeDraft()
    this.sidebar = snapshot.settings.sidebar ?? snapshot.conversations.length > 1
    this.selected = newestOf(snapshot.turns)?.id ?? null
    this.readySince = this.heard = Date.now()
    this.loaded = true
  }

  apply(event: AppEvent): void {
    this.#apply(event)
    if (!this.engaged && this.notices.some((n) => n.passing)) this.notices = this.notices.filter((n) => !n.passing)
  }

  #apply(event: AppEvent): void {
    if (SIGNS_OF_WORK.has(event.event)) this.heard = Date.now()
    switch (event.event) {
      case 'worker':
        if (event.worker.message && event.worker.message !== this.worker.message)
          this.announcement = event.worker.message
        // The worker's own message is sufficient; notices about a failed worker disappear with the failure.
        if (event.worker.state === 'failed' || this.worker.state === 'failed') this.dismissAll('conversation')
        if (event.worker.state === 'ready' && this.worker.state !== 'ready') this.readySince = Date.now()
        this.worker = event.worker
        return
      case 'models':
      case 'thinking':
      case 'vault':
      case 'saving':
      case 'readAhead':
      case 'gpus':
      case 'library': {
        const { event: _, ...facts } = event
        Object.assign(this, facts satisfies Partial<AppState>)
        return
      }
      case 'model':
        // The same model after a restart of the worker: the estimate is still valid.
        if (event.model && event.model.file !== this.#costedFile) this.estimate = null
        if (event.model) this.#costedFile = event.model.file
        this.model = event.model
        this.modelError = event.error
        return
      case 'recognising':
        this.recognising = { done: event.done, pages: event.pages }
        return
      case 'opening':
        this.opening = event.name
        this.recognising = null
        if (event.name) {
          this.announcement = `Opening ${event.name}`
          this.dismissAll('document')
        }
        return
      case 'document':
        return this.#takeDocument(event.document, event.turns)
      case 'conversations':
        this.conversations = event.conversations
        this.#go(event.current)
        return
      case 'turn':
        return this.#takeTurn(event.turn)
      case 'turnRemoved':
        return this.#removeTurn(event.turn)
      case 'token':
        this.#pieces.set(event.turn, (this.#pieces.get(event.turn) ?? '') + event.text)
        this.#look(event.turn, event.attended)
        return
      case 'progress':
        return this.#takeProgress(event)
      case 'map':
        this.mapped = { turn: event.turn, layersDone: event.layersDone, layers: event.layers }
        return
      case 'comparison':
        this.comparison = event.comparison
        this.newlyCompared = false
        if (event.comparison) this.dismissAll('comparison')
        return
      case 'comparisonReference':
      case 'comparisonRun':
      case 'comparisonProgress':
      case 'comparisonEnded':
        return this.#takeComparison(event)
      case 'downloads':
        return this.#takeDownloads(event.downloads)
      case 'elsewhere':
        return this.#takeElsewhere(event.elsewhere)
      case 'pending':
        this.pending = event.file
        return
      case 'drag':
        this.drag = event.files > 0 ? { files: event.files, refusal: event.refusal } : null
        return
      case 'notice':
        this.notify(event.where, event.message, event.kind)
        return
    }
  }

  #look(turn: number, latest: Cells): void {
    const before = this.looking?.turn === turn ? this.looking.cells : []
    this.looking = { turn, cells: trailOf(before, latest) }
  }

  /** Whether pieces are pending for `writePieces`. */
  get hasPieces(): boolean {
    return this.#pieces.size > 0
  }

  /** Appends the pending pieces to their answers; called once per frame. */
  writePieces(): void {
    for (const [id, text] of this.#pieces) {
      const turn = this.turns.find((t) => t.id === id)
      if (turn) turn.answer += text
    }
    this.#pieces.clear()
  }

  notify(where: Place, message: string, kind: 'error' | 'info' = 'error', passing = false): void {
    // What was done before is not news beside what is done now.
    const old = (n: Notice) => n.where === where && (n.message === message || (kind === 'info' && n.kind === 'info'))
    const others = this.notices.filter((n) => !old(n))
    const here = others.filter((n) => n.where === where)
    const surplus = new Set(here.slice(0, Math.max(0, here.length - MOST_NOTICES + 1)).map((n) => n.id))
    this.notices = [
      ...others.filter((n) => !surplus.has(n.id)),
      { id: ++this.#noticeId, kind, where, message, passing },
    ]
  }

  dismiss(id: number): void {
    this.notices = this.notices.filter((notice) => notice.id !== id)
  }

  dismissAll(where: Place): void {
    if (this.notices.some((n) => n.where === where)) this.notices = this.notices.filter((n) => n.where !== where)
  }

  /** Puts a turn's question into the composer, to be edited. */
  edit({ id, question }: Turn): void {
    this.editing = { turn: id, draft: this.editing?.draft ?? this.draft }
    this.draft = question
  }

  /** The draft from before returns to the composer. */
  stopEditing(): void {
    if (this.editing === null) return
    this.draft = this.editing.draft
    this.editing = null
  }

  /** The document was closed: returns to the empty state. */
  close(): void {
    this.#leave()
    this.document = null
    this.#setTurns([])
    this.conversation = null
    this.#pieces.clear()
    this.#forget()
  }

  /** The conversation `current` is open. What is typed stays with the one before, but for a branch or a new conversation. */
  #go(current: number | null): void {
    const { document, conversation } = this.#typedIn
    const chosen = current !== null && current === this.coming && current !== conversation
    const other = this.document !== null && this.document.id !== document
    this.conversation = current
    if (current === this.coming) this.coming = null
    if (chosen || other) {
      this.stopEditing()
      // The first document gets what was typed without one.
      const carried = document === null ? this.draft : ''
      if (document !== null) this.#drafts.set(placeOf(this.#typedIn), this.draft)
      this.#typedIn = { document: this.document?.id ?? null, conversation: current }
      this.#takeDraft(carried)
    }
    this.#typedIn = { document: this.document?.id ?? null, conversation: current }
  }

  #takeDraft(carried = ''): void {
    const place = placeOf(this.#typedIn)
    this.draft = this.#drafts.get(place) || carried
    this.#drafts.delete(place)
  }

  /** Drafts of the open and of all listed conversations; others cannot be opened again. */
  drafts(): Record<string, string> {
    const open = placeOf(this.#typedIn)
    const places = new Set([open, ...this.conversations.map(({ id }) => placeOf({ document: null, conversation: id }))])
    const all = [...this.#drafts, [open, this.draft] as const]
    return Object.fromEntries(all.filter(([place, text]) => places.has(place) && text !== ''))
  }

  /** Nothing is known of the open document's answers yet: the newest turn is shown. */
  #forget(): void {
    this.selected = newestOf(this.turns)?.id ?? null
    this.live = null
    this.mapped = null
    this.estimate = this.#planned?.turn === this.running?.id ? (this.#planned?.estimate ?? null) : null
    this.estimateError = null
  }

  /** Dismisses the notices about the document. */
  #leave(): void {
    if (this.document === null) return
    this.dismissAll('comparison')
    this.dismissAll('document')
    this.dismissAll('conversation')
  }

  #setTurns(turns: Turn[]): void {
    this.turns = turns
    // Those of this session are worth more than those of earlier answers.
    this.speeds = { ...withSpeeds({}, turns), ...this.speeds }
    if (!turns.some((turn) => turn.id === this.editing?.turn)) this.stopEditing()
  }

  #takeDocument(document: DocumentFacts | null, turns: Turn[]): void {
    if (document === null) return this.close()
    const other = document.id !== this.document?.id
    if (other) {
      if (this.running && this.estimate) this.#planned = { turn: this.running.id, estimate: this.estimate }
      this.#leave()
    }
    this.document = document
    this.#pieces.clear()
    this.#setTurns(turns)
    if (!other) {
      if (!turns.some((turn) => turn.id === this.selected)) this.selected = newestOf(turns)?.id ?? null
      return
    }
    this.opening = null
    this.#forget()
    this.announcement = this.chatting ? 'A conversation without a document' : `${document.name} is open`
  }

  #takeTurn(turn: Turn): void {
    // The turn's answer is complete: it includes the pending pieces.
    this.#pieces.delete(turn.id)
    const known = this.turns.find((t) => t.id === turn.id)
    const before = known?.state
    if (known) Object.assign(known, turn)
    else this.turns.push(turn)
    if (before === turn.state) return
    if (before !== undefined && RUNNING.includes(before) && !RUNNING.includes(turn.state)) this.outdated = this.estimate
    this.speeds = withSpeeds(this.speeds, [turn])
    // While a question waits, the map of the running one stays on the page.
    // An attempt that ended without a word begins again.
    const fresh = before === undefined || before === 'failed' || before === 'stopped'
    const begins = fresh ? turn.state !== 'waiting' : before === 'waiting' && this.running?.id === turn.id
    if (begins || this.selected === null) {
      this.selected = turn.id
      this.#announced = 0
      this.mapped = null
    }
    this.announcement = {
      waiting: 'The question waits',
      asked: this.announcement,
      reading: 'Reading the document',
      answering: 'Answering',
      done: `Answer: ${parted(turn.answer).answer.slice(0, 2000)}`,
      stopped: 'Stopped',
      failed: turn.error ?? 'The question failed',
    }[turn.state]
    if (turn.state === 'failed' && (before === 'asked' || before === 'waiting')) this.#giveBack(turn)
  }

  /** A question that was refused before prefill returns to the composer, where it can be edited. */
  #giveBack(turn: Turn): void {
    if (turn.answer === '' && this.worker.state === 'ready') this.#offer(turn.question)
  }

  /** Puts a question into the composer if that is empty. */
  #offer(question: string): void {
    if (this.editing === null && this.draft.trim() === '') this.draft = question
  }

  #removeTurn(id: number): void {
    const index = this.turns.findIndex((turn) => turn.id === id)
    const [removed] = index < 0 ? [] : this.turns.splice(index, 1)
    if (!removed) return
    this.removed.add(id)
    if (this.selected === id) this.selected = newestOf(this.turns, removed)?.id ?? null
    // The question of a version still stands in its card.
    if (removed.versionOf === null) this.#offer(removed.question)
    this.announcement = 'The question is removed'
  }

  #takeComparison(event: Extract<AppEvent, { comparison: number }>): void {
    const before = this.comparison
    if (before?.id !== event.comparison) return
    const next = { ...before, progress: null }
    switch (event.event) {
      case 'comparisonReference':
        // One that continues has its first runs.
        this.comparison = { ...next, reference: event.result, current: next.runs.findIndex((run) => !run.result) }
        return
      case 'comparisonRun': {
        const runs = before.runs.map((run, i) => (i === event.run ? { ...run, result: event.result } : run))
        // Other runs that share the prefill are still running.
        this.comparison = { ...before, runs }
        this.announcement = `Run ${event.run + 1} of ${runs.length} is done`
        return
      }
      case 'comparisonProgress':
        this.comparison = { ...before, current: event.run, sharing: event.sharing, progress: event.progress }
        return
      case 'comparisonEnded': {
        const words = { running: '', done: 'The comparison is complete', stopped: 'Stopped', failed: event.error ?? '' }
        this.announcement = words[event.state]
        this.newlyCompared = event.state === 'done'
        this.comparison = { ...next, state: event.state, error: event.error, current: null }
      }
    }
  }

  #takeElsewhere(elsewhere: Elsewhere[]): void {
    for (const { conversation, question, state } of elsewhere) {
      const before = this.elsewhere.find((known) => known.conversation === conversation)?.state
      if (before === state || (state !== 'done' && state !== 'failed')) continue
      this.announcement = `“${shorten(question, 80)}” ${state === 'done' ? 'is done' : 'could not be done'}`
    }
    this.elsewhere = elsewhere
  }

  #takeDownloads(downloads: Download[]): void {
    for (const download of downloads) {
      const before = this.downloads.find((known) => known.id === download.id)?.state
      if (before === undefined || before === download.state) continue
      const name = modelName(download.reference.split(/[:/]/).at(-1) ?? '')
      if (download.state === 'finished') this.announcement = `${name} is downloaded`
      if (download.state === 'failed') this.announcement = `${name}: ${download.message ?? 'the download failed'}`
    }
    this.downloads = downloads
  }

  #takeProgress({ turn, progress, memory }: Live): void {
    this.live = { turn, progress, memory }
    if (progress.phase !== 'reading' || progress.tokensTotal === 0) return
    const quarter = Math.floor((progress.tokensDone / progress.tokensTotal) * 4)
    if (quarter > this.#announced && quarter < 4) this.announcement = `Reading, ${percent(quarter / 4)}`
    this.#announced = Math.max(this.#announced, quarter)
  }
}
