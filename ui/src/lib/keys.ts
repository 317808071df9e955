/**
 * The keyboard shortcuts: the command of each combination (`commandOf`), and the list for the user. Letters alone are no
 * shortcuts: they are the beginning of a question.
 */

export type Command =
  | 'open'
  | 'settings'
  | 'composer'
  | 'shortcuts'
  | 'stop'
  | 'next'
  | 'previous'
  | 'table'
  | 'grid'
  | 'find'
  | 'compare'
  | 'models'
  | 'sidebar'
  | 'new'
  | 'close'
  | 'quit'
  | 'search'
  | 'larger'
  | 'smaller'
  | 'ordinary'

/** Commands of keys with Ctrl. */
const CONTROL = new Map<string, Command>([
  ['o', 'open'],
  [',', 'settings'],
  ['l', 'composer'],
  ['f', 'find'],
  ['b', 'sidebar'],
  ['n', 'new'],
  ['w', 'close'],
  ['q', 'quit'],
  ['k', 'search'],
  ['t', 'table'],
  ['g', 'grid'],
  ['d', 'compare'],
  ['m', 'models'],
  ['0', 'ordinary'],
])

/** The command of a key press, or null. */
export function commandOf(event: KeyboardEvent): Command | null {
  const control = event.ctrlKey || event.metaKey
  if (event.isComposing) return null
  if (control && !event.altKey) {
    // Plus needs Shift on many keyboards.
    if (event.key === '+' || event.key === '=') return 'larger'
    if (event.key === '-' || event.key === '_') return 'smaller'
  }
  if (control) return (!event.altKey && !event.shiftKey && CONTROL.get(event.key.toLowerCase())) || null
  if (event.key === 'F1') return 'shortcuts'
  if (event.key === 'Escape') return 'stop'
  if (event.altKey) return event.key === 'ArrowDown' ? 'next' : event.key === 'ArrowUp' ? 'previous' : null
  return null
}

/** Whether a key writes a character into no text field. A space scrolls, or presses a button. */
export function isLost(event: KeyboardEvent): boolean {
  const { key, ctrlKey, metaKey, altKey, isComposing, target } = event
  return key.length === 1 && key !== ' ' && !ctrlKey && !metaKey && !altKey && !isComposing && !isTyping(target)
}

/** Whether a key goes to a text field rather than to the window. */
export function isTyping(target: EventTarget | null): boolean {
  if (!(target instanceof HTMLElement)) return false
  return target.matches('textarea, select, input:not([type=range])') || target.isContentEditable
}

/** Around selected text, in pixels: its boxes leave gaps between lines. */
const NEAR = 4

/** Whether the browser's context menu is of use: in a text field, and on selected text. */
export function hasMenu({ target, clientX: x, clientY: y }: MouseEvent): boolean {
  if (target instanceof Element && target.closest('textarea, input:not([type=range], [type=checkbox])')) return true
  const selection = getSelection()
  if (!selection || selection.isCollapsed) return false
  return [...selection.getRangeAt(0).getClientRects()].some(
    (box) => x >= box.left - NEAR && x <= box.right + NEAR && y >= box.top - NEAR && y <= box.bottom + NEAR,
  )
}

export const SHORTCUTS: readonly [string, string][] = [
  ['Enter', 'Ask'],
  ['Shift + Enter', 'New line in the question'],
  ['Esc', 'Stop reading or answering; close what is open'],
  ['Ctrl + L  or any letter', 'Write a question'],
  ['Ctrl + N', 'New conversation'],
  ['Ctrl + W', 'Close the document'],
  ['Ctrl + K', 'Search conversations and documents'],
  ['Ctrl + B', 'Show or hide the conversations'],
  ['Ctrl + O', 'Open a document'],
  ['Ctrl + F', 'Find in the document'],
  ['Ctrl + M', 'Models'],
  ['Ctrl + ,', 'Settings'],
  ['Ctrl + plus, minus, 0', 'Larger, smaller, normal text'],
  ['Alt + ↓, ↑', 'Next and previous highlight'],
  ['Home, End, Page Up, Page Down', 'Move through the document'],
  ['Ctrl + T', 'List of what is remembered and forgotten'],
  ['Ctrl + G', 'Which layer and head remembers what'],
  ['Ctrl + D', 'Compare methods'],
  ['Ctrl + Q', 'Quit'],
  ['F1', 'This list'],
]
