/** The keyboard shortcuts: the command of each combination (`commandOf`), and the list for the user. */

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
  | 'larger'
  | 'smaller'
  | 'ordinary'

/** Commands of keys with Ctrl, and of keys alone. */
const CONTROL = new Map<string, Command>([
  ['o', 'open'],
  [',', 'settings'],
  ['l', 'composer'],
  ['f', 'find'],
  ['b', 'sidebar'],
  ['0', 'ordinary'],
])
const PLAIN = new Map<string, Command>([
  ['/', 'composer'],
  ['?', 'shortcuts'],
  ['n', 'next'],
  ['p', 'previous'],
  ['t', 'table'],
  ['g', 'grid'],
  ['c', 'compare'],
  ['m', 'models'],
])

/**
 * The command of a key press, or null. While typing (`typing`), only combinations with Ctrl and the function keys
 * count.
 */
export function commandOf(event: KeyboardEvent, typing: boolean): Command | null {
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
  return (!typing && PLAIN.get(event.key)) || null
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
  ['Ctrl + O', 'Open a document'],
  ['Ctrl + L  or  /', 'Write a question'],
  ['Ctrl + F', 'Find in the document'],
  ['Ctrl + B', 'Show or hide the conversations'],
  ['Ctrl + ,', 'Settings'],
  ['Ctrl + plus, minus, 0', 'Larger, smaller, normal text'],
  ['n, p  or  Alt + ↓, ↑', 'Next and previous highlight'],
  ['Home, End, Page Up, Page Down', 'Move through the document'],
  ['t', 'List of what is remembered and forgotten'],
  ['g', 'Which layer and head remembers what'],
  ['c', 'Compare methods'],
  ['m', 'Models'],
  ['F1  or  ?', 'This list'],
]
