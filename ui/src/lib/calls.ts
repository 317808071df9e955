/** The program's commands, typed. `contract.ts` documents them; this module contains no logic. */
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
} from './contract'
import type { CommandName } from './commands'

function call<T>(name: CommandName, args?: Record<string, unknown>): Promise<T> {
  return invoke<T>(name, args)
}

/** Binary results arrive as an ArrayBuffer, or as an array of numbers if the raw channel is unavailable. */
export function bytes(answer: ArrayBuffer | number[]): ArrayBuffer {
  return answer instanceof ArrayBuffer ? answer : new Uint8Array(answer).buffer
}

async function raw(name: CommandName, args: Record<string, unknown>): Promise<ArrayBuffer> {
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
export const saveComparison = () => call<null>('save_comparison')
export const replaceDocument = (how: Replacement) => call<null>('replace_document', { how })
export const unlockDocument = (password: string | null) => call<null>('unlock_document', { password })
export const recogniseDocument = (languages: string[] | null) => call<null>('recognise_document', { languages })
export const addDocument = () => call<null>('add_document')
export const removeDocument = (index: number) => call<null>('remove_document', { index })
export const newConversation = () => call<null>('new_conversation')
export const branchConversation = (turn: number) => call<null>('branch_conversation', { turn })
export const openConversation = (id: number) => call<null>('open_conversation', { id })
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
