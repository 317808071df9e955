/**
 * The layers of a model in its map: those from which the method evicts, in the map's order, and the sliding-window
 * layers. `windows` is `Turn.windows`: empty if the model has no sliding-window layers.
 */
import { count } from './format'

export interface Layer {
  /** From 1, in the order of the model. */
  number: number
  /** Its index in the map, from 0; null for a sliding-window layer. */
  layer: number | null
  /** Window of a sliding-window layer, in tokens. */
  window: number | null
}

/** `cut` is the number of layers in the map. */
export function layersOf(windows: readonly (number | null)[], cut: number): Layer[] {
  const all = windows.length > 0 ? windows : Array.from({ length: cut }, () => null)
  let layer = 0
  return all.map((window, index) => ({ number: index + 1, layer: window === null ? layer++ : null, window }))
}

/** The model's number of the layer at this index of the map. */
export function numberOf(windows: readonly (number | null)[], layer: number): number {
  return layersOf(windows, layer + 1).find((one) => one.layer === layer)?.number ?? layer + 1
}

/** `Layers 1-3, 5`: ascending layer numbers as ranges; many ranges are counted instead. */
export function spans(numbers: readonly number[]): string {
  const ranges: [number, number][] = []
  for (const number of numbers) {
    const last = ranges.at(-1)
    if (last && number === last[1] + 1) last[1] = number
    else ranges.push([number, number])
  }
  if (ranges.length > 4) return `${numbers.length} layers`
  const words = ranges.map(([first, last]) => (first === last ? `${first}` : `${first}–${last}`))
  return `${numbers.length === 1 ? 'Layer' : 'Layers'} ${words.join(', ')}`
}

/**
 * `15 layers that always hold their last 512 tokens`, or for recurrent layers, whose window is 0, `24 layers that hold a
 * summary of fixed size`; null if all layers attend to all tokens.
 */
export function alwaysHeld(windows: readonly (number | null)[]): string | null {
  const layers = windows.filter((window) => window !== null).length
  if (layers === 0) return null
  if (windows.includes(0)) {
    return layers === 1
      ? '1 layer that holds a summary of fixed size'
      : `${layers} layers that hold a summary of fixed size`
  }
  const tokens = windowsOf(windows).map(count).join(' or ')
  return layers === 1
    ? `1 layer that always holds its last ${tokens} tokens`
    : `${layers} layers that always hold their last ${tokens} tokens`
}

/** The distinct windows, ascending. */
export function windowsOf(windows: readonly (number | null)[]): number[] {
  return [...new Set(windows.filter((window) => window !== null))].sort((a, b) => a - b)
}
