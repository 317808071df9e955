/**
 * A memory budget as it is written (`25%`, `512`, `64MiB`) and as the slider and the field show it. Whether it is possible is
 * the program's to say, in its own sentence.
 */

/** What the program is given for what stands in the field; null for an empty one, the automatic budget. */
export function written(field: string): string | null {
  const text = field.trim()
  if (text === '' || /^auto(matic)?$/i.test(text)) return null
  // As `label` writes rows: `1,024 rows`.
  return text.replace(/^(\d{1,3}(?:,\d{3})+)\b/, (n) => n.replaceAll(',', '')).replace(/\s*rows?$/i, '')
}

/** What the field shows: `25 %`, `1,024 rows`, `64 MiB`, or `Automatic`. */
export function label(budget: string | null): string {
  if (budget === null) return 'Automatic'
  const found = /^(\d[\d.]*)\s*(%|[a-z]*)$/i.exec(budget.trim())
  if (!found) return budget
  const [, number = '', unit = ''] = found
  if (unit === '') return `${Number(number).toLocaleString('en')} ${number === '1' ? 'row' : 'rows'}`
  return `${number} ${unit}`
}

/** Where the slider stands, 1 to 100: the share as written, or the one that `rows` of `prompt` tokens make. */
export function slider(budget: string | null, rows: number | null, prompt: number | null): number {
  const share = /^(\d[\d.]*)\s*%$/.exec(budget ?? '')
  const percent = share ? Number(share[1]) : rows !== null && prompt ? (rows / prompt) * 100 : 25
  return Math.max(1, Math.min(100, Math.round(percent)))
}
