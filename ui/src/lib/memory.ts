/**
 * Which figures the memory bar shows, and its segments. The bar's whole width is what the question would take with the full
 * cache, so that what is saved is seen for tiny and huge models alike.
 */
import { bytes } from './format'
import type { Estimate, Memory, ModelFacts, Settings, Turn } from './contract'
import type { Live } from './app.svelte'

export type Phase = 'estimate' | 'live' | 'turn'

export interface Figures {
  phase: Phase
  memory: Memory
  /** How kept rows are stored, by the engine's name; empty where nobody has said. */
  cache: string
  /** Bytes of the bar's whole width. */
  full: number
  /** Bytes that the full cache would take more. While a document is read, of the layers that have been read. */
  saved: number
}

export interface Segment {
  name: 'weights' | 'kept' | 'tables' | 'scratch' | 'saved'
  bytes: number
  /** Share of the bar's width, 0 to 1. */
  share: number
}

/** What this memory would be with the full cache. */
function fullOf(memory: Memory): number {
  return memory.weights + Math.max(memory.kept, memory.keptFull) + memory.tables + memory.scratch
}

/** How many of its layers a question's map has. */
export interface Layers {
  turn: number
  layersDone: number
  layers: number
}

const spared = (memory: Memory, share = 1) => Math.max(0, memory.keptFull * share - memory.kept)

/** The figures for what is going on; null when nothing is known yet. Until the first layer is read the estimate stays. */
export function figures(
  running: Turn | null,
  shown: Turn | null,
  live: Live | null,
  estimate: Estimate | null,
  model: ModelFacts | null,
  settings: Pick<Settings, 'method' | 'budget' | 'cache'> & { memory?: string | null },
  mapped: Layers | null = null,
): Figures | null {
  const layers = mapped !== null && mapped.turn === running?.id && mapped.layers > 0 ? mapped : null
  const read = live?.progress.phase === 'answering' ? 1 : layers ? layers.layersDone / layers.layers : 0
  if (running && live?.turn === running.id && (read > 0 || !estimate)) {
    // Scratch comes and goes while a question runs; the width does not follow it down.
    const full = Math.max(fullOf(live.memory), estimate ? fullOf(estimate.memory) : 0)
    const cache = running.cache ?? estimate?.cache ?? ''
    return { phase: 'live', memory: live.memory, cache, full, saved: spared(live.memory, read) }
  }
  const asShown =
    shown?.facts &&
    shown.method === settings.method &&
    shown.budget === settings.budget &&
    shown.cache === settings.cache &&
    shown.memory === (settings.memory ?? null)
  if (!running && asShown && shown.facts) {
    const facts = shown.facts
    const last = live?.turn === shown.id ? live.memory : null
    const memory: Memory = {
      weights: last?.weights ?? estimate?.memory.weights ?? model?.weightsBytes ?? 0,
      kept: facts.keptBytes,
      keptFull: facts.fullBytes,
      tables: last?.tables ?? 0,
      scratch: last?.scratch || estimate?.memory.scratch || 0,
      available: last?.available ?? estimate?.memory.available ?? null,
      total: last?.total ?? estimate?.memory.total ?? null,
    }
    return { phase: 'turn', memory, cache: facts.cache, full: fullOf(memory), saved: spared(memory) }
  }
  if (estimate) {
    const { memory } = estimate
    return { phase: 'estimate', memory, cache: estimate.cache, full: fullOf(memory), saved: spared(memory) }
  }
  return null
}

/** The segments in the order they are drawn; together never wider than the bar. */
export function segments({ memory, full, saved }: Figures): Segment[] {
  const used = memory.weights + memory.kept + memory.tables + memory.scratch
  const whole = Math.max(full, used)
  const segment = (name: Segment['name'], bytes: number): Segment => ({
    name,
    bytes,
    share: whole > 0 ? bytes / whole : 0,
  })
  return [
    segment('weights', memory.weights),
    segment('kept', memory.kept),
    segment('tables', memory.tables),
    segment('scratch', memory.scratch),
    segment('saved', saved),
  ]
}

/** One sentence if a question would need more than the machine has free; null otherwise. */
export function shortage(figures: Figures | null): string | null {
  if (!figures || figures.phase !== 'estimate' || figures.memory.available === null) return null
  const { weights, kept, tables, scratch, available } = figures.memory
  // Weights are mapped from the file: what the system calls free includes the pages they are in.
  const need = weights + kept + tables + scratch
  if (need <= available) return null
  return `This question would need about ${bytes(need)}, but only ${bytes(available)} of memory are free. A smaller budget or a smaller model would fit.`
}
