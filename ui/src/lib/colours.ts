/**
 * Cividis for matrices: designed for all kinds of colour vision and for greyscale, with monotonic lightness. The ends
 * are fixed at 0 and 100 %, so a colour means the same in every document.
 */

export type Rgb = [number, number, number]

const byte = (x: number) => Math.max(0, Math.min(255, Math.round(x)))

/** The colour of a share, clamped to 0 to 1. */
export function cividis(share: number): Rgb {
  const t = Number.isFinite(share) ? Math.max(0, Math.min(1, share)) : 0
  // The published polynomial fit of the 256-entry table.
  return [
    byte(-4.54 - t * (35.34 - t * (2381.73 - t * (6402.7 - t * (7024.72 - t * 2710.57))))),
    byte(32.49 + t * (170.73 + t * (52.82 - t * (131.46 - t * (176.58 - t * 67.37))))),
    byte(81.24 + t * (442.36 - t * (2482.43 - t * (6167.24 - t * (6614.94 - t * 2475.67))))),
  ]
}

/** A CSS gradient of the whole scale, for the legend. */
export function cividisGradient(stops = 12): string {
  const parts = Array.from({ length: stops }, (_, i) => `rgb(${cividis(i / (stops - 1)).join(' ')})`)
  return `linear-gradient(90deg, ${parts.join(', ')})`
}

/** Perceived lightness of a colour, 0 to 1 (relative luminance). */
export function luminance([r, g, b]: Rgb): number {
  const linear = (x: number) => (x <= 10.31475 ? x / 3294.6 : ((x / 255 + 0.055) / 1.055) ** 2.4)
  return 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b)
}
