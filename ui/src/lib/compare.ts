/**
 * A comparison as a table: the proposed runs, the contents of each column, the sort order, the expected time. All
 * figures are the engine's; this module renders nothing.
 */
import type {
  Choice,
  Comparison,
  Facts,
  MethodFacts,
  MethodRun,
  Parameters,
  Progress,
  RunReport,
  Settings,
} from './contract'
import { label } from './budget'
import { bytes, count, duration, rate } from './format'
import { titleOf } from './methods'
import { assignments } from './parameters'

/** Proposed in addition to the current one: each uses a different idea. Those missing from the engine are left out. */
const PROPOSED = ['streaming_llm', 'h2o', 'snapkv', 'pyramidkv', 'chunkkv', 'treekv', 'ems']

/** The budgets offered. */
export const BUDGETS = ['50%', '25%', '10%', '5%']

/** A method with its non-default parameters: an entry of the list. */
export type Entry = Pick<Choice, 'method' | 'parameters'>

/** Key that distinguishes entries: `snapkv[sinks=0,w=8]`. */
export function keyOf({ method, parameters }: Entry): string {
  const set = Object.entries(parameters).map(([name, value]) => `${name}=${value}`)
  return set.length === 0 ? method : `${method}[${set.sort().join(',')}]`
}

function distinct(entries: readonly Entry[]): Entry[] {
  const keys = entries.map(keyOf)
  return entries.filter((_, i) => keys.indexOf(keys[i]!) === i)
}

/** The list: every method with its parameters for questions, and after each its variants of `added`. */
export function entriesOf(
  methods: readonly MethodFacts[],
  parameters: Record<string, Parameters>,
  added: readonly Entry[],
): Entry[] {
  return distinct(
    methods.flatMap(({ name }) => [
      { method: name, parameters: parameters[name] ?? {} },
      ...added.filter(({ method }) => method === name),
    ]),
  )
}

/** Initial contents of a new comparison: those of the last one, else the proposed ones. `chosen` are keys. */
export function beginning(
  last: Comparison | null,
  methods: readonly MethodFacts[],
  settings: Pick<Settings, 'method' | 'parameters' | 'budget'>,
): { added: Entry[]; chosen: string[]; budgets: string[] } {
  const plain = entriesOf(methods, settings.parameters, [])
  if (last === null) {
    const names = proposedMethods(methods, settings.method)
    const chosen = plain.filter(({ method }) => names.includes(method)).map(keyOf)
    return { added: [], chosen, budgets: proposedBudgets(settings.budget) }
  }
  const choices = last.runs.map((run) => run.choice)
  const entries = distinct(choices.map(({ method, parameters }) => ({ method, parameters })))
  const listed = new Set(plain.map(keyOf))
  const budgets = choices.flatMap(({ method, budget }) => (method === 'full' || budget === null ? [] : [budget]))
  return {
    added: entries.filter((entry) => !listed.has(keyOf(entry))),
    chosen: entries.map(keyOf),
    budgets: budgets.length > 0 ? [...new Set(budgets)] : proposedBudgets(settings.budget),
  }
}

/** The proposed methods. */
export function proposedMethods(methods: readonly MethodFacts[], chosen: string): string[] {
  const wanted = new Set([...PROPOSED, chosen])
  // The full cache is the reference of all others.
  return methods.map((method) => method.name).filter((name) => name !== 'full' && wanted.has(name))
}

/** The proposed budgets: the current one and a smaller one. */
export function proposedBudgets(chosen: string | null): string[] {
  const first = chosen ?? '25%'
  return first === '10%' ? ['10%', '5%'] : [first, '10%']
}

/** Every selected method at every selected budget. */
export function runsOf(entries: readonly Entry[], budgets: readonly string[]): Choice[] {
  return entries.flatMap((entry) => {
    // The full cache has no budget: one run is enough.
    const all = entry.method === 'full' ? ['100%'] : budgets
    return all.map((budget) => ({ ...entry, budget }))
  })
}

/** Loading a document from the vault, in parts of the time of reading it. */
const LOAD = 0.02

/** How often `runs` runs read the document, at least and at most; `again`: it was compared before. */
export function readings(runs: number, keep: string, again: boolean): [number, number] {
  // All share one prefill and give the full cache's answer, or each runs prefill for itself, and again for its answer.
  if (keep === 'off') return [2, 2 * runs + 1]
  // The first run fills the vault; some methods need sums that it lacks.
  return [(again ? 0 : 1) + runs * LOAD, 2 + 2 * runs * LOAD]
}

/**
 * Lower and upper bound, in seconds, of `runs` runs that read the document `often`. `speed` is the model's in tokens per
 * second, where it is known: a question may have had the document from the vault.
 */
export function expected(
  facts: Facts | null,
  speed: number | undefined,
  runs: number,
  often: [number, number],
): [number, number] | null {
  if (!facts || speed === undefined) return null
  const { promptTokens, decodeSeconds } = facts
  const read = promptTokens / speed
  return [often[0] * read + (runs + 1) * decodeSeconds, often[1] * read + (2 * runs + 1) * decodeSeconds]
}

/** Seconds left, by the mean of the finished runs; null before a third of them: the first include the reading of all. */
export function remaining({ runs }: Comparison): number | null {
  const times = runs.flatMap((run) => (run.result ? [run.result.seconds] : []))
  if (times.length === 0 || times.length < runs.length / 3) return null
  const mean = times.reduce((sum, seconds) => sum + seconds, 0) / times.length
  return mean * (runs.length - times.length)
}

/** Unfinished runs that share the current prefill, or the full cache's run. */
function goingOn({ runs, current, sharing }: Comparison): number {
  if (current === null) return 1
  return runs.slice(current, current + sharing).filter((run) => run.result === null).length
}

/** How much of a reading is done. Loading a document from the vault is little of it. */
function readShare(progress: Progress | null): number {
  if (!progress || progress.tokensTotal === 0 || progress.tokensFromVault > progress.tokensTotal) return 0
  return Math.min(1, progress.tokensDone / progress.tokensTotal)
}

/**
 * Share of all runs that is done, including the full cache's. Runs that answer differently read a second time: the first
 * reading is half of their work.
 */
export function doneShare(comparison: Comparison): number {
  const { runs, reference, progress } = comparison
  const done = runs.filter((run) => run.result !== null).length + (reference ? 1 : 0)
  return Math.min(1, (done + (goingOn(comparison) * readShare(progress)) / 2) / (runs.length + 1))
}

export interface Row {
  index: number
  choice: Choice
  title: string
  /** `kernel=5`, or empty. */
  set: string
  /** Title and parameters: identifies the method. */
  name: string
  /** As requested, or as the engine parsed it. */
  budget: string
  state: 'waiting' | 'running' | 'done' | 'refused' | 'left out'
  refused: string | null
  run: MethodRun | null
}

function figuresOf(report: RunReport): MethodRun | null {
  return report.refused === null ? report : null
}

/** `SnapKV w=8, sinks=0`. */
export function nameOf(entry: Entry, methods: readonly MethodFacts[]): string {
  return `${titleOf(entry.method, methods)} ${assignments(entry, methods)}`.trim()
}

/** A row per run, in execution order. */
export function rowsOf(comparison: Comparison, methods: readonly MethodFacts[]): Row[] {
  const running = comparison.state === 'running'
  return comparison.runs.map(({ choice, result }, index) => {
    const { current } = comparison
    const now = running && current !== null && current <= index && index < current + comparison.sharing
    return {
      index,
      choice,
      title: titleOf(choice.method, methods),
      set: assignments(choice, methods),
      name: nameOf(choice, methods),
      budget: label(choice.budget ?? result?.report.budget ?? null),
      state: result
        ? result.report.refused === null
          ? 'done'
          : 'refused'
        : now
          ? 'running'
          : running
            ? 'waiting'
            : 'left out',
      refused: result?.report.refused ?? null,
      run: result ? figuresOf(result.report) : null,
    }
  })
}

/** Rows with a finished run. */
export type DoneRow = Row & { run: MethodRun }

export function doneRows(rows: readonly Row[]): DoneRow[] {
  return rows.filter((row): row is DoneRow => row.run !== null)
}

/**
 * The largest budget, in percent of the prompt, at which a comparison of `question` measured another answer than with
 * everything remembered, by the method `how`; null if it measured none.
 */
export function changedAt(comparison: Comparison | null, question: string, how: Entry): number | null {
  if (comparison?.question !== question) return null
  const budgets = comparison.runs.flatMap(({ choice, result }) => {
    const run = result && keyOf(choice) === keyOf(how) ? figuresOf(result.report) : null
    return result && run && !run.same_answer ? [(100 * run.budget_rows) / Math.max(1, result.report.prompt_tokens)] : []
  })
  return budgets.length > 0 ? Math.min(100, Math.max(...budgets)) : null
}

export type ColumnName =
  | 'method'
  | 'budget'
  | 'kl'
  | 'top1'
  | 'recall'
  | 'cache'
  | 'rows'
  | 'first'
  | 'speed'
  | 'jaccard'
  | 'entropy'
  | 'answer'

export interface Column {
  name: ColumnName
  title: string
  /** A research figure, behind "Details". */
  detail: boolean
  /** Explanation, for the tooltip. */
  means: string
  /** Whether low or high values are better: determines the first sort direction. */
  best: 'low' | 'high'
  value: (run: MethodRun) => number | null
  text: (run: MethodRun) => string
  /** Filled part of its bar, 0 to 1, relative to all runs; null without bars. */
  bar: ((run: MethodRun, all: readonly MethodRun[]) => number | null) | null
}

const NONE = '–'
const share = (value: number | null) => (value === null ? NONE : `${(100 * value).toFixed(1)} %`)
const mean = (values: readonly number[]) => values.reduce((sum, v) => sum + v, 0) / Math.max(1, values.length)
const entropy = ({ indices }: MethodRun) =>
  indices.position_entropy_most > 0 ? indices.position_entropy / indices.position_entropy_most : null
const most = (all: readonly MethodRun[], value: (run: MethodRun) => number) =>
  all.reduce((largest, run) => Math.max(largest, value(run)), Number.MIN_VALUE)

/** Divergence spans orders of magnitude: the bar is empty at 0.0001 nats and full at 10. */
export function divergenceBar(kl: number | null): number | null {
  return kl === null ? null : Math.max(0, Math.min(1, (Math.log10(Math.max(kl, 1e-4)) + 4) / 5))
}

/** A short time with enough digits to distinguish runs. */
export function seconds(value: number): string {
  return value < 9.995 ? `${value.toFixed(2)} s` : duration(value)
}

/** What columns of shares that are better the higher have in common. */
const ofShare = (value: Column['value']): Omit<Column, 'name' | 'title' | 'means'> => ({
  detail: true,
  best: 'high',
  value,
  text: (run) => share(value(run)),
  bar: value,
})

/** The columns of figures, from left to right. */
export const COLUMNS: readonly Column[] = [
  {
    name: 'kl',
    title: 'Divergence',
    detail: true,
    means:
      'How far the predicted next words are from the full cache’s, along its answer: mean KL divergence in nats; 0 is the same. The bar is logarithmic.',
    best: 'low',
    value: ({ fidelity }) => fidelity.kl,
    text: ({ fidelity }) => (fidelity.kl === null ? NONE : fidelity.kl.toFixed(4)),
    bar: ({ fidelity }) => divergenceBar(fidelity.kl),
  },
  {
    name: 'top1',
    title: 'Same token',
    means: 'How often the most likely next token is the full cache’s, along its answer.',
    ...ofShare(({ fidelity }) => fidelity.top1),
  },
  {
    name: 'recall',
    title: 'Attention recall',
    means: 'Share of the full cache’s attention that falls on rows which the method still holds.',
    ...ofShare(({ fidelity }) => fidelity.attention_recall),
  },
  {
    name: 'cache',
    title: 'Memory',
    detail: false,
    means: 'Memory of what the method remembers, after reading.',
    best: 'low',
    value: (run) => run.kv_bytes,
    text: (run) => bytes(run.kv_bytes),
    bar: (run) => (run.kv_bytes_full > 0 ? Math.min(1, run.kv_bytes / run.kv_bytes_full) : null),
  },
  {
    name: 'rows',
    title: 'Rows',
    detail: true,
    means: 'Rows per head that are kept of the prompt, mean over the layers.',
    best: 'low',
    value: (run) => mean(run.rows_per_layer),
    text: (run) => count(mean(run.rows_per_layer)),
    bar: null,
  },
  {
    name: 'first',
    title: 'First word',
    detail: false,
    means: 'Seconds until the first word of the answer: reading and choosing what to remember.',
    best: 'low',
    value: (run) => run.first_token_seconds,
    text: (run) => seconds(run.first_token_seconds),
    bar: (run, all) => run.first_token_seconds / most(all, (r) => r.first_token_seconds),
  },
  {
    name: 'speed',
    title: 'Tokens/s',
    detail: false,
    means: 'Tokens per second while answering.',
    best: 'high',
    value: (run) => run.decode_tokens_per_second,
    text: (run) => rate(run.decode_tokens_per_second),
    bar: (run, all) => run.decode_tokens_per_second / most(all, (r) => r.decode_tokens_per_second),
  },
  {
    name: 'jaccard',
    title: 'Layers alike',
    means: 'Jaccard similarity of the positions that adjacent layers keep, mean.',
    ...ofShare(({ indices }) => indices.jaccard),
  },
  {
    name: 'entropy',
    title: 'Spread',
    means: 'Entropy of where the kept rows lie in the prompt; 100 % is an even spread.',
    ...ofShare(entropy),
  },
]

export interface Order {
  by: ColumnName
  descending: boolean
}

/** The order after a click on a column header: best first, then reversed, then execution order. */
export function nextOrder(order: Order | null, by: ColumnName): Order | null {
  const descending = COLUMNS.find((column) => column.name === by)?.best === 'high'
  if (order?.by !== by) return { by, descending }
  return order.descending === descending ? { by, descending: !descending } : null
}

/** Rows in an order; those without a figure are last, in execution order. */
export function sorted(rows: readonly Row[], order: Order | null): Row[] {
  if (order === null) return [...rows]
  const key = (row: Row): number | string | null => {
    if (order.by === 'method') return row.name
    if (row.run === null) return null
    if (order.by === 'budget') return row.run.budget_rows
    if (order.by === 'answer') return row.run.same_answer ? 0 : 1
    return COLUMNS.find((column) => column.name === order.by)?.value(row.run) ?? null
  }
  const keyed = rows.map((row) => ({ row, key: key(row) }))
  const compare = (a: number | string, b: number | string) => (a < b ? -1 : a > b ? 1 : 0)
  keyed.sort((a, b) => {
    if (a.key === null || b.key === null) return Number(a.key === null) - Number(b.key === null)
    return order.descending ? compare(b.key, a.key) : compare(a.key, b.key)
  })
  return keyed.map(({ row }) => row)
}

/** The methods' answers: each wording once, with its rows. The full cache's first. */
export function answersOf(
  reference: string,
  rows: readonly DoneRow[],
): { text: string; same: boolean; rows: DoneRow[] }[] {
  const found = [{ text: reference, same: true, rows: [] as DoneRow[] }]
  for (const row of rows) {
    const text = row.run.same_answer ? reference : row.run.answer
    const known = found.find((answer) => answer.text === text)
    if (known) known.rows.push(row)
    else found.push({ text, same: false, rows: [row] })
  }
  return found
}
