/**
 * The page of models in the contract (`contract.ts`): models on this computer, models worth having, downloads. The Rust side is
 * `src-tauri/src/contract/library.rs`.
 */

/** How a model suits the memory that is free now. */
export type Suits = 'fits' | 'tight' | 'tooLarge' | 'unknown'

/** Models on this computer and models worth having. */
export interface Library {
  /** Those on this computer, the one in the box first. */
  found: FoundModel[]
  /** Downloads that nobody goes on with. */
  unfinished: UnfinishedModel[]
  /** One sentence for each folder that could not be looked through. */
  troubles: string[]
  /** Folders that the person added. */
  folders: ModelFolder[]
  /** Those worth downloading, the best for this machine first. */
  catalogue: CatalogueModel[]
  freeMemory: number | null
  /** Nothing may be fetched (`HF_HUB_OFFLINE`). */
  offline: boolean
}

/** A model on this computer. */
export interface FoundModel {
  /** What commands take: never a path. */
  id: string
  /** As the terminal calls it. */
  name: string
  /** What the file calls itself. */
  title: string | null
  architecture: string | null
  quantisation: string | null
  /** All parts together. */
  bytes: number
  parts: number
  parameters: number | null
  context: number | null
  /** Whose folder it lies in. */
  place: string
  /** Where it lies, to be read. */
  lies: string
  /** Why Kept cannot open it; null if it can, as far as the header tells. */
  reason: string | null
  /** The `ModelChoice` that is this file, by its id, if it was chosen before. */
  choice: string | null
  inBox: boolean
  /** It lies where Kept may remove it. */
  removable: boolean
}

/** A download that some program has begun and not finished. */
export interface UnfinishedModel {
  id: string
  name: string
  bytes: number | null
  place: string
  /** It lies in the hub's cache: Kept can go on with it, or remove it. */
  ours: boolean
}

/** A folder that the person added. */
export interface ModelFolder {
  id: string
  path: string
}

/** A recommended model. */
export interface CatalogueModel {
  name: string
  /** What a download takes. */
  reference: string
  aboutBytes: number
  /** Memory below which it is no pleasure. */
  needsBytes: number
  parameters: number
  context: number
  licence: string
  goodFor: string
  suits: Suits
  /** The model on this computer that it is, by its id. */
  here: string | null
}

export type DownloadState =
  'queued' | 'asking' | 'checking' | 'downloading' | 'waiting' | 'stopping' | 'paused' | 'finished' | 'failed'

export interface Download {
  id: number
  /** `owner/name:file` */
  reference: string
  state: DownloadState
  /** Bytes there; while checking, bytes read again. */
  bytesDone: number
  /** 0 until the hub has answered. */
  bytesTotal: number
  bytesPerSecond: number | null
  secondsLeft: number | null
  /** The part that is downloaded now, from 1. */
  part: number
  parts: number
  /** One sentence: why it failed, or what it waits for. */
  message: string | null
  /** Once finished: the model on this computer that it has become. */
  model: string | null
}

/** A model that a repository offers. */
export interface HubOffer {
  reference: string
  file: string
  bytes: number
  parts: number
  quantisation: string | null
  suits: Suits
  /** It is what the person wrote. */
  meant: boolean
  here: string | null
}

/** What a model can read with the memory that is free now, from its header alone. */
export interface Inspection {
  layers: number
  /** Layers that hold their last tokens only, whatever the method. */
  slidingLayers: number
  /** How many. */
  window: number | null
  context: number
  weightsBytes: number
  /** What 1,000 more tokens take in the full cache. */
  kvBytesPerThousand: number
  /** What the sliding layers take in a long text. */
  windowBytes: number
  canThink: boolean
  freeBytes: number | null
  /** Bytes that are missing to read a single page; 0 when it fits. */
  missingBytes: number
  /** What each budget buys; none where the free memory is not known. */
  lines: FitLine[]
}

export interface FitLine {
  /** Rows per kv head that are kept; null keeps everything. */
  rows: number | null
  tokens: number
  pages: number
  /** At the worst moment, weights included. */
  peakBytes: number
  /** The model's context ends it, and not memory. */
  wholeContext: boolean
}
