/** Limits in Settings. The program parses amounts of bytes and checks them. */

/** The program's argument for a field's text; null for an empty field, which leaves the value to the program. */
export function amount(field: string): string | null {
  const typed = field.trim()
  return typed === '' || /^auto(matic)?$/i.test(typed) ? null : typed
}

/** The most tokens that an answer may have. */
export const LONGEST = 32768
