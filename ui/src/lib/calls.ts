/** The program's commands, typed; this module contains no logic. */
import { Channel, invoke } from '@tauri-apps/api/core'
import type {
  AppEvent,
  Attended,
  Choice,
  EarlierTurns,
  Estimate,
  FoundPassage,
  HubOffer,
  Inspection,
  LayerRow,
  Parameters,
  PictureOf,
  Refusal,
  Relation,
  Settings,
  Snapshot,
  TableRow,
  TokenSlots,
} from './contract'

/**
 * Runs a command of the program. A refusal is a string, one sentence. What a command changes arrives as events, and so
 * does what the user chooses in a dialog of the system.
 */
function call<T>(name: string, args?: Record<string, unknown>): Promise<T> {
  return invoke<T>(name, args)
}

/** Binary results are little endian. They arrive as an ArrayBuffer, or as an array of numbers if the raw channel is unavailable. */
export function bytes(answer: ArrayBuffer | number[]): ArrayBuffer {
  return answer instanceof ArrayBuffer ? answer : new Uint8Array(answer).buffer
}

async function raw(name: string, args: Record<string, unknown>): Promise<ArrayBuffer> {
  return bytes(await call<ArrayBuffer | number[]>(name, args))
}

export function subscribe(listen: (event: AppEvent) => void): Promise<null> {
  const channel = new Channel<AppEvent>()
  channel.onmessage = listen
  return call('subscribe', { channel })
}

export const snapshot = () => call<Snapshot>('snapshot')
/** UTF-8 */
export const documentText = (id: number) => raw('document_text', { id })
export const chooseDocument = () => call<null>('choose_document')
export const openSample = () => call<null>('open_sample')
/** A conversation without a document; the open one must be empty. */
export const chat = () => call<null>('chat')
export const openText = (text: string) => call<null>('open_text', { text })
export const quit = () => call<null>('quit')
/** The conversation stays listed. */
export const closeDocument = () => call<null>('close_document')
export const chooseModel = () => call<null>('choose_model')
/** Returns them as accepted; opens the model if it changed. */
export const saveSettings = (settings: Settings) => call<Settings>('save_settings', { settings })
export const saveDrafts = (drafts: Record<string, string>) => call<null>('save_drafts', { drafts })
export const estimate = (choice: Choice) => call<Estimate>('estimate', { ...choice })
/** Returns the turn's id. It waits while another question runs. */
export const ask = (question: string, choice: Choice, relation: Relation) =>
  call<number>('ask', { question, choice, relation })
/** Refused once it is asked. */
export const removeWaiting = (turn: number) => call<null>('remove_waiting', { turn })
/** The question, or the opening of a document. */
export const stop = () => call<null>('stop')
/** Refuses parameters that are not allowed. */
export const checkMethod = (method: string, parameters: Parameters) =>
  call<null>('check_method', { method, parameters })
/** Returns the comparison's id. */
export const compare = (question: string, runs: Choice[]) => call<number>('compare', { question, runs })
/** Finished runs remain. */
export const stopComparison = () => call<null>('stop_comparison')
/** Does the runs that it lacks. */
export const continueComparison = () => call<null>('continue_comparison')
export const saveComparison = () => call<null>('save_comparison')
/** For the document that waits for its password; null gives it up. */
export const unlockDocument = (password: string | null) => call<null>('unlock_document', { password })
/** For the scan that waits for it; null gives it up. */
export const recogniseDocument = (languages: string[] | null) => call<null>('recognise_document', { languages })
/** One more document to read. */
export const addDocument = () => call<null>('add_document')
/** Begins a new conversation. */
export const removeDocument = (index: number) => call<null>('remove_document', { index })
/** About the same document, without turns. */
export const newConversation = () => call<null>('new_conversation')
/** With the turns up to this one. Refused while a question or comparison runs. */
export const branchConversation = (turn: number) => call<null>('branch_conversation', { turn })
/** Refused while a question or comparison runs. False: something else was chosen before it was loaded. */
export const openConversation = (id: number) => call<boolean>('open_conversation', { id })
export const stopElsewhere = (id: number) => call<null>('stop_elsewhere', { id })
/** An empty title restores the first question. */
export const renameConversation = (id: number, title: string) => call<null>('rename_conversation', { id, title })
export const pinConversation = (id: number, pinned: boolean) => call<null>('pin_conversation', { id, pinned })
/** The document of the open one stays open, without turns. */
export const deleteConversation = (id: number) => call<null>('delete_conversation', { id })
/** Undoes a deletion, until the next one or the end of the program. */
export const restoreConversation = (id: number) => call<null>('restore_conversation', { id })
/** The best first, at most 50. */
export const searchConversations = (query: string) => call<FoundPassage[]>('search_conversations', { query })
export const exportConversation = (id: number) => call<null>('export_conversation', { id })
export const importConversation = () => call<null>('import_conversation')
export const restartWorker = () => call<null>('restart_worker')
/** Uint32 [tokens]: end of each document token (of groups of tokens in very long documents). */
export const mapEnds = (turn: number) => raw('map_ends', { turn })
/** Uint16 [tokens]: slots that hold it; with `lift`, without those that hold it whatever is asked. */
export const mapCounts = (turn: number, layer: number | null, lift: boolean) => raw('map_counts', { turn, layer, lift })
/** Uint8: number of budgets, each in percent, then for each [tokens] shares; 255 is 100 %. */
export const mapLevels = (turn: number) => raw('map_levels', { turn })
/** Uint8 [rows][columns] shares: a row per layer, or with `heads` per KV head; empty if that is not known. */
export const mapPicture = (
  turn: number,
  from: number,
  to: number,
  columns: number,
  view: { heads: boolean; of: PictureOf },
) => raw('map_picture', { turn, from, to, columns, ...view })
/** Uint8 [tokens] shares of a run; without one, ends as `mapEnds`. */
export const comparedMap = (comparison: number, run: number | null) => raw('compared_map', { comparison, run })
/** A png is in base64. */
export const saveExport = (kind: 'png' | 'svg' | 'csv', data: string) => call<null>('save_export', { kind, data })
/** Computes what it would keep with less memory. */
export const showLessMemory = (turn: number) => call<null>('show_less_memory', { turn })
export const mapToken = (turn: number, token: number) => call<TokenSlots>('map_token', { turn, token })
export const mapTable = (turn: number, layer: number | null) => call<TableRow[]>('map_table', { turn, layer })
export const mapLayers = (turn: number) => call<LayerRow[]>('map_layers', { turn })
/** Of the earlier turns that the question saw. */
export const mapEarlier = (turn: number, layer: number | null) =>
  call<EarlierTurns | null>('map_earlier', { turn, layer })
/** What each token of the answer looked at. */
export const mapAttended = (turn: number) => call<Attended[]>('map_attended', { turn })
/** Uint32: tokens of the answer, tokens of a step, then step, token and lost slots of each entry. */
export const mapEvictions = (turn: number) => raw('map_evictions', { turn })
export const setThinking = (thinking: boolean) => call<null>('set_thinking', { thinking })
/** Reading in the background. */
export const stopReading = () => call<null>('stop_reading')
export const resumeReading = () => call<null>('resume_reading')
/** Except vaults in use. */
export const clearVault = () => call<null>('clear_vault')
export const lookForModels = () => call<null>('look_for_models')
export const addModelFolder = () => call<null>('add_model_folder')
/** Its files remain. */
export const forgetModelFolder = (id: string) => call<null>('forget_model_folder', { id })
/** `stretch`: null or `yarn:4`. */
export const inspectModel = (id: string, stretch: string | null) => call<Inspection>('inspect_model', { id, stretch })
export const useModel = (id: string, stretch: string | null) => call<null>('use_model', { id, stretch })
/** From the hub's cache. */
export const removeModel = (id: string) => call<null>('remove_model', { id })
export const removeUnfinished = (id: string) => call<null>('remove_unfinished', { id })
/** Looks the file up on the hub. */
export const resumeUnfinished = (id: string) => call<null>('resume_unfinished', { id })
/** `owner/name` or `owner/name:file`; queries the hub. */
export const hubOffers = (name: string) => call<HubOffer[]>('hub_offers', { name })
/** Returns its id. */
export const startDownload = (reference: string) => call<number>('start_download', { reference })
/** Queued after the running ones. */
export const resumeDownload = (id: number) => call<null>('resume_download', { id })
/** Keeps the partial file. */
export const pauseDownload = (id: number) => call<null>('pause_download', { id })
/** Removes the partial file, or a finished list entry. */
export const cancelDownload = (id: number) => call<null>('cancel_download', { id })
/** Errors of the page, for the log. */
export const report = (kind: string, message: string) => call<null>('report', { kind, message })

/** A refusal, in any of its forms. */
export function refusal(thrown: unknown): Refusal {
  if (typeof thrown === 'string') return { message: thrown, code: null }
  if (thrown instanceof Error) return { message: thrown.message, code: null }
  const { message, code } = (thrown ?? {}) as Partial<Refusal>
  return { message: message ?? JSON.stringify(thrown), code: code ?? null }
}

/** The message of a refusal. */
export const sentence = (thrown: unknown): string => refusal(thrown).message
