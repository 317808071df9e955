/** Limits in Settings. The program parses amounts of bytes and checks them. */

/** The program's argument for a field's text; null for an empty field, which leaves the value to the program. */
export function amount(field: string): string | null {
  const typed = field.trim()
  return typed === '' || /^auto(matic)?$/i.test(typed) ? null : typed
}

/**
 * Whether two refusals are the same but for their amounts: those of the estimate are for an ordinary question, not for the
 * one that was asked.
 */
export function saysTheSame(one: string | null | undefined, other: string | null | undefined): boolean {
  const said = (sentence: string) => sentence.replace(/\d[\d.,]* (?:[KMGT]i)?B/g, '')
  return !!one && !!other && said(one) === said(other)
}

/** The most tokens that an answer may have. */
export const LONGEST = 32768
