/* Kept as a C library: ask long documents with a compressed KV cache.
 *
 * Texts are UTF-8. A function with an argument `error` returns NULL if it fails and sets *error to one sentence, which
 * kept_error_free frees; on success it sets *error to NULL. `error` itself may be NULL. */

#ifndef KEPT_H
#define KEPT_H

/* Generated from capi/src by the test `embedding`; with KEPT_UPDATE=1 it writes this file. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// An answer.
typedef struct KeptAnswer KeptAnswer;

// The text of a document.
typedef struct KeptDocument KeptDocument;

// An open model. Several threads may ask it at once.
typedef struct KeptModel KeptModel;

// An earlier question of the conversation and its answer.
typedef struct {
  // The question.
  const char *question;
  // Its answer.
  const char *answer;
} KeptTurn;

// What happens while a question is answered.
typedef struct {
  // The next piece of the answer; NULL while the document is read.
  const char *text;
  // Tokens that are read.
  size_t tokens_done;
  // Tokens to read; 0 where text is set.
  size_t tokens_total;
  // Seconds until the document is read, at the speed so far.
  double seconds_left;
} KeptEvent;

// Receives events on the thread that asks. Returns whether to go on: false ends the answer with its text so far, or
// with an error if the document is not yet read.
typedef bool (*KeptWatch)(void *user, const KeptEvent *event);

// A question. Zero in every field but `question` means the defaults. Texts end with a zero byte.
typedef struct {
  // The question.
  const char *question;
  // Earlier turns of the conversation, oldest first; NULL for a question that stands alone.
  const KeptTurn *turns;
  // Number of turns.
  size_t turn_count;
  // The method, such as "snapkv" or "snapkv[w=8]"; NULL leaves the choice to Kept.
  const char *method;
  // What may be kept: "25%", "512" rows per head, "64MiB"; NULL is the default.
  const char *budget;
  // Limit of all memory, such as "6GiB"; NULL for none.
  const char *memory;
  // Type of the kept rows: "f32", "f16", "q8_0", "q4_0"; NULL is the default.
  const char *cache;
  // Folder of the vaults, "" for that of `kept ask`; NULL uses none.
  const char *vault;
  // Longest answer in tokens; 0 is the default.
  size_t max_tokens;
  // 0 selects the most likely token.
  double temperature;
  // Keeps only the most likely tokens whose probabilities add up to this; 0 keeps all.
  double top_p;
  // Equal seeds give equal answers.
  uint64_t seed;
  // Whether a model that can think before it answers does so.
  bool thinking;
  // Receives events; NULL for none.
  KeptWatch watch;
  // Passed to `watch`.
  void *user;
} KeptQuestion;

// Which tokens of the prompt are kept, as arrays in row-major order.
typedef struct {
  // Layers of the model.
  size_t layers;
  // KV heads per layer.
  size_t heads;
  // Tokens of the prompt: template, document, question.
  size_t tokens;
  // `[layers][heads][tokens]`: 0 evicted, 1 kept, 2 merged into the row of another token.
  const uint8_t *retention;
  // `[layers]`: how many last positions a sliding-window layer attends to, 0 for a recurrent layer, -1 for a
  // global layer. Only global layers are compressed.
  const int64_t *windows;
  // `[tokens]`: share of the heads of all global layers that keep the token, 0 to 1.
  const float *shares;
  // `[tokens][2]`: first byte of the token in the document's text, and one past its last; -1 and -1 for tokens
  // outside the document.
  const int64_t *spans;
} KeptMap;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// The version of the library, such as "0.1.0".
const char *kept_version(void);

// Opens a model: the path of a GGUF file, "mini" for the built-in model, or a name that `kept models list` shows.
// NULL is the model that `kept ask` uses. Close it with `kept_model_close`.
//
// # Safety
// `name` is NULL or ends with a zero byte; `error` is NULL or may be written.
KeptModel *kept_model_open(const char *name,
                           char **error);

// Closes a model. Its answers stay valid.
//
// # Safety
// `model` is NULL or comes from `kept_model_open`, and is not used any more.
void kept_model_close(KeptModel *model);

// Reads a file: text, Markdown, source code, PDF, Office, EPUB, HTML, e-mail. Free it with `kept_document_free`.
//
// # Safety
// `path` ends with a zero byte; `error` is NULL or may be written.
KeptDocument *kept_document_open(const char *path,
                                 char **error);

// A document from the `bytes` bytes of a file at `content`. The ending of `name` tells the format: "notes.txt" is
// text. Free it with `kept_document_free`.
//
// # Safety
// `name` ends with a zero byte, `content` has `bytes` bytes; `error` is NULL or may be written.
KeptDocument *kept_document_of(const char *name,
                               const uint8_t *content,
                               size_t bytes,
                               char **error);

// The document's text, which all byte offsets refer to, and its length in `*bytes`. It does not end with a zero byte,
// and is valid until the document is freed.
//
// # Safety
// `document` comes from a function above; `bytes` may be written.
const char *kept_document_text(const KeptDocument *document,
                               size_t *bytes);

// Frees a document. Its answers stay valid.
//
// # Safety
// `document` is NULL or comes from a function above, and is not used any more.
void kept_document_free(KeptDocument *document);

// Reads the document with the question and answers; returns when the answer is complete. Free it with
// `kept_answer_free`.
//
// # Safety
// `model` and `document` come from functions above, `question` follows the rules of its fields; `error` is NULL or
// may be written.
KeptAnswer *kept_ask(const KeptModel *model,
                     const KeptDocument *document,
                     const KeptQuestion *question,
                     char **error);

// The text of an answer, ending with a zero byte, valid until the answer is freed.
//
// # Safety
// `answer` comes from `kept_ask`.
const char *kept_answer_text(const KeptAnswer *answer);

// Everything about an answer but its map, as a JSON object: sources, citations, method, rows, bytes, seconds, notes;
// the names are those of `kept ask --json`. Ends with a zero byte, valid until the answer is freed.
//
// # Safety
// `answer` comes from `kept_ask`.
const char *kept_answer_json(const KeptAnswer *answer);

// The retention map of an answer. Its arrays are valid until the answer is freed.
//
// # Safety
// `answer` comes from `kept_ask`.
KeptMap kept_answer_map(const KeptAnswer *answer);

// Frees an answer.
//
// # Safety
// `answer` is NULL or comes from `kept_ask`, and is not used any more.
void kept_answer_free(KeptAnswer *answer);

// Frees the sentence of an error.
//
// # Safety
// `sentence` is NULL or was set by a function above, and is not used any more.
void kept_error_free(char *sentence);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* KEPT_H */
