/** Copies a text; whether that worked. */
export async function copyText(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text)
    return true
  } catch {
    // Without the clipboard API: through a selection, as with the keyboard.
    const area = document.createElement('textarea')
    area.value = text
    const before = document.activeElement
    // Inside an open dialog: the rest of the page takes no focus.
    const place = document.querySelector('dialog[open]') ?? document.body
    place.append(area)
    area.select()
    const done = document.execCommand('copy')
    area.remove()
    if (before instanceof HTMLElement) before.focus({ preventScroll: true })
    return done
  }
}
