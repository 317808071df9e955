/** Starts the page. All errors of the page, including its own blocked requests, go into the program's log. */
import { mount } from 'svelte'
import App from './App.svelte'
import { report } from './lib/calls'

function tell(kind: string, problem: unknown): void {
  const words = problem instanceof Error ? `${problem.message}\n${problem.stack ?? ''}` : String(problem)
  console.error(kind, problem)
  // If the log is unreachable too, the console has the message.
  report(kind, words.slice(0, 4000)).catch((again: unknown) => console.error('report', again))
}

addEventListener('error', (event) => {
  // Reported by browsers when a resize occurs while one is handled; harmless.
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

if (import.meta.env.MODE === 'mock') (await import('../test/mock/index')).start()

// The window has the theme of the settings, which the page does not know yet.
const dark = matchMedia('(prefers-color-scheme: dark)').matches
document.documentElement.dataset['theme'] = dark ? 'dark' : 'light'

const target = document.getElementById('app')
if (target) mount(App, { target, props: { report: tell } })
