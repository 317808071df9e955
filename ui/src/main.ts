/**
 * Starts the page. Whatever goes wrong in it, a blocked request of its own included, is written into the program's log.
 */
import { mount } from 'svelte'
import App from './App.svelte'
import { report } from './lib/calls'

function tell(kind: string, problem: unknown): void {
  const words = problem instanceof Error ? `${problem.message}\n${problem.stack ?? ''}` : String(problem)
  console.error(kind, problem)
  // The log is the last place: if it cannot be reached either, the console has it.
  report(kind, words.slice(0, 4000)).catch((again: unknown) => console.error('report', again))
}

addEventListener('error', (event) => {
  // Said by engines when a resize is observed while one is handled; nothing is lost.
  if (event.message.startsWith('ResizeObserver loop')) return
  tell('error', event.error ?? event.message)
})
addEventListener('unhandledrejection', (event) => tell('unhandledrejection', event.reason))
document.addEventListener('securitypolicyviolation', (event) =>
  tell(
    'securitypolicyviolation',
    `${event.violatedDirective} ${event.blockedURI} ${event.sourceFile}:${event.lineNumber}`,
  ),
)

if (import.meta.env.MODE === 'mock') (await import('./mock/index')).start()

const target = document.getElementById('app')
if (target) mount(App, { target, props: { report: tell } })
