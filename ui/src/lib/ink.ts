/** Colours of pictures that are drawn by hand, from the page's own (`tokens.css`). */
import type { Ink } from './minimap'

/** The numbers of a custom property. */
export function numbersOf(element: Element, name: string): number[] {
  return getComputedStyle(element).getPropertyValue(name).trim().split(/\s+/).map(Number)
}

export function inkOf(element: Element): Ink {
  return {
    mark: numbersOf(element, '--mark'),
    strength: numbersOf(element, '--mark-strength')[0]!,
    ink: numbersOf(element, '--lines'),
    faint: numbersOf(element, '--lines-strength')[0]!,
  }
}
