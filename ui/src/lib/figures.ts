/**
 * Geometry of the small figures, as SVG paths: few elements for any number of cells, so that rendering without a GPU is
 * fast.
 */
import { cividis } from './colours'

/** Colour steps of a heat map: finer ones are indistinguishable. */
const STEPS = 32

export interface Patch {
  d: string
  colour: string
}

/** A heat map of shares, 0 to 1, one unit per cell: one path per colour. `rows[y][x]`. */
export function heat(rows: readonly (readonly number[])[]): Patch[] {
  const paths = new Map<number, string>()
  rows.forEach((row, y) => {
    let x = 0
    while (x < row.length) {
      const step = stepOf(row[x]!)
      let to = x + 1
      // Adjacent cells of one colour are merged: no seams between them.
      while (to < row.length && stepOf(row[to]!) === step) to++
      paths.set(step, `${paths.get(step) ?? ''}M${x} ${y}h${to - x}v1h${x - to}z`)
      x = to
    }
  })
  return [...paths].map(([step, d]) => ({ d, colour: `rgb(${cividis(step / STEPS).join(' ')})` }))
}

function stepOf(share: number): number {
  return Number.isFinite(share) ? Math.round(Math.max(0, Math.min(1, share)) * STEPS) : 0
}

/** Bars from below, each one unit wide with a gap, of `height`. */
export function bars(values: readonly number[], largest: number, height: number, gap = 0.12): string {
  const scale = largest > 0 ? height / largest : 0
  return values
    .map((value, i) => {
      const tall = Math.max(0, Math.min(height, value * scale))
      return tall > 0 ? `M${round(i + gap / 2)} ${height}v${round(-tall)}h${round(1 - gap)}V${height}z` : ''
    })
    .join('')
}

/** A line through points one unit apart, at the middle of each; `y` is the distance from the top. */
export function line(values: readonly number[], y: (value: number) => number): string {
  return values.map((value, i) => `${i === 0 ? 'M' : 'L'}${i + 0.5} ${round(y(value))}`).join('')
}

/**
 * A scale of powers of ten for positive numbers: from the power below the minimum to the one above the maximum, at most
 * `decades`.
 */
export function decades(values: readonly number[], most = 6): { lowest: number; highest: number } {
  const logs = values.filter((value) => value > 0).map(Math.log10)
  if (logs.length === 0) return { lowest: -1, highest: 0 }
  const highest = Math.ceil(logs.reduce((a, b) => Math.max(a, b)))
  const lowest = Math.floor(logs.reduce((a, b) => Math.min(a, b)))
  return { lowest: Math.min(highest - 1, Math.max(lowest, highest - most)), highest }
}

function round(value: number): number {
  return Math.round(value * 1000) / 1000
}
