/** Typed amounts of bytes, and the memory limit. The program parses amounts and checks the limit. */

/** The program's argument for a field's text; null for an empty field, which leaves the value to the program. */
export function amount(field: string): string | null {
  const typed = field.trim()
  return typed === '' || /^auto(matic)?$/i.test(typed) ? null : typed
}
