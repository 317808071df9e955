/**
 * The layers of a model in its map: those that the method cuts, in the map's order, and those that hold their last tokens whatever
 * the method. `windows` is `Turn.windows`: empty where every layer is cut.
 */
export interface Layer {
  /** From 1, in the order of the model. */
  number: number
  /** Its place in the map, from 0; null for one that is not cut. */
  layer: number | null
  /** How many of its last tokens such a layer holds. */
  window: number | null
}

/** `cut` is the number of layers in the map. */
export function layersOf(windows: readonly (number | null)[], cut: number): Layer[] {
  const all = windows.length > 0 ? windows : Array.from({ length: cut }, () => null)
  let layer = 0
  return all.map((window, index) => ({ number: index + 1, layer: window === null ? layer++ : null, window }))
}

/** The number that the model gives the layer at this place of the map. */
export function numberOf(windows: readonly (number | null)[], layer: number): number {
  return layersOf(windows, layer + 1).find((one) => one.layer === layer)?.number ?? layer + 1
}

/** The windows that there are, each once, ascending. */
export function windowsOf(windows: readonly (number | null)[]): number[] {
  return [...new Set(windows.filter((window) => window !== null))].sort((a, b) => a - b)
}
