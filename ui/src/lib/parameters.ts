/**
 * A method's parameters as they are shown and typed. The list itself, defaults, ranges and what is allowed are the engine's; here
 * are only the words around them.
 */
import type { Choice, MethodFacts, Parameters } from './contract'
import { label } from './budget'
import { storedShort } from './cache'
import { AUTO, titleOf } from './methods'

/**
 * The words to choose from where a range is nothing but a list of them (`exact, paper or code`); null where something has to be
 * typed.
 */
export function wordsOf(range: string): string[] | null {
  const list = range.replace(/\s*\(.*\)$/, '')
  if (!/^[a-z_]+(?:, [a-z_]+)* or [a-z_]+$/.test(list)) return null
  return list.split(/, | or /)
}

/** `parameters` with one more value; an empty one takes the default again. */
export function withValue(parameters: Parameters, name: string, typed: string): Parameters {
  const { [name]: _, ...others } = parameters
  const value = typed.trim()
  return value === '' ? others : { ...others, [name]: value }
}

/** The parameter that a refusal speaks of, of those there are; the one that was changed if it names none. */
export function named(sentence: string, names: string[], changed: string | null): string | null {
  const found = /: (\w+) takes /.exec(sentence)?.[1] ?? /(\w+)=/.exec(sentence)?.[1]
  return found !== undefined && names.includes(found) ? found : changed
}

/** `w=16, kernel=5`, in the order of the method's table; empty where nothing is set. */
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

/** `SnapKV, 25 %, kernel=5, 8-bit, within 6 GiB`. */
export function described(
  choice: Choice & { cache: string | null; memory?: string | null },
  methods: MethodFacts[],
): string {
  const budget = choice.budget === null ? (choice.method === AUTO ? '' : 'automatic') : label(choice.budget)
  const parts = [
    titleOf(choice.method, methods),
    choice.method === 'full' ? '' : budget,
    assignments(choice, methods),
    storedShort(choice.cache ?? ''),
    choice.memory ? `within ${label(choice.memory)}` : '',
  ]
  return parts.filter((part) => part !== '').join(', ')
}
