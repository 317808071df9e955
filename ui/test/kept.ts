/** What every part of the window is given, for the tests. */
import { expect } from 'vitest'
import { Actions } from '../src/lib/actions'
import type { AppState } from '../src/lib/app.svelte'
import * as calls from '../src/lib/calls'
import { Find } from '../src/lib/find.svelte'
import type { Kept } from '../src/lib/context'
import { MapView } from '../src/lib/map.svelte'
import { Reader } from '../src/lib/reader.svelte'
import { TextStore } from '../src/lib/text.svelte'

/** Around `app`, with overrides; a problem of the map fails the test. */
export function keptOf(app: AppState, some: Partial<Kept> = {}): Kept {
  return {
    app,
    actions: new Actions(app),
    text: new TextStore(calls.documentText),
    map: new MapView(calls, (problem) => expect.fail(String(problem))),
    reader: new Reader(),
    find: new Find(),
    open: () => {},
    compose: () => {},
    ...some,
  }
}
