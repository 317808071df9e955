/**
 * A method's parameters as shown and typed. The list, defaults, ranges and validation are the engine's; this module
 * adds the words around them.
 */
import type { Choice, MethodFacts, Parameters, Refusal } from './contract'
import { label } from './budget'
import { storedShort } from './cache'
import { titleOf } from './methods'

/** The options of a range that only lists words (`exact, paper or code`); null if a value must be typed. */
export function wordsOf(range: string): string[] | null {
  const list = range.replace(/\s*\(.*\)$/, '')
  if (!/^[a-z_]+(?:, [a-z_]+)* or [a-z_]+$/.test(list)) return null
  return list.split(/, | or /)
}

/** `parameters` with one more value; an empty value restores the default. */
export function withValue(parameters: Parameters, name: string, typed: string): Parameters {
  const { [name]: _, ...others } = parameters
  const value = typed.trim()
  return value === '' ? others : { ...others, [name]: value }
}

/** The one of the parameters `names` that a refusal names; null if none. */
export function parameterOf({ code }: Refusal, names: string[]): string | null {
  return code?.kind === 'parameter' && names.includes(code.name) ? code.name : null
}

/** `w=16, kernel=5`, in the order of the method's table; empty at the defaults. */
export function assignments(
  { method, parameters }: Pick<Choice, 'method' | 'parameters'>,
  methods: readonly MethodFacts[],
): string {
  const table = methods.find(({ name }) => name === method)?.parameters ?? []
  return [...new Set([...table.map(({ name }) => name), ...Object.keys(parameters)])]
    .filter((name) => name in parameters)
    .map((name) => `${name}=${parameters[name]}`)
    .join(', ')
}

/** `SnapKV, 25 %, kernel=5, 8-bit, within 6 GiB`. `chosen` is the method that Automatic chose. */
export function described(
  choice: Choice & { cache: string | null; memory?: string | null },
  methods: MethodFacts[],
  chosen?: string,
): string {
  const parts = [
    chosen === undefined ? titleOf(choice.method, methods) : `${titleOf(chosen, methods)}, chosen automatically`,
    (chosen ?? choice.method) === 'full' || choice.budget === null ? '' : label(choice.budget),
    assignments(choice, methods),
    storedShort(choice.cache ?? ''),
    choice.memory ? `within ${label(choice.memory)}` : '',
  ]
  return parts.filter((part) => part !== '').join(', ')
}
