/**
 * A budget in its stored form (`25%`, `512`, `64MiB`) and as the slider and the field show it. The program decides
 * whether it is possible, and words the refusal.
 */

/** The stored form of the field's text; null for an empty field, the automatic budget. */
export function written(field: string): string | null {
  const text = field.trim()
  if (text === '' || /^auto(matic)?$/i.test(text)) return null
  // As `label` formats rows: `1,024 rows`.
  return text
    .replace(/^(\d{1,3}(?:,\d{3})+)\b/, (n) => n.replaceAll(',', ''))
    .replace(/^(\d+),(?=\d{1,2}\s*%$)/, '$1.')
    .replace(/\s*rows?$/i, '')
}

/** Why a text in its stored form is no budget, whatever the model; null if it may be one. */
export function mistake(budget: string): string | null {
  const [, number = '', unit = ''] = /^(\d[\d.]*)\s*(%|[kmg]?i?b)?$/i.exec(budget) ?? []
  const amount = Number(number)
  if (number !== '' && amount > 0 && !(unit === '%' && amount > 100)) return null
  return `“${budget}” is no budget: write a share up to 100 %, rows per head (512) or bytes (64 MiB).`
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

/** Position of the slider, 1 to 100: the stored share, or the share that `rows` are of `prompt` tokens. */
export function slider(budget: string | null, rows: number | null, prompt: number | null): number {
  const share = /^(\d[\d.]*)\s*%$/.exec(budget ?? '')
  const percent = share ? Number(share[1]) : rows !== null && prompt ? (rows / prompt) * 100 : 25
  return Math.max(1, Math.min(100, Math.round(percent)))
}
