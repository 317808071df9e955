/** Amounts of bytes as they are typed, and the memory limit. What is an amount, and what fits it, is the program's to say. */

/** What the program is given for what stands in a field; null for an empty one, which leaves it to the program. */
export function amount(field: string): string | null {
  const typed = field.trim()
  return typed === '' || /^auto(matic)?$/i.test(typed) ? null : typed
}

/** Whether a refusal says that the memory limit is too small. */
export function speaksOfLimit(sentence: string | null): boolean {
  return sentence?.startsWith('The memory limit of ') ?? false
}
