/** Context of all components: the state and the actions. Created once, in `App.svelte` (or a test). */
import { createContext } from 'svelte'
import type { Actions } from './actions'
import type { AppState } from './app.svelte'
import type { Find } from './find.svelte'
import type { MapView } from './map.svelte'
import type { Reader } from './reader.svelte'
import type { TextStore } from './text.svelte'

export interface Kept {
  app: AppState
  actions: Actions
  text: TextStore
  map: MapView
  reader: Reader
  find: Find
  /** Opens a dialog or view; shows or hides the list of conversations. */
  open: (dialog: 'settings' | 'table' | 'shortcuts' | 'compare' | 'versions' | 'models' | 'sidebar') => void
  /** Focuses the composer. */
  compose: () => void
}

export const [kept, setKept] = createContext<Kept>()
