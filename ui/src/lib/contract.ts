/**
 * What the page and the program say to each other. The Rust side (`src-tauri/src/contract.rs`) has the same shapes.
 * Offsets are UTF-16 code units of the document's text, that is, indices into the JavaScript string. Sizes are bytes.
 */
import type { Comparison, ComparisonState, ReferenceResult, RunResult } from './contract-comparison'
import type { Download, Library } from './contract-models'

export type * from './contract-comparison'
export type * from './contract-models'

export type Theme = 'system' | 'light' | 'dark'

/** Values of a method's parameters, by name, as they were typed; what is not in it is at its default. */
export type Parameters = Record<string, string>

/** What is kept of a prompt: the method with its parameters, and how much. */
export interface Choice {
  method: string
  parameters: Parameters
  /** As in `Settings`. */
  budget: string | null
}

/** What a person sets; survives a restart. */
export interface Settings {
  theme: Theme
  /** An entry of `Snapshot.models`, by its `id`. */
  model: string
  /** A method's name, or `auto`. */
  method: string
  /** What was set for each method, by its name. */
  parameters: Record<string, Parameters>
  /** `25%`, `512` (rows) or `64MiB`; null takes a quarter of the prompt, at least 256 rows. */
  budget: string | null
  maxTokens: number
  /** How much less likely words are that an answer has said already, 1 to 2; null is not at all. */
  repeatPenalty: number | null
  /** Size of the text, in percent. */
  zoom: number
  /** How what was read is kept on disk for later questions: `q8_0`, `f16` or `off`. */
  keep: string
  /** What that may take on disk, such as `20GiB`; null takes the engine's default. */
  keepBudget: string | null
  /** How kept rows are stored: `f32`, `f16`, `q8_0` or `q4_0`; null leaves it to the engine. */
  cache: string | null
  /** What everything may take in memory, such as `6 GiB`; null is no limit. */
  memory: string | null
  /** What computes: `cpu` or `cuda:0`; null takes a GPU where the model fits one. */
  device: string | null
}

/** The GPUs of this computer, as they were when the engine was last started. */
export interface Gpus {
  gpus: Gpu[]
  /** Why there is none, one sentence. */
  whyNone: string | null
}

export interface Gpu {
  /** As in `Settings`: `cuda:0`. */
  device: string
  name: string
  memory: number
  /** Bytes of it that were free. */
  free: number
}

/** What is kept on disk of documents that were read. */
export interface Vault {
  /** Where it lies, to be written out. */
  folder: string
  documents: number
  bytes: number
  /** Bytes that it may take. */
  budget: number
}

export interface ModelChoice {
  /** `mini`, or an opaque name given by the program. Never a path. */
  id: string
  /** What to show: the file's name, or "mini". */
  label: string
  /** For the built-in model: true. */
  inBox: boolean
  /** How its context is stretched, `yarn:4`; null leaves it as the file says. */
  stretch: string | null
}

export interface ModelFacts {
  name: string
  file: string
  quantisation: string
  architecture: string
  layers: number
  qHeads: number
  kvHeads: number
  headDim: number
  context: number
  parameters: number
  weightsBytes: number
  bytesPerRow: number
  stretch: string | null
  canThink: boolean
  /** What computes: `the processor`, or a GPU's name. */
  computesOn: string
  /** Why that is the processor, where a GPU was looked for: one sentence. */
  whyProcessor: string | null
}

export interface ParameterFacts {
  name: string
  default: string
  range: string
  meaning: string
}

export interface MethodFacts {
  name: string
  title: string
  paper: string
  keeps: string
  acts: string
  positions: string
  parameters: ParameterFacts[]
  /** It can read a document that is longer than the model's context. */
  streams: boolean
}

export interface PageRange {
  number: number
  start: number
  end: number
}

/** One of several documents in one conversation. */
export interface DocumentPart {
  name: string
  start: number
  end: number
  /** How many it has. */
  pages: number
}

export interface DocumentFacts {
  /** Changes with every document, but not when another is added to it: then its text is longer. */
  id: number
  name: string
  kind: string
  encoding: string
  sourceBytes: number
  /** UTF-16 units of the text. */
  length: number
  pages: PageRange[]
  /** The documents that it consists of, in order; empty where it is one alone. */
  documents: DocumentPart[]
  /** One sentence each: damaged pages, guessed encoding... */
  notes: string[]
  /** Tokens for the open model; null until counted. */
  tokens: number | null
  /** It has more tokens than that: far too long to be counted to the end. */
  moreTokens: boolean
  /** A sentence if the open model cannot read it at all. */
  tooLong: string | null
  /** A sentence if it is longer than the open model's context: it is read in streaming mode, which is approximate. */
  streaming: string | null
  sample: boolean
  /** More than the model in the box was made for: any text but the sample's. */
  beyondBox: boolean
  /** Questions to offer in an empty conversation (the sample's); empty for other documents. */
  suggestions: string[]
}

export interface Memory {
  weights: number
  kept: number
  keptFull: number
  tables: number
  scratch: number
  /** Of the machine; null where the system does not say. */
  available: number | null
  total: number | null
}

export interface Estimate {
  promptTokens: number
  rows: number
  memory: Memory
  note: string | null
  /** What `auto` would take. */
  chosen: Chosen | null
  /** Tokens of the prompt that need no reading: they are in the vault. */
  tokensFromVault: number
  /** How kept rows would be stored, as in `Settings`. */
  cache: string
}

/** What `auto` took, and why. */
export interface Chosen {
  method: string
  /** Rows per kv head. */
  rows: number
  /** One sentence. */
  reason: string
}

export interface Source {
  start: number
  end: number
  page: number | null
  /** The document that it stands in, where there are several. */
  document: string | null
  text: string
  /** Share of the answer's attention votes, 0 to 1. */
  weight: number
  /** Mean share of layer-head slots that hold it, 0 to 1. */
  kept: number
}

/** asked: sent, nothing back yet. */
export type TurnState = 'asked' | 'reading' | 'answering' | 'done' | 'stopped' | 'failed'

export interface Facts {
  finish: 'end' | 'length' | 'context' | 'stopped' | 'repetition'
  promptTokens: number
  answerTokens: number
  /** Mean over the layers. */
  rows: number
  keptBytes: number
  fullBytes: number
  firstTokenSeconds: number
  prefillSeconds: number
  decodeSeconds: number
  tokensPerSecond: number
  notes: string[]
  /** What was taken, where `auto` was asked for. */
  chosen: Chosen | null
  /** Tokens of the prompt that were not read: they came from the vault. */
  tokensFromVault: number
  /** It was read in streaming mode, which is approximate. */
  streamed: boolean
  /** How kept rows were stored; empty for answers from before that was noted. */
  cache: string
}

/** A question with its answer. */
export interface Turn {
  id: number
  question: string
  answer: string
  state: TurnState
  /** Why it failed, one sentence. What was written before stays in `answer`. */
  error: string | null
  method: string
  /** What was set of the method's parameters. */
  parameters: Parameters
  budget: string | null
  /** How kept rows were to be stored, as in `Settings`. */
  cache: string | null
  /** What everything was allowed to take in memory, as in `Settings`. */
  memory: string | null
  /** The model's label. */
  model: string
  sources: Source[]
  facts: Facts | null
  /** A map can be asked for. */
  hasMap: boolean
  /** The model was let think before it answered. */
  thinking: boolean
  /**
   * [layers of the model]: how many of its last tokens a layer holds whatever the method; null for those that the method cuts.
   * Empty where all are cut, and until the question is read.
   */
  windows: (number | null)[]
}

export interface Progress {
  phase: 'reading' | 'answering'
  tokensDone: number
  tokensTotal: number
  tokensPerSecond: number
  secondsLeft: number
  /** Tokens besides that come from the vault and need no reading. */
  tokensFromVault: number
}

/** What becomes of a file that would take the place of a conversation; `add`: it is read as well. */
export type Replacement = 'keep' | 'replace' | 'add'

/** The engine's process. */
export interface WorkerState {
  state: 'starting' | 'ready' | 'restarting' | 'failed'
  /** What happened, for a person; null when all is well. */
  message: string | null
}

export interface Snapshot {
  settings: Settings
  models: ModelChoice[]
  /** null while it is being opened, or when it failed (then `modelError`). */
  model: ModelFacts | null
  modelError: string | null
  methods: MethodFacts[]
  document: DocumentFacts | null
  /** Name of a file that is being opened now. */
  opening: string | null
  turns: Turn[]
  comparison: Comparison | null
  draft: string
  /** Models that can think do so before they answer, in this conversation. */
  thinking: boolean
  worker: WorkerState
  /** null until the engine has said so, or where nothing can be kept. */
  vault: Vault | null
  gpus: Gpus
  /** False in a second window: said to the person once. */
  saves: boolean
  version: string
}

export type NoticePlace = 'document' | 'model' | 'models' | 'conversation' | 'comparison' | 'settings'

export type AppEvent =
  | { event: 'worker'; worker: WorkerState }
  | { event: 'methods'; methods: MethodFacts[] }
  | { event: 'models'; models: ModelChoice[]; settings: Settings }
  | { event: 'model'; model: ModelFacts | null; error: string | null }
  | { event: 'opening'; name: string | null }
  /** A new document (turns are its own), new facts of the same one (`id` unchanged), or null: none is open any more. */
  | { event: 'document'; document: DocumentFacts | null; turns: Turn[] }
  /** A turn was added or changed: state, error, facts, sources. `answer` is whole. */
  | { event: 'turn'; turn: Turn }
  /** The next piece of the answer. */
  | { event: 'token'; turn: number; text: string }
  | { event: 'progress'; turn: number; progress: Progress; memory: Memory }
  /** More of the map arrived; ask for it again. At most about 10 a second, and once at the end. */
  | { event: 'map'; turn: number; layersDone: number; layers: number }
  /** A comparison has begun, or is gone with its document. */
  | { event: 'comparison'; comparison: Comparison | null }
  | { event: 'comparisonReference'; comparison: number; result: ReferenceResult }
  | { event: 'comparisonRun'; comparison: number; run: number; result: RunResult }
  /** `run` null: the full cache's; `sharing` runs from there on share the reading. */
  | { event: 'comparisonProgress'; comparison: number; run: number | null; sharing: number; progress: Progress }
  | { event: 'comparisonEnded'; comparison: number; state: ComparisonState; error: string | null }
  | { event: 'thinking'; thinking: boolean }
  /** What is kept on disk has changed. */
  | { event: 'vault'; vault: Vault | null }
  /** Before every start of the engine. */
  | { event: 'gpus'; gpus: Gpus }
  /** What was found, whenever that changes after `look_for_models`. */
  | { event: 'library'; library: Library }
  /** All downloads of the list, whenever one changes. At most about 10 a second. */
  | { event: 'downloads'; downloads: Download[] }
  /** A file waits for `replace_document`, since it would take the place of a conversation; null: none does. */
  | { event: 'replacing'; name: string | null }
  /** A file is held over the window; `files` 0 when it has left. `refusal` says why a drop would be refused. */
  | { event: 'drag'; files: number; refusal: string | null }
  /** One sentence, to be shown where the person looks. */
  | { event: 'notice'; kind: 'error' | 'info'; where: NoticePlace; message: string }

/** One token of a map; in maps of very long documents several, side by side. */
export interface TokenSlots {
  start: number
  end: number
  kept: number
  slots: number
  /** Per layer: slots that hold it. */
  perLayer: number[]
  /** Its slots in a layer: the kv heads, where it is one token. */
  kvHeads: number
  /** Tokens that it stands for. */
  tokens: number
  page: number | null
  /** The document that it stands in, where there are several. */
  document: string | null
}

/** A layer of the model in the map. */
export interface LayerRow {
  /** From 1, in the order of the model. */
  number: number
  /** Its place in the map, from 0; null for a layer that the method does not cut. */
  layer: number | null
  /** How many of its last tokens such a layer holds. */
  window: number | null
  /** Mean share of its slots that hold the document's tokens, 0 to 1; null until it is read. */
  mean: number | null
}

export interface TableRow {
  /** `page 3`, or a tenth of a document without pages, `20-30 %`. */
  name: string
  start: number
  mean: number
  max: number
}

/**
 * The commands, by name. `invoke` gives the promise of the result; a refusal is a string, one sentence.
 *
 * subscribe(channel)                            -> null          first call of the page; then snapshot()
 * snapshot()                                    -> Snapshot
 * document_text({ id })                         -> ArrayBuffer   UTF-8
 * choose_document()                             -> null          opens the system's dialog; the outcome comes as events
 * open_sample()                                 -> null
 * close_document()                              -> null          back to the empty state; its conversation is forgotten
 * choose_model()                                -> null          system's dialog; the outcome comes as 'models' and 'model'
 * save_settings({ settings })                   -> Settings      as accepted; opens the model if it changed; refuses with a sentence
 * save_draft({ text })                          -> null
 * estimate({ method, parameters, budget })      -> Estimate
 * ask({ question, method, parameters, budget }) -> number        the turn's id; everything else comes as events
 * stop()                                        -> null          the question, or the opening of a document
 * check_method({ method, parameters })          -> null          refuses with a sentence what a method cannot be told
 * compare({ question, runs: Choice[] })         -> number        the comparison's id; everything else comes as events
 * stop_comparison()                             -> null          what is done of it stays
 * save_comparison()                             -> null          system's dialog; the outcome comes as a 'notice'
 * replace_document({ how: Replacement })        -> null          the person's word on the file that waits
 * add_document()                                -> null          system's dialog: a document to be read beside what is open
 * remove_document({ index })                    -> null          one of `documents`; the conversation about all goes with it
 * clear_conversation()                          -> null          events: 'document' with no turns
 * restart_worker()                              -> null
 * map_ends({ turn })                            -> ArrayBuffer   Uint32 little endian [tokens]: end of each document token (of
 *                                                                each few of them, where there are very many)
 * map_counts({ turn, layer: number | null })    -> ArrayBuffer   Uint16 little endian [tokens]: slots that hold it
 * map_strip({ turn, rows, layer })              -> ArrayBuffer   Uint8 [rows * 2]: mean, max; 255 is 100 %
 * map_token({ turn, token })                    -> TokenSlots
 * map_table({ turn, layer })                    -> TableRow[]
 * map_layers({ turn })                          -> LayerRow[]
 * set_thinking({ thinking })                    -> null          event: 'thinking'
 * clear_vault()                                 -> null          but what is in use; events: 'vault' and a 'notice'
 * look_for_models()                             -> null          events: 'library' and 'downloads'
 * add_model_folder()                            -> null          system's dialog; the outcome comes as 'library'
 * forget_model_folder({ id })                   -> null          its files stay
 * inspect_model({ id, stretch })                -> Inspection    `stretch` null or `yarn:4`
 * use_model({ id, stretch })                    -> null          the outcome comes as 'models' and 'model'
 * remove_model({ id })                          -> null          from the hub's cache; the outcome comes as a 'notice'
 * remove_unfinished({ id })                     -> null          likewise
 * resume_unfinished({ id })                     -> null          asks the hub which file it is, and goes on
 * hub_offers({ name })                          -> HubOffer[]    `owner/name` or `owner/name:file`; asks the hub
 * start_download({ reference })                 -> number        its id; everything else comes as 'downloads'
 * resume_download({ id })                       -> null          after those that are under way
 * pause_download({ id })                        -> null          what has arrived is kept
 * cancel_download({ id })                       -> null          what has arrived is removed; a finished one leaves the list
 * report({ kind, message })                     -> null          errors of the page, for the log
 */
export type CommandName =
  | 'subscribe'
  | 'snapshot'
  | 'document_text'
  | 'choose_document'
  | 'open_sample'
  | 'close_document'
  | 'choose_model'
  | 'save_settings'
  | 'save_draft'
  | 'estimate'
  | 'ask'
  | 'stop'
  | 'check_method'
  | 'compare'
  | 'stop_comparison'
  | 'save_comparison'
  | 'replace_document'
  | 'clear_conversation'
  | 'restart_worker'
  | 'map_ends'
  | 'map_counts'
  | 'map_strip'
  | 'map_token'
  | 'map_table'
  | 'map_layers'
  | 'look_for_models'
  | 'add_model_folder'
  | 'forget_model_folder'
  | 'inspect_model'
  | 'use_model'
  | 'remove_model'
  | 'remove_unfinished'
  | 'resume_unfinished'
  | 'hub_offers'
  | 'start_download'
  | 'resume_download'
  | 'pause_download'
  | 'cancel_download'
  | 'set_thinking'
  | 'clear_vault'
  | 'add_document'
  | 'remove_document'
  | 'report'
