// Generated from src-tauri/src/contract.rs and the engine's reports by
// `KEPT_UPDATE=1 cargo test -p kept-app --test app contract`. Do not edit.
//
// Offsets are UTF-16 code units of the document's text, that is, indices into the JavaScript string. Sizes are bytes.

/** Values of a method's parameters, by name, as typed; missing ones are at their defaults. */
export type Parameters = Record<string, string>;

/**
 * The colour theme.
 */
export type Theme = "system" | "light" | "dark";

/**
 * The method with its parameters, and the budget.
 */
export type Choice = { 
/**
 * The method's name.
 */
method: string, 
/**
 * Parameters that the user set.
 */
parameters: Parameters, 
/**
 * `25%`, `512` or `64MiB`; `None` is the default budget.
 */
budget: string | null, };

/**
 * The user's settings; they survive a restart.
 */
export type Settings = { 
/**
 * Colours.
 */
theme: Theme, 
/**
 * An entry of [`Snapshot::models`], by its id.
 */
model: string, 
/**
 * A method's name, or `auto`.
 */
method: string, 
/**
 * Parameters that the user set, by method.
 */
parameters: Record<string, Parameters>, 
/**
 * `25%`, `512` or `64MiB`; `None` is the default budget.
 */
budget: string | null, 
/**
 * Maximum answer length, in tokens.
 */
maxTokens: number, 
/**
 * Instructions of the user, given to the model with every question; at most 4,000 characters.
 */
instructions: string, 
/**
 * How varied answers are, 0 to 2; at 0 always the most likely token is taken.
 */
temperature: number, 
/**
 * Penalty for words that the answer already contains, 1 to 2; `None` is off.
 */
repeatPenalty: number | null, 
/**
 * Size of the text, in percent.
 */
zoom: number, 
/**
 * Type of the rows in vaults on disk: `q8_0`, `f16` or `off`.
 */
keep: string, 
/**
 * Disk space for vaults, such as `20GiB`; `None` is the engine's default.
 */
keepBudget: string | null, 
/**
 * Type of the kept rows: `f32`, `f16`, `q8_0` or `q4_0`; `None` leaves the choice to the engine.
 */
cache: string | null, 
/**
 * Memory limit, such as `6 GiB`; `None` is no limit.
 */
memory: string | null, 
/**
 * Device: `cpu` or `cuda:0`; `None` is a GPU if the model fits on one.
 */
device: string | null, 
/**
 * Whether the list of conversations is shown; `None` until the user shows or hides it.
 */
sidebar: boolean | null, };

/**
 * A model that the user can choose.
 */
export type ModelChoice = { 
/**
 * `mini`, or an id assigned by the program. Never a path.
 */
id: string, 
/**
 * The displayed name.
 */
label: string, 
/**
 * The built-in model.
 */
inBox: boolean, 
/**
 * RoPE scaling of the context, `yarn:4`; `None` uses the file's own.
 */
stretch: string | null, };

/**
 * An open model.
 */
export type ModelFacts = { 
/**
 * The name in the file.
 */
name: string, 
/**
 * The file's name without its folder.
 */
file: string, 
/**
 * The block type of most bytes, for example `Q8_0`.
 */
quantisation: string, 
/**
 * Layers.
 */
layers: number, 
/**
 * KV heads.
 */
kvHeads: number, 
/**
 * Context length, in tokens.
 */
context: number, 
/**
 * Number of weights.
 */
parameters: number, 
/**
 * Bytes of all weights.
 */
weightsBytes: number, 
/**
 * The requested RoPE scaling that extends the context length.
 */
stretch: string | null, 
/**
 * Whether the chat template has a switch for thinking before the answer.
 */
canThink: boolean, 
/**
 * The compute device, in words: `the CPU`, or a GPU's name.
 */
computesOn: string, 
/**
 * Why the model runs on the CPU although a GPU was requested: one sentence.
 */
whyProcessor: string | null, };

/**
 * One parameter of a method, as shown to the user.
 */
export type Parameter = { 
/**
 * Name in `--set`.
 */
name: string, 
/**
 * Default, as text if it depends on the budget.
 */
default: string, 
/**
 * The allowed values, as text.
 */
range: string, 
/**
 * The effect, in one line.
 */
meaning: string, };

/**
 * A method as displayed: its entry in the engine's table.
 */
export type MethodFacts = { 
/**
 * Name in `MethodSpec`.
 */
name: string, 
/**
 * Name in the papers.
 */
title: string, 
/**
 * Where it was published; empty for the full cache.
 */
paper: string, 
/**
 * Which rows it keeps, in a few words.
 */
keeps: string, 
/**
 * When it evicts.
 */
acts: string, 
/**
 * Its parameters.
 */
parameters: Array<Parameter>, 
/**
 * Whether it supports streaming mode.
 */
streams: boolean, 
/**
 * Whether its ranking depends on the question.
 */
seesQuestion: boolean, };

/**
 * A page and the text on it.
 */
export type PageRange = { 
/**
 * Page number in the file, from 1.
 */
number: number, 
/**
 * First UTF-16 unit.
 */
start: number, 
/**
 * One past the last UTF-16 unit.
 */
end: number, };

/**
 * One of several documents in one conversation.
 */
export type DocumentPart = { 
/**
 * The file's name.
 */
name: string, 
/**
 * `text`, `pdf`, ...
 */
kind: string, 
/**
 * First UTF-16 unit in the joined text.
 */
start: number, 
/**
 * One past its last UTF-16 unit.
 */
end: number, 
/**
 * Its pages.
 */
pages: number, };

/**
 * A heading of the document, or the name of one of several documents.
 */
export type OutlineEntry = { 
/**
 * Depth, from 1; 0 for the name of a document.
 */
level: number, 
/**
 * The heading with its number, in one line.
 */
title: string, 
/**
 * First UTF-16 unit of the heading.
 */
start: number, 
/**
 * Its page.
 */
page: number | null, };

/**
 * The open document, without its text.
 */
export type DocumentFacts = { 
/**
 * Unique for every document.
 */
id: number, 
/**
 * The file's name.
 */
name: string, 
/**
 * `text`, `pdf`, ...
 */
kind: string, 
/**
 * Bytes of the file.
 */
sourceBytes: number, 
/**
 * UTF-16 units of the text.
 */
length: number, 
/**
 * Its pages, if it has any.
 */
pages: Array<PageRange>, 
/**
 * What its pages are called: `page`, `slide`, `sheet` or `chapter`.
 */
pageNoun: string, 
/**
 * The documents that it consists of, in order; empty for a single document.
 */
documents: Array<DocumentPart>, 
/**
 * Its headings in order, at most 500.
 */
outline: Array<OutlineEntry>, 
/**
 * Notes for the user about how the file was read, one sentence each.
 */
notes: Array<string>, 
/**
 * Tokens for the open model; `None` until counted.
 */
tokens: number | null, 
/**
 * `tokens` is estimated from samples of the text: counting a document that is far too long would take long.
 */
tokensEstimated: boolean, 
/**
 * A sentence if the open model cannot read the document at all.
 */
tooLong: string | null, 
/**
 * A sentence if the document exceeds the open model's context length and is read in streaming mode.
 */
streaming: string | null, 
/**
 * The built-in sample.
 */
sample: boolean, 
/**
 * Beyond the purpose of the built-in model: any text but the sample's, whatever the file's name.
 */
beyondBox: boolean, 
/**
 * Questions to offer.
 */
suggestions: Array<string>, };

/**
 * A conversation that was left while it worked, until it is opened again.
 */
export type Elsewhere = { 
/**
 * The conversation.
 */
conversation: number, 
/**
 * The name of its document; empty without one.
 */
document: string, 
/**
 * The question that is answered or compared, or was last.
 */
question: string, 
/**
 * What goes on there, or has ended.
 */
state: ElsewhereState, 
/**
 * Further questions that wait.
 */
waiting: number, 
/**
 * Of a comparison, how many runs are done, of how many.
 */
runs: [number, number] | null, 
/**
 * How far the running question or comparison is.
 */
progress: Progress | null, };

/**
 * What goes on in a conversation that is not open.
 */
export type ElsewhereState = "waiting" | "answering" | "comparing" | "done" | "failed" | "interrupted";

/**
 * A file that is opened once the user has decided.
 */
export type PendingFile = { 
/**
 * Its name.
 */
name: string, 
/**
 * What it waits for.
 */
needs: FileNeeds, };

/**
 * What a file needs to be opened.
 */
export type FileNeeds = { "kind": "password", 
/**
 * One was typed that does not open it.
 */
wrong: boolean, } | { "kind": "recognition", 
/**
 * It is open without the text of these pages.
 */
open: boolean, 
/**
 * Pages that are images.
 */
pages: number, 
/**
 * Languages to choose from, as tesseract names them; none if a program is missing.
 */
languages: Array<string>, };

/**
 * The state of the engine's process.
 */
export type WorkerStatus = "starting" | "ready" | "restarting" | "failed";

/**
 * The engine's process.
 */
export type WorkerState = { 
/**
 * Its state.
 */
state: WorkerStatus, 
/**
 * The last problem; `None` if there is none.
 */
message: string | null, };

/**
 * The whole state, for a page that has just loaded.
 */
export type Snapshot = { settings: Settings, models: Array<ModelChoice>, model: ModelFacts | null, modelError: string | null, methods: Array<MethodFacts>, document: DocumentFacts | null, opening: string | null, pending: PendingFile | null, elsewhere: Array<Elsewhere>, turns: Array<Turn>, conversations: Array<ConversationEntry>, conversation: number | null, comparison: Comparison | null, drafts: { [key in string]: string }, thinking: boolean, worker: WorkerState, vault: Vault | null, unwritten: boolean, reading: ReadAhead | null, gpus: Gpus, saves: boolean, saveError: string | null, version: string, };

/**
 * A conversation in the list: questions about one document, or about several read together.
 */
export type ConversationEntry = { 
/**
 * Unique for every conversation.
 */
id: number, 
/**
 * The title: the user's, else the first question.
 */
title: string, 
/**
 * The name of its document; empty without one.
 */
document: string, 
/**
 * The document's id.
 */
documentId: number, 
/**
 * The document's pages, if it has any.
 */
pages: number, 
/**
 * What its pages are called: `page`, `slide`, `sheet` or `chapter`.
 */
pageNoun: string, 
/**
 * Number of questions.
 */
questions: number, 
/**
 * Time of the last question, in seconds since 1970.
 */
updated: number, 
/**
 * Whether it stands above the others.
 */
pinned: boolean, };

/**
 * A passage that a search found: of a question or an answer, or of the document.
 */
export type FoundPassage = { 
/**
 * The conversation.
 */
conversation: number, 
/**
 * The turn; `None` for the document's text.
 */
turn: number | null, 
/**
 * The passage, in pieces.
 */
pieces: Array<FoundPiece>, };

/**
 * A piece of a found passage.
 */
export type FoundPiece = { 
/**
 * Its text.
 */
text: string, 
/**
 * Whether it is a searched word.
 */
hit: boolean, };

/**
 * Where the page shows a notice.
 */
export type NoticePlace = "document" | "model" | "models" | "conversation" | "comparison" | "settings";

/**
 * The kind of a notice.
 */
export type NoticeKind = "error" | "info";

/**
 * An event from the program to the page.
 */
export type AppEvent = { "event": "worker", worker: WorkerState, } | { "event": "models", models: Array<ModelChoice>, settings: Settings, } | { "event": "model", model: ModelFacts | null, error: string | null, } | { "event": "opening", name: string | null, } | { "event": "recognising", done: number, pages: number, } | { "event": "document", document: DocumentFacts | null, turns: Array<Turn>, } | { "event": "conversations", conversations: Array<ConversationEntry>, current: number | null, } | { "event": "turn", turn: Turn, } | { "event": "turnRemoved", turn: number, } | { "event": "token", turn: number, text: string, attended: Array<[number, number]>, } | { "event": "progress", turn: number, progress: Progress, memory: Memory, } | { "event": "map", turn: number, layersDone: number, layers: number, } | { "event": "comparison", comparison: Comparison | null, } | { "event": "comparisonReference", comparison: number, result: ReferenceResult, } | { "event": "comparisonRun", comparison: number, run: number, result: RunResult, } | { "event": "comparisonProgress", comparison: number, run: number | null, sharing: number, progress: Progress, } | { "event": "comparisonEnded", comparison: number, state: ComparisonState, error: string | null, } | { "event": "thinking", thinking: boolean, } | { "event": "vault", vault: Vault | null, unwritten: boolean, } | { "event": "saving", saveError: string | null, } | { "event": "readAhead", reading: ReadAhead | null, } | { "event": "gpus", gpus: Gpus, } | { "event": "library", library: Library, } | { "event": "downloads", downloads: Array<Download>, } | { "event": "elsewhere", elsewhere: Array<Elsewhere>, } | { "event": "pending", file: PendingFile | null, } | { "event": "drag", files: number, refusal: string | null, } | { "event": "notice", kind: NoticeKind, where: NoticePlace, message: string, };

/**
 * The state of a comparison.
 */
export type ComparisonState = "running" | "done" | "stopped" | "failed";

/**
 * A finished run.
 */
export type RunResult = { 
/**
 * Duration in seconds, measurements included.
 */
seconds: number, 
/**
 * The result.
 */
report: RunReport, };

/**
 * The full cache's run.
 */
export type ReferenceResult = { 
/**
 * Duration in seconds, measurements included.
 */
seconds: number, 
/**
 * The result.
 */
report: ReferenceReport, };

/**
 * One method at one budget.
 */
export type ComparisonRun = { 
/**
 * The method and budget.
 */
choice: Choice, 
/**
 * The result, once the run is finished.
 */
result: RunResult | null, };

/**
 * Methods and budgets compared with the full cache, for one question about the open document.
 */
export type Comparison = { 
/**
 * Unique while the app window is open.
 */
id: number, 
/**
 * As typed by the user.
 */
question: string, 
/**
 * The document's name.
 */
document: string, 
/**
 * The model's label.
 */
model: string, 
/**
 * Maximum answer length that the methods are compared along, in tokens.
 */
maxTokens: number, 
/**
 * Cache type of the runs; `None` is the default.
 */
cache: string | null, 
/**
 * Its state.
 */
state: ComparisonState, 
/**
 * Why it failed, one sentence.
 */
error: string | null, 
/**
 * The full cache's run, once it is done.
 */
reference: ReferenceResult | null, 
/**
 * The others, in the order in which they run.
 */
runs: Array<ComparisonRun>, 
/**
 * Index of the current run, from 0; `None` during the full cache's run, and if none runs.
 */
current: number | null, 
/**
 * Number of runs that share the current prefill: the current run and the ones after it.
 */
sharing: number, 
/**
 * Progress of the current run, once known.
 */
progress: Progress | null, };

/**
 * The GPUs of a computer, as printed by `kept-worker --gpus` in one line.
 */
export type Gpus = { 
/**
 * The usable GPUs.
 */
gpus: Array<Gpu>, 
/**
 * Why there is no usable GPU: one sentence.
 */
whyNone: string | null, };

/**
 * A GPU that this build supports.
 */
export type Gpu = { 
/**
 * Its name for `--device`.
 */
device: string, 
/**
 * Its product name.
 */
name: string, 
/**
 * Compute capability, as in 8.6.
 */
capability: string, 
/**
 * Bytes of its memory.
 */
memory: number, 
/**
 * Bytes of it that are free now.
 */
free: number, };

/**
 * How well a model fits in a machine's memory.
 */
export type Fit = "fits" | "tight" | "unknown" | "tooLarge";

/**
 * A model on this computer.
 */
export type FoundModel = { 
/**
 * Id for commands.
 */
id: string, 
/**
 * Name, as in the terminal program.
 */
name: string, 
/**
 * Title in the file's metadata.
 */
title: string | null, 
/**
 * Architecture in the file's metadata.
 */
architecture: string | null, 
/**
 * Quantisation of the weights.
 */
quantisation: string | null, 
/**
 * Size of all parts.
 */
bytes: number, 
/**
 * Number of parts on disk.
 */
parts: number, 
/**
 * Number of parameters, if known.
 */
parameters: number | null, 
/**
 * Context length of the model.
 */
context: number | null, 
/**
 * The owner of its folder: `hub cache`, `LM Studio`, ...
 */
place: string, 
/**
 * Path for display.
 */
lies: string, 
/**
 * Why Kept cannot open it; `None` if it can, judged by the header.
 */
reason: string | null, 
/**
 * It has a chat template; other models continue a text instead of answering.
 */
chats: boolean, 
/**
 * Its id in the list of chosen models, if it was chosen before.
 */
choice: string | null, 
/**
 * The built-in model.
 */
inBox: boolean, 
/**
 * Kept may remove it.
 */
removable: boolean, };

/**
 * An unfinished download of any program.
 */
export type UnfinishedModel = { 
/**
 * Id for commands.
 */
id: string, 
/**
 * The repository or file, if known.
 */
name: string, 
/**
 * Downloaded bytes.
 */
bytes: number | null, 
/**
 * The owner of its folder.
 */
place: string, 
/**
 * It is in the hub's cache, where Kept can resume or remove it.
 */
ours: boolean, };

/**
 * A folder that the user added.
 */
export type ModelFolder = { 
/**
 * Id for commands.
 */
id: string, 
/**
 * Path for display.
 */
path: string, };

/**
 * A recommended model.
 */
export type CatalogueModel = { 
/**
 * Displayed name.
 */
name: string, 
/**
 * Reference for the download command.
 */
reference: string, 
/**
 * Approximate size in bytes.
 */
aboutBytes: number, 
/**
 * Minimum memory for comfortable use.
 */
needsBytes: number, 
/**
 * Approximate number of parameters.
 */
parameters: number, 
/**
 * Context length of the model.
 */
context: number, 
/**
 * SPDX identifier, or the licence's own name.
 */
licence: string, 
/**
 * Its purpose, in a sentence.
 */
goodFor: string, 
/**
 * How it suits the free memory.
 */
suits: Fit, 
/**
 * Pages that this computer's processor reads in a minute with it, about; once that was measured.
 */
pagesPerMinute: number | null, 
/**
 * Id of the same model on this computer, if it is present.
 */
here: string | null, };

/**
 * Models on this computer and recommended models.
 */
export type Library = { 
/**
 * Models on this computer, the built-in one first.
 */
found: Array<FoundModel>, 
/**
 * Unfinished downloads that are not in the download list.
 */
unfinished: Array<UnfinishedModel>, 
/**
 * One sentence per folder that could not be searched.
 */
troubles: Array<string>, 
/**
 * Folders that the user added.
 */
folders: Array<ModelFolder>, 
/**
 * Recommended models, the best for this machine first; `None` while the processor is measured.
 */
catalogue: Array<CatalogueModel> | null, 
/**
 * Memory that is free now.
 */
freeMemory: number | null, 
/**
 * Free bytes of the disk that downloads go to.
 */
freeDisk: number | null, 
/**
 * Downloads are disabled (`HF_HUB_OFFLINE`).
 */
offline: boolean, };

/**
 * The state of a download.
 */
export type DownloadState = "queued" | "asking" | "checking" | "downloading" | "waiting" | "stopping" | "paused" | "finished" | "failed";

/**
 * A download.
 */
export type Download = { 
/**
 * Id for commands.
 */
id: number, 
/**
 * `owner/name:file`.
 */
reference: string, 
/**
 * Its state.
 */
state: DownloadState, 
/**
 * Downloaded bytes; while checking, bytes rehashed.
 */
bytesDone: number, 
/**
 * 0 until the hub has answered.
 */
bytesTotal: number, 
/**
 * Speed over the last seconds.
 */
bytesPerSecond: number | null, 
/**
 * Remaining seconds at that speed.
 */
secondsLeft: number | null, 
/**
 * The current part, from 1.
 */
part: number, 
/**
 * Number of parts.
 */
parts: number, 
/**
 * One sentence: why it failed, or what it waits for.
 */
message: string | null, 
/**
 * Once finished: the id of the downloaded model.
 */
model: string | null, };

/**
 * A model that a repository offers.
 */
export type HubOffer = { 
/**
 * Reference for the download command.
 */
reference: string, 
/**
 * Its first file's path in the repository.
 */
file: string, 
/**
 * Size of all parts.
 */
bytes: number, 
/**
 * Number of parts.
 */
parts: number, 
/**
 * Quantisation, from its name.
 */
quantisation: string | null, 
/**
 * How its weights suit the memory that is free now.
 */
suits: Fit, 
/**
 * It is the file that the user typed.
 */
meant: boolean, 
/**
 * Id of the same model on this computer, if it is present.
 */
here: string | null, };

/**
 * What can be read with one budget.
 */
export type FitLine = { 
/**
 * Rows per KV head and layer that are kept; `None` for the full cache.
 */
rows: number | null, 
/**
 * The longest prompt, in tokens; 0 if not even a short one fits.
 */
tokens: number, 
/**
 * The longest prompt in pages of [`TOKENS_PER_PAGE`].
 */
pages: number, 
/**
 * Peak bytes of the longest prompt, weights included.
 */
peak_bytes: number, 
/**
 * Whether the context length limits the prompt, not memory.
 */
whole_context: boolean, };

/**
 * What a model can read with the free memory, computed from its header alone.
 */
export type Inspection = { 
/**
 * Layers.
 */
layers: number, 
/**
 * Sliding-window layers: they keep their window, whatever the method.
 */
slidingLayers: number, 
/**
 * Recurrent layers: they have a state of constant size and keep no tokens.
 */
recurrentLayers: number, 
/**
 * Window of the first sliding-window layer, in positions.
 */
window: number | null, 
/**
 * Context length in tokens, with the requested RoPE scaling.
 */
context: number, 
/**
 * Bytes of all weights.
 */
weightsBytes: number, 
/**
 * Bytes of 1,000 tokens in the full cache.
 */
kvBytesPerThousand: number, 
/**
 * Bytes of the sliding-window and recurrent layers in a long text.
 */
windowBytes: number, 
/**
 * Whether the chat template has a switch for thinking before the answer.
 */
canThink: boolean, 
/**
 * Memory that is free now, where the system reports it.
 */
freeBytes: number | null, 
/**
 * Bytes that are missing to read a single page; 0 if it fits.
 */
missingBytes: number, 
/**
 * A line per budget; empty if the free memory is unknown.
 */
lines: Array<FitLine>, };

/**
 * Memory in use at one moment of a question.
 */
export type Memory = { 
/**
 * The model file's tensors, mapped.
 */
weights: number, 
/**
 * Kept keys and values of prompt and answer.
 */
kept: number, 
/**
 * Size of the full cache for the whole prompt and the answer so far.
 */
keptFull: number, 
/**
 * Data of the method other than rows.
 */
tables: number, 
/**
 * All other allocations: scratch buffers of prefill or decode, capacity for the rest of the answer.
 */
scratch: number, 
/**
 * Resident memory of this process, where the system reports it.
 */
resident: number | null, 
/**
 * Available memory of the machine, where the system reports it.
 */
available: number | null, 
/**
 * Total memory of the machine, where the system reports it.
 */
total: number | null, };

/**
 * Why an estimate was refused.
 */
export type Refusal = { 
/**
 * One sentence.
 */
message: string, 
/**
 * The kind of the refusal, if the page offers a solution.
 */
code: RefusalCode | null, };

/**
 * Kinds of refusals for which the page offers a solution or marks the invalid field.
 */
export type RefusalCode = { "kind": "memoryLimit" } | { "kind": "cacheType" } | { "kind": "parameter", 
/**
 * Its name.
 */
name: string, };

/**
 * The estimated cost of a question.
 */
export type Estimate = { 
/**
 * Tokens of document and question together.
 */
promptTokens: number, 
/**
 * Rows per KV head.
 */
rows: number, 
/**
 * Estimated memory.
 */
memory: Memory, 
/**
 * Further notes for the user, one sentence or more each.
 */
notes: Array<string>, 
/**
 * The choice of `auto`.
 */
chosen: Chosen | null, 
/**
 * Tokens of the prompt that come from the vault and need no prefill.
 */
tokensFromVault: number, 
/**
 * Tokens that are read besides the prompt, for KVzip; 0 with other methods, and once the vault has its scores.
 */
tokensToRepeat: number, 
/**
 * Type of the kept rows, as in [`super::Settings`].
 */
cache: string, };

/**
 * The choice of `auto`, and its reason.
 */
export type Chosen = { 
/**
 * The method's name.
 */
method: string, 
/**
 * Rows per KV head.
 */
rows: number, 
/**
 * The reason, in one sentence.
 */
reason: string, };

/**
 * A source passage of an answer.
 */
export type Source = { 
/**
 * First UTF-16 code unit of the document's text.
 */
start: number, 
/**
 * One past the last UTF-16 code unit.
 */
end: number, 
/**
 * Page, if the document has pages.
 */
page: number | null, 
/**
 * Name of the document that contains the passage, if several were joined.
 */
document: string | null, 
/**
 * The text of the passage.
 */
text: string, 
/**
 * Share of the answer's attention votes, 0 to 1.
 */
weight: number, 
/**
 * Mean share of the layer-head slots that keep the passage, 0 to 1.
 */
kept: number, };

/**
 * A passage that a sentence of the answer stands on; a sentence can have several.
 */
export type Citation = { 
/**
 * One past the end of the sentence in the answer's text: in bytes, or in UTF-16 units where the app uses it.
 */
end: number, 
/**
 * Index of the passage in the answer's sources.
 */
source: number, };

/**
 * A reason to doubt an answer.
 */
export type Doubt = "forgotten" | "unseen";

/**
 * What a token of an answer attended to in the document.
 */
export type Attended = { 
/**
 * UTF-16 units of the answer before the token.
 */
said: number, 
/**
 * Entries of the map with the attention they got, 255 for the most in the answer; in descending order.
 */
cells: Array<[number, number]>, };

/**
 * What a picture of the map shows.
 */
export type PictureOf = "memory" | "question" | "attention";

/**
 * The state of a question.
 */
export type TurnState = "waiting" | "asked" | "reading" | "answering" | "done" | "stopped" | "failed";

/**
 * The cost of an answer and how it ended.
 */
export type Facts = { 
/**
 * Why it ended.
 */
finish: Finish, 
/**
 * Tokens of document and question.
 */
promptTokens: number, 
/**
 * Tokens of the answer.
 */
answerTokens: number, 
/**
 * Rows per KV head, mean over the layers.
 */
rows: number, 
/**
 * Bytes of the kept keys and values.
 */
keptBytes: number, 
/**
 * Bytes of the full cache.
 */
fullBytes: number, 
/**
 * Seconds from the question to the first token.
 */
firstTokenSeconds: number, 
/**
 * Seconds of prefill.
 */
prefillSeconds: number, 
/**
 * Seconds of decode.
 */
decodeSeconds: number, 
/**
 * Tokens of the answer per second.
 */
tokensPerSecond: number, 
/**
 * Further notes for the user, one sentence each.
 */
notes: Array<string>, 
/**
 * The choice of `auto`, if it was used.
 */
chosen: Chosen | null, 
/**
 * Tokens of the prompt that came from the vault and needed no prefill.
 */
tokensFromVault: number, 
/**
 * Earlier turns of the conversation that the model saw.
 */
turnsSeen: number, 
/**
 * Mean share of layer-head slots that keep their tokens, 0 to 1; `None` without any.
 */
turnsKept: number | null, 
/**
 * For each sentence of the answer its passage, where that is clear.
 */
citations: Array<Citation>, 
/**
 * The document was read in streaming mode, which is approximate.
 */
streamed: boolean, 
/**
 * Type of the kept rows; empty in turns from before this field existed.
 */
cache: string, 
/**
 * Why the figures give reason to doubt the answer.
 */
doubt: Doubt | null, };

/**
 * A question with its answer.
 */
export type Turn = { 
/**
 * Unique.
 */
id: number, 
/**
 * As typed by the user.
 */
question: string, 
/**
 * The answer so far.
 */
answer: string, 
/**
 * Its state.
 */
state: TurnState, 
/**
 * Why it failed, one sentence.
 */
error: string | null, 
/**
 * The method's name.
 */
method: string, 
/**
 * Parameters that the user set.
 */
parameters: Parameters, 
/**
 * As requested; `None` is the default budget.
 */
budget: string | null, 
/**
 * Requested type of the kept rows; `None` left the choice to the engine.
 */
cache: string | null, 
/**
 * Memory limit, as in [`super::Settings`]; `None` was no limit.
 */
memory: string | null, 
/**
 * Instructions that the model got with the question, as in [`super::Settings`].
 */
instructions: string, 
/**
 * The model's label.
 */
model: string, 
/**
 * Passages that support the answer.
 */
sources: Array<Source>, 
/**
 * Present once the turn has ended successfully.
 */
facts: Facts | null, 
/**
 * A map is available.
 */
hasMap: boolean, 
/**
 * The model was allowed to think before it answered.
 */
thinking: boolean, 
/**
 * `[layers of the model]`: the number of last tokens that a sliding-window layer holds, whatever the method;
 * `None` for layers that the method compresses. Empty if all layers are compressed, and until prefill has started.
 */
windows: Array<number | null>, 
/**
 * The id of the first version of this question, if this is another attempt at it.
 */
versionOf: number | null, 
/**
 * The map can be shown without what is kept whatever is asked.
 */
hasLift: boolean, 
/**
 * It is known what was forgotten during the answer (`map_evictions`); false if nothing was.
 */
hasReplay: boolean, 
/**
 * Number of smaller budgets for which it is known what is kept (`map_levels`).
 */
levels: number, 
/**
 * No further budget will become known.
 */
levelsDone: boolean, };

/**
 * How a new question relates to the turns of the conversation.
 */
export type Relation = { 
/**
 * The model does not see the earlier turns.
 */
alone: boolean, 
/**
 * Another version of this turn.
 */
again: number | null, 
/**
 * It takes the place of this turn, in a branch of the conversation.
 */
edits: number | null, };

/**
 * The phase of a [`Progress`].
 */
export type Phase = "reading" | "answering";

/**
 * Progress of prefill or decode.
 */
export type Progress = { 
/**
 * The phase.
 */
phase: Phase, 
/**
 * Tokens done. Prefill counts a token once it has passed all layers.
 */
tokensDone: number, 
/**
 * Tokens in total; for an answer, the limit.
 */
tokensTotal: number, 
/**
 * Mean speed so far.
 */
tokensPerSecond: number, 
/**
 * Further tokens of the prompt whose rows the vault provides, so that they skip prefill.
 */
tokensFromVault: number, 
/**
 * Estimated seconds left at this speed; an answer may end sooner.
 */
secondsLeft: number, };

/**
 * One token of a map, or several tokens in maps of very long documents.
 */
export type TokenSlots = { 
/**
 * First UTF-16 unit.
 */
start: number, 
/**
 * One past the last UTF-16 unit.
 */
end: number, 
/**
 * Number of layer-head slots that keep it.
 */
kept: number, 
/**
 * Total number of layer-head slots.
 */
slots: number, 
/**
 * Per layer: number of slots that keep it.
 */
perLayer: Array<number>, 
/**
 * Per layer: the KV heads that keep it, from 0; empty if they are not known.
 */
heads: Array<Array<number>>, 
/**
 * Its slots per layer: the KV heads if it is one token.
 */
kvHeads: number, 
/**
 * Number of tokens that it stands for.
 */
tokens: number, 
/**
 * Its page.
 */
page: number | null, 
/**
 * Name of the document that contains it, if there are several.
 */
document: string | null, };

/**
 * What an answer kept of the earlier turns that its question saw. Offsets are UTF-16 units of `text`.
 */
export type EarlierTurns = { 
/**
 * All questions and answers.
 */
text: string, 
/**
 * The turns, oldest first.
 */
turns: Array<EarlierTurn>, 
/**
 * End of each token, ascending.
 */
ends: Array<number>, 
/**
 * Number of layer-head slots that keep each token.
 */
counts: Array<number>, 
/**
 * Total number of layer-head slots.
 */
slots: number, };

/**
 * An earlier turn in [`EarlierTurns`].
 */
export type EarlierTurn = { 
/**
 * Its number in the conversation, from 1.
 */
number: number, 
/**
 * First unit and one past the last unit of the question.
 */
question: [number, number], 
/**
 * Likewise of the answer.
 */
answer: [number, number], 
/**
 * Mean share of slots that keep its tokens, 0 to 1.
 */
kept: number, };

/**
 * A layer of the model in the table of the map.
 */
export type LayerRow = { 
/**
 * Number of the layer in the model, from 1.
 */
number: number, 
/**
 * Its index in the map, from 0; `None` for a layer that the method does not compress.
 */
layer: number | null, 
/**
 * The number of last tokens that a layer without compression holds.
 */
window: number | null, 
/**
 * Mean share of its slots that keep the document's tokens, 0 to 1; `None` until prefill has reached the layer.
 */
mean: number | null, };

/**
 * A row of the table of the map.
 */
export type TableRow = { 
/**
 * `page 3`, or `20-30 %`.
 */
name: string, 
/**
 * First UTF-16 unit.
 */
start: number, 
/**
 * Mean share of slots that keep its tokens, 0 to 1.
 */
mean: number, 
/**
 * The largest share of one of its tokens.
 */
max: number, };

/**
 * The vaults on disk.
 */
export type Vault = { 
/**
 * How documents are stored: `q8_0`, `f16` or `off`.
 */
kind: string, 
/**
 * The folder, for display.
 */
folder: string, 
/**
 * Number of stored documents.
 */
documents: number, 
/**
 * Bytes of all vaults on disk.
 */
bytes: number, 
/**
 * Bytes that all vaults may take on disk.
 */
budget: number, 
/**
 * The stored documents, most recently used first.
 */
stored: Array<StoredDocument>, };

/**
 * A document in the vaults.
 */
export type StoredDocument = { 
/**
 * Its name.
 */
name: string, 
/**
 * Its tokens, with those of the template before it; the most, if several models have read it.
 */
tokens: number, 
/**
 * Bytes of its vaults on disk.
 */
bytes: number, 
/**
 * When one of them was last used, in seconds since 1970.
 */
used: number, };

/**
 * The document is read in the background, or this was stopped, or waits for the user because it takes long.
 */
export type ReadAhead = { 
/**
 * It runs; otherwise the user can let it go on.
 */
running: boolean, 
/**
 * How far it has come; `None` if it waits.
 */
progress: Progress | null, };

/**
 * Why an answer ended.
 */
export type Finish = "end" | "length" | "context" | "stopped" | "repetition";

/**
 * Report of the run with the full cache.
 */
export type ReferenceReport = { 
/**
 * Always `reference`.
 */
run: string, 
/**
 * Always `full`.
 */
method: string, 
/**
 * The model's name.
 */
model: string, 
/**
 * Tokens of the prompt.
 */
prompt_tokens: number, 
/**
 * The full cache's greedy answer.
 */
answer: string, 
/**
 * Tokens of the answer.
 */
answer_tokens: number, 
/**
 * Why the answer ended.
 */
finish: Finish, 
/**
 * Bytes of the full cache after prefill.
 */
kv_bytes: number, 
/**
 * Seconds until the first token, without the time of measurements.
 */
first_token_seconds: number, 
/**
 * Tokens of the answer per second, without measuring time; 0 without an answer.
 */
decode_tokens_per_second: number, 
/**
 * `[layers][kv_heads]`: sparsity and redundancy.
 */
heads: Array<Array<HeadFigures>>, 
/**
 * Wavelet figures of the last recorded token's query; `None` without an answer or with a very short prompt.
 */
wavelet: WaveletFigures | null, };

/**
 * One KV head of one layer.
 */
export type HeadFigures = { 
/**
 * 1 minus the smallest share of tokens that together hold [`SCORE_SHARE`] of the global-local score.
 */
sparsity: number, 
/**
 * Share of tokens for which an earlier token has a product of key and value cosines of at least [`SIMILAR`].
 */
redundancy: number, };

/**
 * Mean magnitude of each level's detail by position.
 */
export type WaveletFigures = { 
/**
 * Tokens that the query attends to.
 */
tokens: number, 
/**
 * Position of the first value: [`MARGIN`], or 0 if the text is too short for margins.
 */
first: number, 
/**
 * Positions averaged into one value; the last value may average fewer.
 */
positions_per_point: number, 
/**
 * `[levels][points]`, from level 1 (adjacent positions) to level 5 (blocks of 32).
 */
levels: Array<Array<number>>, };

/**
 * Report of one method at one budget.
 */
export type RunFacts = { 
/**
 * Always `method`.
 */
run: string, 
/**
 * The method's name.
 */
method: string, 
/**
 * Name and parameters, which distinguish runs of one method: `snapkv[w=8]`; the name alone without parameters.
 */
label: string, 
/**
 * The parameters, as `name=value`.
 */
parameters: Array<string>, 
/**
 * The budget, as the user entered it.
 */
budget: string, 
/**
 * Tokens of the prompt.
 */
prompt_tokens: number, 
/**
 * Why there is no result, in one sentence.
 */
refused: string | null, };

/**
 * Result of one method at one budget.
 */
export type MethodRun = { 
/**
 * Rows per KV head and layer that the budget amounts to.
 */
budget_rows: number, 
/**
 * Rows per KV head kept of the prompt, per layer.
 */
rows_per_layer: Array<number>, 
/**
 * Name of the cache type.
 */
cache: string, 
/**
 * Bytes of the kept keys and values after prefill.
 */
kv_bytes: number, 
/**
 * Bytes of the full cache at the prompt's length.
 */
kv_bytes_full: number, 
/**
 * Seconds of prefill, selection included.
 */
prefill_seconds: number, 
/**
 * Seconds spent observing, selecting and gathering.
 */
select_seconds: number, 
/**
 * Seconds until the first token of the answer.
 */
first_token_seconds: number, 
/**
 * Tokens per second when the full cache's answer runs over the compact cache; 0 without an answer.
 */
decode_tokens_per_second: number, 
/**
 * The method's own greedy answer.
 */
answer: string, 
/**
 * Why it ended.
 */
finish: Finish, 
/**
 * Whether it equals the full cache's answer exactly.
 */
same_answer: boolean, 
/**
 * Distance from the full cache.
 */
fidelity: Fidelity, 
/**
 * Statistics of the selection.
 */
indices: IndexFigures, };

/**
 * Distance of the compact cache from the full cache, along the full cache's answer. Means are over the distributions
 * after each token of the answer; `None` if the answer is empty.
 */
export type Fidelity = { 
/**
 * Mean `KL(full || method)` of the next-token distributions, in nats.
 */
kl: number | null, 
/**
 * Share of distributions with the same most likely token.
 */
top1: number | null, 
/**
 * Share of the full cache's attention that falls on rows which the method holds: mean over layers, see
 * `recall.rs`.
 */
attention_recall: number | null, 
/**
 * `[layers]`: attention recall by layer; empty without an answer.
 */
attention_recall_per_layer: Array<number>, 
/**
 * `[answer tokens]`: KL after each token.
 */
kl_per_token: Array<number>, 
/**
 * KL of the distribution before the first token, which most methods do not change.
 */
first_kl: number, };

/**
 * Figures of one selection.
 */
export type IndexFigures = { 
/**
 * Mean Jaccard similarity of the kept positions of adjacent layers, over all pairs and KV heads; `None` with one
 * layer. Every kept position counts, including sinks and observation window.
 */
jaccard: number | null, 
/**
 * The same for the first KV head only, as in ChunkKV's appendix B.2.1.
 */
jaccard_first_head: number | null, 
/**
 * `[layers][layers]`: Jaccard similarity of any two layers, mean over KV heads.
 */
layer_similarity: Array<Array<number>>, 
/**
 * `[bins]`: share of all kept rows (over all layers and heads) in each of up to [`BINS`] equal parts of the
 * prompt. Sums to 1.
 */
position_histogram: Array<number>, 
/**
 * Entropy of this histogram in nats; `ln(bins)` for an even distribution.
 */
position_entropy: number, 
/**
 * `ln(bins)`, the maximum.
 */
position_entropy_most: number, };

/** A run: refused with a message, or with the fields of `MethodRun`. */
export type RunReport = RunFacts & ({ refused: string } | ({ refused: null } & MethodRun));
