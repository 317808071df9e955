/** Colours of pictures that are drawn by hand, from the page's own (`tokens.css`). */
import type { Ink } from './minimap'

/** By theme and name: asking the browser would lay out the page again, in every frame of a drag. */
const known = new Map<string, number[]>()

/** The numbers of a custom property of the page. */
export function numbersOf(element: Element, name: string): number[] {
  const theme = document.documentElement.dataset['theme']
  const key = `${theme}/${name}`
  const found = known.get(key) ?? getComputedStyle(element).getPropertyValue(name).trim().split(/\s+/).map(Number)
  if (theme !== undefined) known.set(key, found)
  return found
}

export function inkOf(element: Element): Ink {
  return {
    mark: numbersOf(element, '--mark'),
    strength: numbersOf(element, '--picture-strength')[0]!,
    ink: numbersOf(element, '--lines'),
    faint: numbersOf(element, '--lines-strength')[0]!,
  }
}
