/**
 * User actions: each calls the program and shows a refusal's message next to the control. The state itself changes only
 * by the program's events (`app.svelte.ts`).
 */
import * as calls from './calls'
import { AUTO } from './methods'
import type {
  AppEvent,
  Choice,
  ConversationEntry,
  FoundPassage,
  Parameters,
  Refusal,
  Relation,
  Settings,
  Turn,
} from './contract'
import type { AppState, Place } from './app.svelte'

const DRAFT_MS = 400
const ESTIMATE_MS = 150
const ESTIMATE_AGAIN_MS = 500
const ESTIMATE_TRIES = 4
/** Time after the worker became ready in which it may not have its document yet. */
const SETTLING_MS = 5000
/** How long undoing a deletion is offered. */
const UNDO_MS = 60_000

const ZOOMS = [50, 60, 70, 80, 90, 100, 110, 120, 130, 150, 175, 200, 250, 300]

/** The next text size in a direction; unchanged at the ends. */
export function nextZoom(zoom: number, direction: number): number {
  return (direction > 0 ? ZOOMS.find((z) => z > zoom) : ZOOMS.findLast((z) => z < zoom)) ?? zoom
}

export class Actions {
  #app: AppState
  #draftTimer: ReturnType<typeof setTimeout> | null = null
  #estimateTimer: ReturnType<typeof setTimeout> | null = null
  #estimateRun = 0
  #undoTimer: ReturnType<typeof setTimeout> | undefined
  /** The deleted conversation that was the open one. */
  #deletedOpen: number | null = null
  #asking = false
  /** The last question from the composer, until it is accepted or refused. */
  #sends: Promise<unknown> = Promise.resolve()

  constructor(app: AppState) {
    this.#app = app
  }

  async #try<T>(where: Place, work: Promise<T>): Promise<T | undefined> {
    try {
      return await work
    } catch (refusal) {
      // What is refused while something runs may be possible afterwards.
      this.#app.notify(where, calls.sentence(refusal), 'error', this.#app.engaged)
      return undefined
    }
  }

  /** Whether a command was accepted. */
  async #accepted(where: Place, work: Promise<unknown>): Promise<boolean> {
    return (await this.#try(where, work)) !== undefined
  }

  /** The refusal of a command, which the caller shows, or null. */
  #refusal = (work: Promise<unknown>): Promise<Refusal | null> => work.then(() => null, calls.refusal)

  chooseDocument = () => this.#try('document', calls.chooseDocument())
  openSample = () => this.#try('document', calls.openSample())
  chooseModel = () => this.#try('model', calls.chooseModel())
  restartWorker = () => this.#try('conversation', calls.restartWorker())

  /** A fresh conversation about the open document; whether it was accepted. */
  newConversation = () => this.#opens(calls.newConversation)

  /** Opens a conversation; whether it was accepted, and nothing else was chosen before it was loaded. */
  openConversation = async (id: number): Promise<boolean> => {
    this.#app.coming = id
    const opened = await this.#opens(() => calls.openConversation(id))
    if (!opened && this.#app.coming === id) this.#app.coming = null
    return opened
  }

  /** Stops what runs in a conversation that is not open, or closes the line that says it has ended. */
  stopElsewhere = (id: number) => this.#try('conversation', calls.stopElsewhere(id))

  /** A new conversation with the turns up to this one; whether it was accepted. */
  branch = (turn: number) => this.#opens(() => calls.branchConversation(turn))

  async #opens(open: () => Promise<boolean | null>): Promise<boolean> {
    this.#app.goal = null
    this.#app.dismissAll('conversation')
    const answer = await this.#try('conversation', open())
    return answer !== undefined && answer !== false
  }

  /** Shows a found passage; opens its conversation first, unless it is open. */
  goTo = async (passage: FoundPassage): Promise<boolean> => {
    const { conversation } = passage
    if (conversation !== this.#app.conversation && !(await this.openConversation(conversation))) return false
    this.#app.goal = passage
    return true
  }

  renameConversation = (id: number, title: string) =>
    this.#try('conversation', calls.renameConversation(id, title.trim()))
  pinConversation = (id: number, pinned: boolean) => this.#try('conversation', calls.pinConversation(id, pinned))
  /** Deletes a conversation, and offers to undo that for a while. */
  deleteConversation = async (entry: ConversationEntry) => {
    const open = entry.id === this.#app.conversation
    if (!(await this.#accepted('conversation', calls.deleteConversation(entry.id)))) return
    clearTimeout(this.#undoTimer)
    this.#app.deleted = [...this.#app.deleted, entry]
    if (open) this.#deletedOpen = entry.id
    this.#undoTimer = setTimeout(() => (this.#app.deleted = []), UNDO_MS)
  }

  /** Restores the conversation that was deleted last; opens it if it was open, and no other is open now. */
  restoreConversation = async () => {
    const last = this.#app.deleted.at(-1)
    this.#app.deleted = this.#app.deleted.slice(0, -1)
    if (!last || !(await this.#accepted('conversation', calls.restoreConversation(last.id)))) return
    if (this.#deletedOpen === last.id && this.#app.conversation === null) await this.openConversation(last.id)
  }

  searchConversations = (query: string) => this.#try('conversation', calls.searchConversations(query))
  exportConversation = (id: number) => this.#try('conversation', calls.exportConversation(id))
  importConversation = () => this.#try('conversation', calls.importConversation())

  /** Shows or hides the list of conversations. */
  toggleSidebar = () => {
    const sidebar = (this.#app.sidebar = !this.#app.sidebar)
    void this.change({ sidebar })
  }

  closeDocument = async () => {
    if (await this.#accepted('document', calls.closeDocument())) this.#app.close()
  }

  /**
   * Stops the running question, the first that waits, or the opening of a document or conversation; nothing without any
   * of these.
   */
  stop = () => {
    const { running, waiting, opening, coming } = this.#app
    this.#app.coming = null
    if (running || waiting || opening || coming !== null) void this.#try('conversation', calls.stop())
  }

  /** Asks the question in the composer, which is empty at once. If refused, its text returns. */
  send = async () => {
    const app = this.#app
    const question = app.draft.trim()
    if (question === '') return
    const { editing } = app
    if (editing !== null) app.stopEditing()
    else app.draft = ''
    // One after the other: the next one may be typed before this one is accepted.
    const asked = this.#sends.then(() => this.ask(question, { edits: editing?.turn ?? null }))
    this.#sends = asked
    if ((await asked) === null) {
      // What was typed meanwhile stays, too.
      app.draft = app.draft.trim() === '' ? question : `${question}\n${app.draft}`
      if (editing !== null && app.editing === null) app.editing = editing
    }
    this.#saveDraftNow()
  }

  /** Asks `question`, with the current method and budget unless `choice` has others; the turn's id if accepted. */
  ask = async (question: string, relation: Partial<Relation> = {}, choice?: Choice): Promise<number | null> => {
    if (this.#asking) return null
    const app = this.#app
    this.#asking = true
    app.dismissAll('conversation')
    try {
      return await calls.ask(question, choice ?? app.choice, { alone: false, again: null, edits: null, ...relation })
    } catch (refusal) {
      app.notify('conversation', calls.sentence(refusal))
      return null
    } finally {
      this.#asking = false
    }
  }

  removeWaiting = (turn: number) => this.#try('conversation', calls.removeWaiting(turn))

  /** Puts a turn's question into the composer, to be edited. */
  edit = (turn: Turn) => {
    this.#app.edit(turn)
    this.saveDraftSoon()
  }

  cancelEdit = () => {
    this.#app.stopEditing()
    this.saveDraftSoon()
  }

  /** Begins a conversation without a document. */
  chat = () => this.#try('conversation', calls.chat())

  /** Opens a pasted text as a document; whether it was accepted. */
  openText = async (text: string): Promise<boolean> => {
    this.#app.dismissAll('conversation')
    if (!(await this.#accepted('conversation', calls.openText(text)))) return false
    this.#app.announcement = 'The pasted text is opened as a document'
    return true
  }

  /** Applies an event of the program. A question that it returned is saved as a draft, like a typed one. */
  take = (event: AppEvent) => {
    const before = this.#app.draft
    this.#app.apply(event)
    if (this.#app.draft !== before) this.saveDraftSoon()
  }

  /** Starts a comparison; null if accepted, else the refusal's message, which the caller shows. */
  compare = async (question: string, runs: Choice[]): Promise<string | null> => {
    this.#app.dismissAll('comparison')
    return (await this.#refusal(calls.compare(question, runs)))?.message ?? null
  }

  /** The refusal of these parameters for a method, or null. */
  checkMethod = ({ method, parameters }: Pick<Choice, 'method' | 'parameters'>) =>
    this.#refusal(calls.checkMethod(method, parameters))

  lookForModels = () => this.#try('models', calls.lookForModels())
  addModelFolder = () => this.#try('models', calls.addModelFolder())
  forgetModelFolder = (id: string) => this.#try('models', calls.forgetModelFolder(id))
  removeModel = (id: string) => this.#try('models', calls.removeModel(id))
  removeUnfinished = (id: string) => this.#try('models', calls.removeUnfinished(id))
  resumeUnfinished = (id: string) => this.#try('models', calls.resumeUnfinished(id))
  startDownload = (reference: string) => this.#try('models', calls.startDownload(reference))
  resumeDownload = (id: number) => this.#try('models', calls.resumeDownload(id))
  pauseDownload = (id: number) => this.#try('models', calls.pauseDownload(id))
  cancelDownload = (id: number) => this.#try('models', calls.cancelDownload(id))
  setThinking = (thinking: boolean) => this.#try('conversation', calls.setThinking(thinking))

  /** Opens a model; whether it was accepted. Dismisses earlier notices about models and questions. */
  useModel = async (id: string, stretch: string | null): Promise<boolean> => {
    for (const place of ['model', 'models', 'conversation'] as const) this.#app.dismissAll(place)
    return this.#accepted('model', calls.useModel(id, stretch))
  }

  /** Opens a model that has just been downloaded, and removes its download from the list. */
  useDownloaded = async (download: number, model: string) => {
    if (await this.useModel(model, null)) await this.cancelDownload(download)
  }

  stopReading = () => this.#try('conversation', calls.stopReading())
  resumeReading = () => this.#try('conversation', calls.resumeReading())
  clearVault = () => this.#try('settings', calls.clearVault())
  stopComparison = () => this.#try('comparison', calls.stopComparison())
  continueComparison = () => this.#try('comparison', calls.continueComparison())
  saveComparison = () => this.#try('comparison', calls.saveComparison())
  /** Saves a picture or a table that the page has drawn; a PNG is base64. */
  saveExport = (kind: 'png' | 'svg' | 'csv', data: string) => this.#try('document', calls.saveExport(kind, data))
  unlockDocument = (password: string | null) => this.#try('document', calls.unlockDocument(password))
  recogniseDocument = (languages: string[] | null) => this.#try('document', calls.recogniseDocument(languages))
  addDocument = () => this.#try('document', calls.addDocument())
  removeDocument = (index: number) => this.#try('document', calls.removeDocument(index))

  /** Replaces the parameters of the current method; the refusal, or null. */
  setParameters = (parameters: Parameters): Promise<Refusal | null> => {
    const { settings } = this.#app
    const changed = { ...settings, parameters: this.#parametersWith(settings.method, parameters) }
    return this.#refusal(calls.saveSettings(changed).then((saved) => (this.#app.settings = saved)))
  }

  /** The parameters of all methods, with those of one replaced. */
  #parametersWith(method: string, parameters: Parameters): Record<string, Parameters> {
    const { [method]: _, ...others } = this.#app.settings.parameters
    return Object.keys(parameters).length === 0 ? others : { ...others, [method]: parameters }
  }

  /** Uses a method for the next questions. The automatic one also chooses the memory, unless it is set afterwards. */
  setMethod = (method: string, where: Place = 'settings'): Promise<boolean> =>
    this.change(method === AUTO ? { method, budget: null } : { method }, where)

  /** Uses a choice for the next questions; whether it was accepted. */
  choose = ({ method, parameters, budget }: Choice, where: Place): Promise<boolean> =>
    this.change({ method, parameters: this.#parametersWith(method, parameters), budget }, where)

  /** Larger (1), smaller (-1) or default (0) text. */
  zoom = (direction: number) => {
    const { zoom } = this.#app.settings
    const next = direction === 0 ? 100 : nextZoom(zoom, direction)
    if (next !== zoom) void this.change({ zoom: next }, 'conversation')
    this.#app.announcement = `Text at ${next} %`
  }

  /** Saves changed settings; a refusal is shown and the old settings remain. */
  change = async (changes: Partial<Settings>, where: Place = 'settings'): Promise<boolean> => {
    const app = this.#app
    const before = app.settings
    app.settings = { ...before, ...changes }
    app.dismissAll(where)
    // A question was refused for other settings than these.
    app.dismissAll('conversation')
    try {
      app.settings = await calls.saveSettings(app.settings)
      return true
    } catch (refusal) {
      app.settings = before
      app.notify(where, calls.sentence(refusal), 'error', app.engaged)
      return false
    }
  }

  saveDraftSoon = () => {
    if (this.#draftTimer !== null) clearTimeout(this.#draftTimer)
    this.#draftTimer = setTimeout(() => this.#saveDraftNow(), DRAFT_MS)
  }

  quit = () => {
    this.flushDraft()
    void this.#try('conversation', calls.quit())
  }

  /** Saves a pending draft, before the app window closes. */
  flushDraft = () => {
    if (this.#draftTimer !== null) this.#saveDraftNow()
  }

  #saveDraftNow(): void {
    if (this.#draftTimer !== null) clearTimeout(this.#draftTimer)
    this.#draftTimer = null
    void this.#try('conversation', calls.saveDrafts(this.#app.drafts()))
  }

  /**
   * Requests the estimate of a question a moment after the last change; an older result never replaces a newer one. A
   * worker that has just restarted may not have its document yet: a refusal is retried a few times before it is shown.
   */
  estimateSoon = (choice: Choice) =>
    this.#estimateAfter(ESTIMATE_MS, choice, Date.now() - this.#app.readySince < SETTLING_MS ? ESTIMATE_TRIES : 1)

  #estimateAfter(ms: number, choice: Choice, tries: number): void {
    if (this.#estimateTimer !== null) clearTimeout(this.#estimateTimer)
    const run = ++this.#estimateRun
    this.#estimateTimer = setTimeout(async () => {
      this.#estimateTimer = null
      const app = this.#app
      try {
        const estimate = await calls.estimate(choice)
        if (run !== this.#estimateRun) return
        app.estimate = estimate
        app.estimateError = null
      } catch (refusal) {
        if (run !== this.#estimateRun) return
        if (tries > 1) return this.#estimateAfter(ESTIMATE_AGAIN_MS, choice, tries - 1)
        app.estimate = null
        app.estimateError = calls.refusal(refusal)
      }
    }, ms)
  }
}
