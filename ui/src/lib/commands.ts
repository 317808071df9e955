/**
 * The commands, by name. `invoke` returns a promise of the result; a refusal is a string, one sentence.
 *
 * subscribe(channel)                            -> null          first call of the page; then snapshot()
 * snapshot()                                    -> Snapshot
 * document_text({ id })                         -> ArrayBuffer   UTF-8
 * choose_document()                             -> null          system's dialog; the outcome is sent as events
 * open_sample()                                 -> null
 * chat()                                        -> null          a conversation without a document: the open one is empty
 * open_text({ text })                           -> null          pasted text as a document; outcome as events
 * close_document()                              -> null          returns to the empty state; the conversation stays listed
 * choose_model()                                -> null          system's dialog; outcome as 'models' and 'model'
 * save_settings({ settings })                   -> Settings      as accepted; opens the model if it changed
 * save_draft({ text })                          -> null
 * estimate({ method, parameters, budget })      -> Estimate
 * ask({ question, choice, relation: Relation }) -> number        the turn's id; everything else is sent as events. It
 *                                                                waits while another question runs
 * remove_waiting({ turn })                      -> null          event: 'turnRemoved'; refused once it is asked
 * stop()                                        -> null          the question, or the opening of a document
 * check_method({ method, parameters })          -> null          refuses parameters that are not allowed
 * compare({ question, runs: Choice[] })         -> number        the comparison's id; the rest is sent as events
 * stop_comparison()                             -> null          finished runs remain
 * save_comparison()                             -> null          system's dialog; outcome as a 'notice'
 * replace_document({ how: Replacement })        -> null          the user's decision on the waiting file
 * unlock_document({ password: string | null })  -> null          for the document that waits for its password; null
 *                                                                gives it up
 * recognise_document({ languages: string[] | null }) -> null     for the scan that waits for it; null gives it up
 * add_document()                                -> null          system's dialog: one more document to read
 * remove_document({ index })                    -> null          one of `documents`; begins a fresh conversation
 * new_conversation()                            -> null          the same document, no turns; events: 'document' and
 *                                                                'conversations'
 * branch_conversation({ turn })                 -> null          likewise, with the turns up to this one; refused while
 *                                                                a question or comparison runs
 * open_conversation({ id })                     -> null          likewise, its document and turns; refused while a
 *                                                                question or comparison runs
 * rename_conversation({ id, title })            -> null          an empty title restores the first question; event:
 *                                                                'conversations'
 * pin_conversation({ id, pinned })              -> null          event: 'conversations'
 * delete_conversation({ id })                   -> null          likewise; the document of the open one stays open,
 *                                                                without turns
 * restore_conversation({ id })                  -> null          undoes a deletion, until the next one or the end of
 *                                                                the program
 * search_conversations({ query })               -> FoundPassage[]   best first, at most 50
 * export_conversation({ id })                   -> null          system's dialog (.md, .json or .html); outcome as a
 *                                                                'notice'
 * import_conversation()                         -> null          system's dialog for an exported .json; outcome as
 *                                                                events, or a 'notice'
 * restart_worker()                              -> null
 * map_ends({ turn })                            -> ArrayBuffer   Uint32 little endian [tokens]: end of each document
 *                                                                token (of groups of tokens in very long documents)
 * map_counts({ turn, layer: number | null, lift })   -> ArrayBuffer   Uint16 little endian [tokens]: slots that hold it;
 *                                                                `lift`: without those that hold it whatever is asked
 * show_less_memory({ turn })                    -> null          computes what it would keep with less memory; event:
 *                                                                'turn' with the number of budgets that are known
 * map_levels({ turn })                          -> ArrayBuffer   Uint8: number of budgets, each in percent, then for
 *                                                                each [tokens] shares; 255 is 100 %
 * map_picture({ turn, from, to, columns, heads, of })   -> ArrayBuffer   Uint8 [rows][columns] shares; a row per layer,
 *                                                or with `heads` per KV head; empty if that is not known
 * compared_map({ comparison, run: number | null })   -> ArrayBuffer   Uint8 [tokens] shares of a run; without one, ends
 *                                                as `map_ends`
 * save_export({ kind, data })                   -> null          system's dialog; a 'png' (base64), 'svg' or 'csv'; outcome
 *                                                as a 'notice'
 * map_token({ turn, token })                    -> TokenSlots
 * map_table({ turn, layer })                    -> TableRow[]
 * map_layers({ turn })                          -> LayerRow[]
 * map_earlier({ turn, layer: number | null })    -> EarlierTurns | null   of the earlier turns that the question saw
 * map_attended({ turn })                        -> Attended[]    what each token of the answer looked at
 * map_evictions({ turn })                       -> ArrayBuffer   Uint32 little endian: tokens of the answer, tokens of a step,
 *                                                then step, token and lost slots of each entry
 * set_thinking({ thinking })                    -> null          event: 'thinking'
 * stop_reading()                                -> null          reading in the background; event: 'readAhead'
 * resume_reading()                              -> null          goes on after a stop
 * clear_vault()                                 -> null          except vaults in use; events: 'vault' and a 'notice'
 * look_for_models()                             -> null          events: 'library' and 'downloads'
 * add_model_folder()                            -> null          system's dialog; outcome as 'library'
 * forget_model_folder({ id })                   -> null          its files remain
 * inspect_model({ id, stretch })                -> Inspection    `stretch` null or `yarn:4`
 * use_model({ id, stretch })                    -> null          outcome as 'models' and 'model'
 * remove_model({ id })                          -> null          from the hub's cache; outcome as a 'notice'
 * remove_unfinished({ id })                     -> null          likewise
 * resume_unfinished({ id })                     -> null          looks the file up on the hub, and resumes
 * hub_offers({ name })                          -> HubOffer[]    `owner/name` or `owner/name:file`; queries the hub
 * start_download({ reference })                 -> number        its id; everything else is sent as 'downloads'
 * resume_download({ id })                       -> null          queued after the running ones
 * pause_download({ id })                        -> null          keeps the partial file
 * cancel_download({ id })                       -> null          removes the partial file, or a finished list entry
 * report({ kind, message })                     -> null          errors of the page, for the log
 */
export type CommandName =
  | 'subscribe'
  | 'snapshot'
  | 'document_text'
  | 'choose_document'
  | 'open_sample'
  | 'chat'
  | 'open_text'
  | 'close_document'
  | 'choose_model'
  | 'save_settings'
  | 'save_draft'
  | 'estimate'
  | 'ask'
  | 'remove_waiting'
  | 'stop'
  | 'check_method'
  | 'compare'
  | 'stop_comparison'
  | 'save_comparison'
  | 'replace_document'
  | 'unlock_document'
  | 'recognise_document'
  | 'new_conversation'
  | 'branch_conversation'
  | 'open_conversation'
  | 'rename_conversation'
  | 'pin_conversation'
  | 'delete_conversation'
  | 'restore_conversation'
  | 'search_conversations'
  | 'export_conversation'
  | 'import_conversation'
  | 'restart_worker'
  | 'map_ends'
  | 'map_counts'
  | 'map_levels'
  | 'show_less_memory'
  | 'map_picture'
  | 'compared_map'
  | 'save_export'
  | 'map_token'
  | 'map_table'
  | 'map_layers'
  | 'map_earlier'
  | 'map_attended'
  | 'map_evictions'
  | 'look_for_models'
  | 'add_model_folder'
  | 'forget_model_folder'
  | 'inspect_model'
  | 'use_model'
  | 'remove_model'
  | 'remove_unfinished'
  | 'resume_unfinished'
  | 'hub_offers'
  | 'start_download'
  | 'resume_download'
  | 'pause_download'
  | 'cancel_download'
  | 'set_thinking'
  | 'stop_reading'
  | 'resume_reading'
  | 'clear_vault'
  | 'add_document'
  | 'remove_document'
  | 'report'
