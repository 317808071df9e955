/** What every panel that opens below a button has in common: Escape, a click elsewhere and the keyboard going elsewhere close it. */
import type { Attachment } from 'svelte/attachments'

/**
 * For the element that holds button and panel. `close` is told whether the keyboard goes back to the button: after Escape it does;
 * where the person went elsewhere it stays there.
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
