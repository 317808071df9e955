/**
 * What a person can do: each calls the program and puts a refusal's sentence where the person looks. The state itself changes
 * by the program's events (`desk.svelte.ts`).
 */
import * as calls from './calls'
import type { Settings } from './contract'
import type { Desk, Place } from './desk.svelte'

const DRAFT_MS = 400
const ESTIMATE_MS = 150
const ESTIMATE_AGAIN_MS = 500
const ESTIMATE_TRIES = 4
/** So long after it became ready an engine may not have its document yet. */
const SETTLING_MS = 5000

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
      return await calls.ask(question, desk.settings.method, desk.budget)
    } catch (refusal) {
      desk.notify('conversation', calls.sentence(refusal))
      return null
    } finally {
      this.#asking = false
    }
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
  estimateSoon = (method: string, budget: string | null) =>
    this.#estimateAfter(
      ESTIMATE_MS,
      method,
      budget,
      Date.now() - this.#desk.readySince < SETTLING_MS ? ESTIMATE_TRIES : 1,
    )

  #estimateAfter(ms: number, method: string, budget: string | null, tries: number): void {
    if (this.#estimateTimer !== null) clearTimeout(this.#estimateTimer)
    const run = ++this.#estimateRun
    this.#estimateTimer = setTimeout(async () => {
      this.#estimateTimer = null
      const desk = this.#desk
      try {
        const estimate = await calls.estimate(method, budget)
        if (run !== this.#estimateRun) return
        desk.estimate = estimate
        desk.estimateError = null
      } catch (refusal) {
        if (run !== this.#estimateRun) return
        if (tries > 1) return this.#estimateAfter(ESTIMATE_AGAIN_MS, method, budget, tries - 1)
        desk.estimate = null
        desk.estimateError = calls.sentence(refusal)
      }
    }, ms)
  }
}
