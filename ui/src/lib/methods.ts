/** The offered methods: Automatic, then the engine's. */
import type { MethodFacts } from './contract'

/** The setting for the automatic choice. */
export const AUTO = 'auto'

export const AUTOMATIC: MethodFacts = {
  name: AUTO,
  title: 'Automatic',
  paper: '',
  keeps: 'what did best in our tests, as much of it as the document and this computer’s memory allow',
  acts: '',
  parameters: [],
  streams: true,
  seesQuestion: true,
}

/** Shown at a method that cannot read the open document. */
export const NOT_SO_LONG = 'Cannot read a document that is too long for the model.'

/** A method's name in its paper. */
export function titleOf(name: string, methods: readonly MethodFacts[]): string {
  if (name === AUTO) return AUTOMATIC.title
  return methods.find((method) => method.name === name)?.title ?? name
}
