/**
 * What a person can do: each calls the program and puts a refusal's sentence where the person looks. The state itself changes
 * by the program's events (`desk.svelte.ts`).
 */
import * as calls from './calls'
import type { AppEvent, Choice, Parameters, Replacement, Settings } from './contract'
import type { Desk, Place } from './desk.svelte'

const DRAFT_MS = 400
const ESTIMATE_MS = 150
const ESTIMATE_AGAIN_MS = 500
const ESTIMATE_TRIES = 4
/** So long after it became ready an engine may not have its document yet. */
const SETTLING_MS = 5000

const ZOOMS = [50, 60, 70, 80, 90, 100, 110, 120, 130, 150, 175, 200, 250, 300]

/** The next size of the text in a direction; the same at the ends. */
export function nextZoom(zoom: number, direction: number): number {
  return (direction > 0 ? ZOOMS.find((z) => z > zoom) : ZOOMS.findLast((z) => z < zoom)) ?? zoom
}

export class Actions {
  #desk: Desk
  #draftTimer: ReturnType<typeof setTimeout> | null = null
  #estimateTimer: ReturnType<typeof setTimeout> | null = null
  #estimateRun = 0
  #asking = false

  constructor(desk: Desk) {
    this.#desk = desk
  }

  async #try<T>(where: Place, work: Promise<T>): Promise<T | undefined> {
    try {
      return await work
    } catch (refusal) {
      this.#desk.notify(where, calls.sentence(refusal))
      return undefined
    }
  }

  chooseDocument = () => this.#try('document', calls.chooseDocument())
  openSample = () => this.#try('document', calls.openSample())
  chooseModel = () => this.#try('model', calls.chooseModel())
  restartWorker = () => this.#try('conversation', calls.restartWorker())
  clearConversation = () => this.#try('conversation', calls.clearConversation())

  closeDocument = async () => {
    try {
      await calls.closeDocument()
      this.#desk.close()
    } catch (refusal) {
      this.#desk.notify('document', calls.sentence(refusal))
    }
  }

  /** Stops the question that runs or the document that is being opened; nothing if neither. */
  stop = () => {
    if (this.#desk.running || this.#desk.opening) void this.#try('conversation', calls.stop())
  }

  /** Asks what stands in the composer. Refused, it stays there. */
  send = async () => {
    const question = this.#desk.draft.trim()
    if (question === '' || this.#asking || this.#desk.running) return
    const before = this.#desk.draft
    const id = await this.ask(question)
    if (id === null) return
    // What was typed while the question went out is not thrown away, nor a question that was refused meanwhile.
    const refused = this.#desk.turns.some((turn) => turn.id === id && turn.state === 'failed')
    if (this.#desk.draft === before && !refused) this.#desk.draft = ''
    this.#saveDraftNow()
  }

  /** Asks `question` with the method and budget now chosen; the turn's id if it was taken. */
  ask = async (question: string): Promise<number | null> => {
    if (this.#asking) return null
    const desk = this.#desk
    this.#asking = true
    desk.dismissAll('conversation')
    try {
      return await calls.ask(question, desk.choice)
    } catch (refusal) {
      desk.notify('conversation', calls.sentence(refusal))
      return null
    } finally {
      this.#asking = false
    }
  }

  /** Takes what the program says. A question that it gave back is a draft like one that was typed: it is saved. */
  take = (event: AppEvent) => {
    const before = this.#desk.draft
    this.#desk.apply(event)
    if (this.#desk.draft !== before) this.saveDraftSoon()
  }

  /** Compares; whether it was taken. A refusal's sentence is the caller's to show. */
  compare = async (question: string, runs: Choice[]): Promise<string | null> => {
    this.#desk.dismissAll('comparison')
    try {
      await calls.compare(question, runs)
      return null
    } catch (refusal) {
      return calls.sentence(refusal)
    }
  }

  /** Why a method cannot have these parameters, or null. */
  checkMethod = async ({ method, parameters }: Pick<Choice, 'method' | 'parameters'>): Promise<string | null> => {
    try {
      await calls.checkMethod(method, parameters)
      return null
    } catch (refusal) {
      return calls.sentence(refusal)
    }
  }

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

  /** Opens a model; whether it was taken. What was said of models before is no longer so. */
  useModel = async (id: string, stretch: string | null): Promise<boolean> => {
    this.#desk.dismissAll('model')
    this.#desk.dismissAll('models')
    return (
      (await this.#try(
        'models',
        calls.useModel(id, stretch).then(() => true),
      )) ?? false
    )
  }

  /** Opens a model that has just been downloaded: then its download is done with. */
  useDownloaded = async (download: number, model: string) => {
    if (await this.useModel(model, null)) await this.cancelDownload(download)
  }

  clearVault = () => this.#try('settings', calls.clearVault())
  stopComparison = () => this.#try('comparison', calls.stopComparison())
  saveComparison = () => this.#try('comparison', calls.saveComparison())
  replaceDocument = (how: Replacement) => this.#try('document', calls.replaceDocument(how))
  addDocument = () => this.#try('document', calls.addDocument())
  removeDocument = (index: number) => this.#try('document', calls.removeDocument(index))

  /** Sets parameters of the chosen method, in place of those before; why not, or null. */
  setParameters = async (parameters: Parameters): Promise<string | null> => {
    const desk = this.#desk
    const { method } = desk.settings
    const all = { ...desk.settings.parameters, [method]: parameters }
    if (Object.keys(parameters).length === 0) delete all[method]
    try {
      desk.settings = await calls.saveSettings({ ...desk.settings, parameters: all })
      return null
    } catch (refusal) {
      return calls.sentence(refusal)
    }
  }

  /** Larger (1), smaller (-1) or ordinary (0) text. */
  zoom = (direction: number) => {
    const { zoom } = this.#desk.settings
    const next = direction === 0 ? 100 : nextZoom(zoom, direction)
    if (next !== zoom) void this.change({ zoom: next }, 'conversation')
    this.#desk.announcement = `Text at ${next} %`
  }

  /** Saves changed settings; the program's refusal is shown and the old ones stay. */
  change = async (changes: Partial<Settings>, where: Place = 'settings'): Promise<boolean> => {
    const desk = this.#desk
    const before = desk.settings
    desk.settings = { ...before, ...changes }
    desk.dismissAll(where)
    try {
      desk.settings = await calls.saveSettings(desk.settings)
      return true
    } catch (refusal) {
      desk.settings = before
      desk.notify(where, calls.sentence(refusal))
      return false
    }
  }

  saveDraftSoon = () => {
    if (this.#draftTimer !== null) clearTimeout(this.#draftTimer)
    this.#draftTimer = setTimeout(() => this.#saveDraftNow(), DRAFT_MS)
  }

  /** Saves the draft if one waits: before the window goes. */
  flushDraft = () => {
    if (this.#draftTimer !== null) this.#saveDraftNow()
  }

  #saveDraftNow(): void {
    if (this.#draftTimer !== null) clearTimeout(this.#draftTimer)
    this.#draftTimer = null
    void this.#try('conversation', calls.saveDraft(this.#desk.draft))
  }

  /**
   * Asks what a question would take, a moment after the last wish; an older answer never replaces a newer one. An engine that has
   * just been restarted may not have its document yet: a refusal is tried again a few times before it is believed.
   */
  estimateSoon = (choice: Choice) =>
    this.#estimateAfter(ESTIMATE_MS, choice, Date.now() - this.#desk.readySince < SETTLING_MS ? ESTIMATE_TRIES : 1)

  #estimateAfter(ms: number, choice: Choice, tries: number): void {
    if (this.#estimateTimer !== null) clearTimeout(this.#estimateTimer)
    const run = ++this.#estimateRun
    this.#estimateTimer = setTimeout(async () => {
      this.#estimateTimer = null
      const desk = this.#desk
      try {
        const estimate = await calls.estimate(choice)
        if (run !== this.#estimateRun) return
        desk.estimate = estimate
        desk.estimateError = null
      } catch (refusal) {
        if (run !== this.#estimateRun) return
        if (tries > 1) return this.#estimateAfter(ESTIMATE_AGAIN_MS, choice, tries - 1)
        desk.estimate = null
        desk.estimateError = calls.sentence(refusal)
      }
    }, ms)
  }
}
