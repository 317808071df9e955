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
  Replacement,
  Settings,
  Snapshot,
  TableRow,
  TokenSlots,
  Turn,
} from './contract'

/**
 * The commands, by name. `invoke` returns a promise of the result; a refusal is a string, one sentence.
 *
 * subscribe(channel)                            -> null          first call of the page; then snapshot()
 * snapshot()                                    -> Snapshot
 * document_text({ id })                         -> ArrayBuffer   UTF-8
 * choose_document()                             -> null          system's dialog; the outcome is sent as events
 * open_sample()                                 -> null
 * chat()                                        -> null          a conversation without a document: the open one is empty
 * open_text({ text })                           -> null          pasted text as a document; outcome as events
 * close_document()                              -> null          returns to the empty state; the conversation stays listed
 * choose_model()                                -> null          system's dialog; outcome as 'models' and 'model'
 * save_settings({ settings })                   -> Settings      as accepted; opens the model if it changed
 * save_draft({ text })                          -> null
 * estimate({ method, parameters, budget })      -> Estimate
 * ask({ question, choice, relation: Relation }) -> number        the turn's id; everything else is sent as events. It
 *                                                                waits while another question runs
 * remove_waiting({ turn })                      -> null          event: 'turnRemoved'; refused once it is asked
 * stop()                                        -> null          the question, or the opening of a document
 * check_method({ method, parameters })          -> null          refuses parameters that are not allowed
 * compare({ question, runs: Choice[] })         -> number        the comparison's id; the rest is sent as events
 * stop_comparison()                             -> null          finished runs remain
 * continue_comparison()                         -> null          does the runs that it lacks
 * save_comparison()                             -> null          system's dialog; outcome as a 'notice'
 * replace_document({ how: Replacement })        -> null          the user's decision on the waiting file
 * unlock_document({ password: string | null })  -> null          for the document that waits for its password; null
 *                                                                gives it up
 * recognise_document({ languages: string[] | null }) -> null     for the scan that waits for it; null gives it up
 * add_document()                                -> null          system's dialog: one more document to read
 * remove_document({ index })                    -> null          one of `documents`; begins a fresh conversation
 * new_conversation()                            -> null          the same document, no turns; events: 'document' and
 *                                                                'conversations'
 * branch_conversation({ turn })                 -> null          likewise, with the turns up to this one; refused while
 *                                                                a question or comparison runs
 * open_conversation({ id })                     -> boolean       likewise, its document and turns; refused while a
 *                                                                question or comparison runs. False: something else
 *                                                                was chosen before it was loaded
 * rename_conversation({ id, title })            -> null          an empty title restores the first question; event:
 *                                                                'conversations'
 * pin_conversation({ id, pinned })              -> null          event: 'conversations'
 * delete_conversation({ id })                   -> null          likewise; the document of the open one stays open,
 *                                                                without turns
 * restore_conversation({ id })                  -> null          undoes a deletion, until the next one or the end of
 *                                                                the program
 * search_conversations({ query })               -> FoundPassage[]   best first, at most 50
 * export_conversation({ id })                   -> null          system's dialog (.md, .json or .html); outcome as a
 *                                                                'notice'
 * import_conversation()                         -> null          system's dialog for an exported .json; outcome as
 *                                                                events, or a 'notice'
 * restart_worker()                              -> null
 * map_ends({ turn })                            -> ArrayBuffer   Uint32 little endian [tokens]: end of each document
 *                                                                token (of groups of tokens in very long documents)
 * map_counts({ turn, layer: number | null, lift })   -> ArrayBuffer   Uint16 little endian [tokens]: slots that hold it;
 *                                                                `lift`: without those that hold it whatever is asked
 * show_less_memory({ turn })                    -> null          computes what it would keep with less memory; event:
 *                                                                'turn' with the number of budgets that are known
 * map_levels({ turn })                          -> ArrayBuffer   Uint8: number of budgets, each in percent, then for
 *                                                                each [tokens] shares; 255 is 100 %
 * map_picture({ turn, from, to, columns, heads, of })   -> ArrayBuffer   Uint8 [rows][columns] shares; a row per layer,
 *                                                or with `heads` per KV head; empty if that is not known
 * compared_map({ comparison, run: number | null })   -> ArrayBuffer   Uint8 [tokens] shares of a run; without one, ends
 *                                                as `map_ends`
 * save_export({ kind, data })                   -> null          system's dialog; a 'png' (base64), 'svg' or 'csv'; outcome
 *                                                as a 'notice'
 * map_token({ turn, token })                    -> TokenSlots
 * map_table({ turn, layer })                    -> TableRow[]
 * map_layers({ turn })                          -> LayerRow[]
 * map_earlier({ turn, layer: number | null })    -> EarlierTurns | null   of the earlier turns that the question saw
 * map_attended({ turn })                        -> Attended[]    what each token of the answer looked at
 * map_evictions({ turn })                       -> ArrayBuffer   Uint32 little endian: tokens of the answer, tokens of a step,
 *                                                then step, token and lost slots of each entry
 * set_thinking({ thinking })                    -> null          event: 'thinking'
 * stop_reading()                                -> null          reading in the background; event: 'readAhead'
 * resume_reading()                              -> null          goes on after a stop
 * clear_vault()                                 -> null          except vaults in use; events: 'vault' and a 'notice'
 * look_for_models()                             -> null          events: 'library' and 'downloads'
 * add_model_folder()                            -> null          system's dialog; outcome as 'library'
 * forget_model_folder({ id })                   -> null          its files remain
 * inspect_model({ id, stretch })                -> Inspection    `stretch` null or `yarn:4`
 * use_model({ id, stretch })                    -> null          outcome as 'models' and 'model'
 * remove_model({ id })                          -> null          from the hub's cache; outcome as a 'notice'
 * remove_unfinished({ id })                     -> null          likewise
 * resume_unfinished({ id })                     -> null          looks the file up on the hub, and resumes
 * hub_offers({ name })                          -> HubOffer[]    `owner/name` or `owner/name:file`; queries the hub
 * start_download({ reference })                 -> number        its id; everything else is sent as 'downloads'
 * resume_download({ id })                       -> null          queued after the running ones
 * pause_download({ id })                        -> null          keeps the partial file
 * cancel_download({ id })                       -> null          removes the partial file, or a finished list entry
 * report({ kind, message })                     -> null          errors of the page, for the log
 */
function call<T>(name: string, args?: Record<string, unknown>): Promise<T> {
  return invoke<T>(name, args)
}

/** Binary results arrive as an ArrayBuffer, or as an array of numbers if the raw channel is unavailable. */
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
export const documentText = (id: number) => raw('document_text', { id })
export const chooseDocument = () => call<null>('choose_document')
export const openSample = () => call<null>('open_sample')
export const chat = () => call<null>('chat')
export const openText = (text: string) => call<null>('open_text', { text })
export const closeDocument = () => call<null>('close_document')
export const chooseModel = () => call<null>('choose_model')
export const saveSettings = (settings: Settings) => call<Settings>('save_settings', { settings })
export const saveDraft = (text: string) => call<null>('save_draft', { text })
export const estimate = (choice: Choice) => call<Estimate>('estimate', { ...choice })
export const ask = (question: string, choice: Choice, relation: Relation) =>
  call<number>('ask', { question, choice, relation })
export const removeWaiting = (turn: number) => call<null>('remove_waiting', { turn })
export const stop = () => call<null>('stop')
export const checkMethod = (method: string, parameters: Parameters) =>
  call<null>('check_method', { method, parameters })
export const compare = (question: string, runs: Choice[]) => call<number>('compare', { question, runs })
export const stopComparison = () => call<null>('stop_comparison')
export const continueComparison = () => call<null>('continue_comparison')
export const saveComparison = () => call<null>('save_comparison')
export const replaceDocument = (how: Replacement) => call<null>('replace_document', { how })
export const unlockDocument = (password: string | null) => call<null>('unlock_document', { password })
export const recogniseDocument = (languages: string[] | null) => call<null>('recognise_document', { languages })
export const addDocument = () => call<null>('add_document')
export const removeDocument = (index: number) => call<null>('remove_document', { index })
export const newConversation = () => call<null>('new_conversation')
export const branchConversation = (turn: number) => call<null>('branch_conversation', { turn })
export const openConversation = (id: number) => call<boolean>('open_conversation', { id })
export const readConversation = (id: number) => call<Turn[]>('read_conversation', { id })
export const renameConversation = (id: number, title: string) => call<null>('rename_conversation', { id, title })
export const pinConversation = (id: number, pinned: boolean) => call<null>('pin_conversation', { id, pinned })
export const deleteConversation = (id: number) => call<null>('delete_conversation', { id })
export const restoreConversation = (id: number) => call<null>('restore_conversation', { id })
export const searchConversations = (query: string) => call<FoundPassage[]>('search_conversations', { query })
export const exportConversation = (id: number) => call<null>('export_conversation', { id })
export const importConversation = () => call<null>('import_conversation')
export const restartWorker = () => call<null>('restart_worker')
export const mapEnds = (turn: number) => raw('map_ends', { turn })
export const mapCounts = (turn: number, layer: number | null, lift: boolean) => raw('map_counts', { turn, layer, lift })
export const mapLevels = (turn: number) => raw('map_levels', { turn })
export const mapPicture = (
  turn: number,
  from: number,
  to: number,
  columns: number,
  view: { heads: boolean; of: PictureOf },
) => raw('map_picture', { turn, from, to, columns, ...view })
export const comparedMap = (comparison: number, run: number | null) => raw('compared_map', { comparison, run })
export const saveExport = (kind: 'png' | 'svg' | 'csv', data: string) => call<null>('save_export', { kind, data })
export const showLessMemory = (turn: number) => call<null>('show_less_memory', { turn })
export const mapToken = (turn: number, token: number) => call<TokenSlots>('map_token', { turn, token })
export const mapTable = (turn: number, layer: number | null) => call<TableRow[]>('map_table', { turn, layer })
export const mapLayers = (turn: number) => call<LayerRow[]>('map_layers', { turn })
export const mapEarlier = (turn: number, layer: number | null) =>
  call<EarlierTurns | null>('map_earlier', { turn, layer })
export const mapAttended = (turn: number) => call<Attended[]>('map_attended', { turn })
export const mapEvictions = (turn: number) => raw('map_evictions', { turn })
export const setThinking = (thinking: boolean) => call<null>('set_thinking', { thinking })
export const stopReading = () => call<null>('stop_reading')
export const resumeReading = () => call<null>('resume_reading')
export const clearVault = () => call<null>('clear_vault')
export const lookForModels = () => call<null>('look_for_models')
export const addModelFolder = () => call<null>('add_model_folder')
export const forgetModelFolder = (id: string) => call<null>('forget_model_folder', { id })
export const inspectModel = (id: string, stretch: string | null) => call<Inspection>('inspect_model', { id, stretch })
export const useModel = (id: string, stretch: string | null) => call<null>('use_model', { id, stretch })
export const removeModel = (id: string) => call<null>('remove_model', { id })
export const removeUnfinished = (id: string) => call<null>('remove_unfinished', { id })
export const resumeUnfinished = (id: string) => call<null>('resume_unfinished', { id })
export const hubOffers = (name: string) => call<HubOffer[]>('hub_offers', { name })
export const startDownload = (reference: string) => call<number>('start_download', { reference })
export const resumeDownload = (id: number) => call<null>('resume_download', { id })
export const pauseDownload = (id: number) => call<null>('pause_download', { id })
export const cancelDownload = (id: number) => call<null>('cancel_download', { id })
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
