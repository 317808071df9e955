/**
 * The figures of the memory bar, and its segments. The bar's full width is the question's memory with the full cache,
 * so that the saving is visible for tiny and huge models alike.
 */
import { bytes } from './format'
import type { Estimate, Memory, ModelFacts, Settings, Turn } from './contract'
import type { Live } from './app.svelte'

export type Phase = 'estimate' | 'live' | 'turn'

export interface Figures {
  phase: Phase
  memory: Memory
  /** Cache type of the kept rows, by the engine's name; empty if unknown. */
  cache: string
  /** Bytes of the bar's whole width. */
  full: number
  /** Additional bytes of the full cache. During prefill, for the layers read so far. */
  saved: number
}

export interface Segment {
  name: 'weights' | 'kept' | 'tables' | 'scratch' | 'saved'
  bytes: number
  /** Share of the bar's width, 0 to 1. */
  share: number
}

/** This memory with the full cache. */
function fullOf(memory: Memory): number {
  return memory.weights + Math.max(memory.kept, memory.keptFull) + memory.tables + memory.scratch
}

/** Number of layers in a question's map. */
export interface Layers {
  turn: number
  layersDone: number
  layers: number
}

const spared = (memory: Memory, share = 1) => Math.max(0, memory.keptFull * share - memory.kept)

/**
 * The figures of the current state; null before anything is known. The estimate remains until the first layer is read.
 */
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
    // Scratch memory varies during a question; the width does not shrink with it.
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
      resident: last?.resident ?? null,
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

/** The segments in drawing order; together never wider than the bar. */
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

/** One sentence if a question would need more than the free memory; null otherwise. */
export function shortage(figures: Figures | null): string | null {
  if (!figures || figures.phase !== 'estimate' || figures.memory.available === null) return null
  const { weights, kept, tables, scratch, available } = figures.memory
  // Weights are mapped from the file: their pages count as free memory in the system's figure.
  const need = weights + kept + tables + scratch
  if (need <= available) return null
  return `This question would need about ${bytes(need)}, but only ${bytes(available)} of memory are free. A smaller budget or a smaller model would fit.`
}
