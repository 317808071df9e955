/**
 * Comparisons in the contract (`contract.ts`). The Rust side is `src-tauri/src/contract/comparison.rs`.
 */
import type { Choice, Progress } from './contract'

export type ComparisonState = 'running' | 'done' | 'stopped' | 'failed'

/** Methods and budgets beside the full cache, for one question about the open document. */
export interface Comparison {
  id: number
  question: string
  /** The document's name. */
  document: string
  /** The model's label. */
  model: string
  /** Longest answer compared along, in tokens. */
  maxTokens: number
  state: ComparisonState
  /** Why it failed, one sentence. What was there stays. */
  error: string | null
  reference: ReferenceResult | null
  /** In the order in which they run. */
  runs: ComparisonRun[]
  /** The run that is going on; null while the full cache's does, and when none is. */
  current: number | null
  /** How many runs the reading that goes on is for: that one and those behind it. */
  sharing: number
  progress: Progress | null
}

export interface ComparisonRun {
  choice: Choice
  result: RunResult | null
}

export interface ReferenceResult {
  /** That it took, measuring and all. */
  seconds: number
  report: ReferenceReport
}

export interface RunResult {
  seconds: number
  report: RunReport
}

// What follows is written by the engine, in its own names: the lines of `kept compare --json`, which are what is exported too.

export interface ReferenceReport {
  run: 'reference'
  method: string
  model: string
  prompt_tokens: number
  answer: string
  answer_tokens: number
  finish: 'end' | 'length' | 'context' | 'stopped' | 'repetition'
  kv_bytes: number
  first_token_seconds: number
  decode_tokens_per_second: number
  /** `[layers][kv heads]` */
  heads: HeadFigures[][]
  wavelet: WaveletFigures | null
}

export interface HeadFigures {
  /** 1 minus the smallest share of tokens that together hold 95 % of the score. */
  sparsity: number
  /** Share of tokens that are like an earlier one. */
  redundancy: number
}

export interface WaveletFigures {
  tokens: number
  first: number
  positions_per_point: number
  /** `[levels][points]`, from neighbours to blocks of 32. */
  levels: number[][]
}

/** A run: refused with a sentence, or with what `MethodRun` has. */
export type RunReport = RunFacts & ({ refused: string } | ({ refused: null } & MethodRun))

export interface RunFacts {
  run: 'method'
  method: string
  /** Name and parameters as one: `snapkv[w=8]`; the name where nothing is set. */
  label: string
  /** As `name=value`. */
  parameters: string[]
  budget: string
  prompt_tokens: number
  refused: string | null
}

export interface MethodRun {
  budget_rows: number
  rows_per_layer: number[]
  kv_bytes: number
  kv_bytes_full: number
  /** How kept rows were stored: f32, f16, q8_0 or q4_0. */
  cache: string
  prefill_seconds: number
  select_seconds: number
  first_token_seconds: number
  decode_tokens_per_second: number
  answer: string
  /** Word for word the full cache's. */
  same_answer: boolean
  fidelity: Fidelity
  indices: IndexFigures
}

export interface Fidelity {
  /** Mean KL divergence from the full cache's next-token distributions, in nats; null without an answer. */
  kl: number | null
  /** Share of them with the same likeliest token. */
  top1: number | null
  /** Share of the full cache's attention that falls on rows which the method holds. */
  attention_recall: number | null
  attention_recall_per_layer: number[]
  kl_per_token: number[]
  first_kl: number
}

export interface IndexFigures {
  /** Mean Jaccard similarity of what adjacent layers keep; null with one layer. */
  jaccard: number | null
  jaccard_first_head: number | null
  /** `[layers][layers]` */
  layer_similarity: number[][]
  /** Share of all kept rows in each of up to 32 equal parts of the prompt. */
  position_histogram: number[]
  /** In nats. */
  position_entropy: number
  position_entropy_most: number
}
