/**
 * Common behaviour of panels below a button: Escape, a click outside and a focus change to another element close them.
 */
import type { Attachment } from 'svelte/attachments'

/**
 * For the element that contains button and panel. The argument of `close` is whether to focus the button: true after
 * Escape, false if the user moved the focus elsewhere.
 */
export function popover(isOpen: () => boolean, close: (refocus: boolean) => void): Attachment<HTMLElement> {
  return (root) => {
    const leaves = (to: EventTarget | null) => isOpen() && to instanceof Node && !root.contains(to)
    const keydown = (event: KeyboardEvent) => {
      if (!isOpen() || event.key !== 'Escape' || event.isComposing) return
      event.preventDefault()
      event.stopPropagation()
      close(true)
    }
    const focusout = (event: FocusEvent) => leaves(event.relatedTarget) && close(false)
    const pointerdown = (event: PointerEvent) => leaves(event.target) && close(false)
    root.addEventListener('keydown', keydown)
    root.addEventListener('focusout', focusout)
    window.addEventListener('pointerdown', pointerdown)
    return () => {
      root.removeEventListener('keydown', keydown)
      root.removeEventListener('focusout', focusout)
      window.removeEventListener('pointerdown', pointerdown)
    }
  }
}
