/** A comparison for the tests: plausible figures, run by run. */
import type { Choice, Comparison, MethodRun, ReferenceReport, RunReport } from '../src/lib/contract'

export function referenceOf(tokens: number, layers: number, kvHeads: number, kvBytes: number): ReferenceReport {
  const random = randomFrom(11)
  return {
    run: 'reference',
    method: 'full',
    model: 'Kept mini',
    prompt_tokens: tokens,
    answer: 'The lessor pays for structural repairs to the quay wall, including storm damage.',
    answer_tokens: 19,
    finish: 'end',
    kv_bytes: kvBytes,
    first_token_seconds: 1.31,
    decode_tokens_per_second: 42.4,
    heads: Array.from({ length: layers }, () =>
      Array.from({ length: kvHeads }, () => ({ sparsity: 0.55 + random() * 0.4, redundancy: 0.1 + random() * 0.5 })),
    ),
    wavelet: {
      tokens,
      first: 32,
      positions_per_point: Math.max(1, Math.round(tokens / 128)),
      levels: Array.from({ length: 5 }, (_, level) =>
        Array.from({ length: 128 }, (_, i) => 10 ** (-3.2 - level * 0.35 + 0.8 * (i / 128) ** 2 + random() * 0.3)),
      ),
    },
  }
}

export function runOf(choice: Choice, index: number, tokens: number, layers: number, full: number): RunReport {
  const random = randomFrom(index * 97 + 5)
  const share = choice.method === 'full' ? 1 : (parseFloat(choice.budget ?? '25') || 25) / 100
  const parameters = Object.entries(choice.parameters).map(([name, value]) => `${name}=${value}`)
  const facts = {
    run: 'method' as const,
    method: choice.method,
    label: parameters.length > 0 ? `${choice.method}[${parameters.join(',')}]` : choice.method,
    parameters,
    budget: choice.budget ?? '256',
    prompt_tokens: tokens,
  }
  if (share < 0.06 && choice.method === 'streaming_llm')
    return {
      ...facts,
      refused: `StreamingLLM needs a budget of at least 64 rows per head, but the budget is ${Math.round(share * tokens)} of the prompt's ${tokens} tokens; raise the budget to 64.`,
    }
  const good = Math.min(1, 0.55 + share + random() * 0.25)
  const rows = Math.round(tokens * share)
  const perLayer = Array.from({ length: layers }, (_, l) => Math.min(1, good - 0.15 * Math.sin(l) * (1 - share)))
  const kl = Array.from({ length: 19 }, () => (share === 1 ? 0 : (1 - good) ** 2 * random() * 3 + 0.0004))
  const bins = Array.from({ length: 32 }, (_, i) => 0.3 + random() + (i > 28 ? 3 : 0) + (i === 0 ? 1 : 0))
  const sum = bins.reduce((a, b) => a + b, 0)
  const result: MethodRun = {
    budget_rows: rows,
    rows_per_layer: Array.from({ length: layers }, () => rows),
    kv_bytes: Math.round(full * share),
    kv_bytes_full: full,
    cache: 'f16',
    prefill_seconds: 1.2 + random() * 0.3,
    select_seconds: 0.02,
    first_token_seconds: 1.25 + random() * 0.3,
    decode_tokens_per_second: 40 + 30 * (1 - share) * random(),
    answer: good > 0.8 ? 'The lessor pays for structural repairs to the quay wall, including storm damage.' : 'The tenant pays for the quay wall after a storm, as far as it is not structural.',
    finish: 'end',
    same_answer: good > 0.8,
    fidelity: {
      kl: kl.reduce((a, b) => a + b, 0) / kl.length,
      top1: Math.round(19 * Math.min(1, good + 0.1)) / 19,
      attention_recall: perLayer.reduce((a, b) => a + b, 0) / layers,
      attention_recall_per_layer: perLayer,
      kl_per_token: kl,
      first_kl: 0,
    },
    indices: {
      jaccard: 0.3 + share * 0.6,
      jaccard_first_head: 0.3,
      layer_similarity: Array.from({ length: layers }, (_, a) =>
        Array.from({ length: layers }, (_, b) => (a === b ? 1 : Math.max(0.1, 0.8 - Math.abs(a - b) * 0.12 * (1.2 - share)))),
      ),
      position_histogram: bins.map((b) => b / sum),
      position_entropy: 3.2 + random() * 0.25,
      position_entropy_most: Math.log(32),
    },
  } // prettier-ignore
  return { ...facts, refused: null, ...result }
}

export function begun(id: number, question: string, runs: Choice[], document: string): Comparison {
  return {
    id,
    question,
    document,
    model: 'mini',
    maxTokens: 64,
    cache: null,
    state: 'running',
    error: null,
    reference: null,
    runs: runs.map((choice) => ({ choice, result: null })),
    current: null,
    sharing: 1,
    progress: null,
  }
}

function randomFrom(seed: number): () => number {
  let state = seed % 2147483647 || 1
  return () => (state = (state * 16807) % 2147483647) / 2147483647
}
