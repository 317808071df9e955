/** Languages of text recognition, by the names of tesseract: mostly ISO 639-2, as `deu`. */

const names = new Intl.DisplayNames(['en'], { type: 'language', fallback: 'none' })

/** The short code of a language, `de` for `deu`; null for those that the browser does not know, as `chi_sim`. */
function short(language: string): string | null {
  try {
    return Intl.getCanonicalLocales(language)[0]?.split('-')[0] ?? null
  } catch {
    return null
  }
}

/** The English name of a language; its code if the browser knows none. */
export function languageName(language: string): string {
  const code = short(language)
  return (code !== null && names.of(code)) || language
}

/** Those of `installed` that the user probably wants: the languages of the system, and English; else the first. */
export function likelyLanguages(installed: string[], system: readonly string[]): string[] {
  const wanted = new Set([...system.map((locale) => locale.split('-')[0]), 'en'])
  const likely = installed.filter((language) => wanted.has(short(language) ?? ''))
  return likely.length > 0 ? likely : installed.slice(0, 1)
}
