/* Asks a question: ask MODEL DOCUMENT QUESTION ANSWER. Exits with 1 at the first check that fails. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kept.h"

#define CHECK(condition)                                                     \
    do {                                                                     \
        if (!(condition)) {                                                  \
            fprintf(stderr, "line %d: not %s\n", __LINE__, #condition);      \
            exit(1);                                                         \
        }                                                                    \
    } while (0)

typedef struct {
    char text[1024];
    size_t read, to_read;
    int pieces, most_pieces;
} Heard;

static bool hear(void *user, const KeptEvent *event) {
    Heard *heard = user;
    if (event->text == NULL) {
        CHECK(event->tokens_done <= event->tokens_total && event->tokens_total > 0);
        heard->read = event->tokens_done;
        heard->to_read = event->tokens_total;
        return true;
    }
    CHECK(strlen(heard->text) + strlen(event->text) < sizeof heard->text);
    strcat(heard->text, event->text);
    heard->pieces += event->text[0] != 0;
    return heard->pieces < heard->most_pieces;
}

static void errors_are_sentences(const KeptModel *model, const KeptDocument *document) {
    char *error = NULL;
    CHECK(kept_model_open("absent.gguf", &error) == NULL && strstr(error, "absent.gguf"));
    kept_error_free(error);
    CHECK(kept_document_open("absent.txt", &error) == NULL && strstr(error, "absent.txt"));
    kept_error_free(error);
    CHECK(kept_document_open("\xff", NULL) == NULL);
    CHECK(kept_document_open(NULL, &error) == NULL && strstr(error, "path is NULL"));
    kept_error_free(error);

    KeptQuestion question = {0};
    CHECK(kept_ask(model, document, &question, &error) == NULL && strstr(error, "question is NULL"));
    kept_error_free(error);
    question.question = "What is it?";
    question.budget = "much";
    CHECK(kept_ask(model, document, &question, &error) == NULL && strstr(error, "much"));
    kept_error_free(error);
    question.budget = NULL;
    question.method = "snapkv[w=none]";
    CHECK(kept_ask(model, document, &question, &error) == NULL && strstr(error, "none"));
    kept_error_free(error);
    question.method = NULL;
    question.memory = "1 elephant";
    CHECK(kept_ask(model, document, &question, &error) == NULL && strstr(error, "1 elephant"));
    kept_error_free(error);
    CHECK(kept_ask(NULL, document, &question, &error) == NULL && strstr(error, "model is NULL"));
    kept_error_free(error);
    kept_error_free(NULL);
}

static void the_map_fits_the_text(const KeptAnswer *answer, const KeptDocument *document) {
    size_t bytes, kept = 0, inside = 0;
    const char *text = kept_document_text(document, &bytes);
    KeptMap map = kept_answer_map(answer);
    CHECK(map.layers > 0 && map.heads > 0 && map.tokens > 0);
    for (size_t i = 0; i < map.layers * map.heads * map.tokens; i++) {
        CHECK(map.retention[i] <= 2);
        kept += map.retention[i] != 0;
    }
    CHECK(kept > 0 && kept < map.layers * map.heads * map.tokens / 2);
    for (size_t layer = 0; layer < map.layers; layer++) CHECK(map.windows[layer] == -1);
    int64_t end = 0;
    double sum = 0;
    for (size_t token = 0; token < map.tokens; token++) {
        const int64_t *span = map.spans + 2 * token;
        CHECK(map.shares[token] >= 0 && map.shares[token] <= 1);
        sum += map.shares[token];
        if (span[0] < 0) continue;
        CHECK(span[0] == end && span[1] >= span[0] && (size_t)span[1] <= bytes);
        end = span[1];
        inside++;
    }
    CHECK(inside > 0 && inside < map.tokens && (size_t)end == bytes && text[0] != 0);
    double mean = (double)kept / (double)(map.layers * map.heads);
    CHECK(sum - mean < 0.01 && mean - sum < 0.01);
}

int main(int count, char **arguments) {
    CHECK(count == 5);
    char *error = NULL;
    KeptModel *model = kept_model_open(arguments[1], &error);
    CHECK(model != NULL && error == NULL);
    KeptDocument *document = kept_document_open(arguments[2], &error);
    CHECK(document != NULL && error == NULL);
    errors_are_sentences(model, document);

    Heard heard = {.most_pieces = 1000};
    KeptQuestion question = {
        .question = arguments[3], .method = "snapkv", .budget = "25%", .watch = hear, .user = &heard};
    KeptAnswer *answer = kept_ask(model, document, &question, &error);
    CHECK(answer != NULL && error == NULL);
    printf("%s\n%s\n", kept_answer_text(answer), kept_answer_json(answer));
    CHECK(strstr(kept_answer_text(answer), arguments[4]));
    CHECK(strcmp(kept_answer_text(answer), heard.text) == 0);
    CHECK(heard.read == heard.to_read);
    CHECK(strstr(kept_answer_json(answer), "\"method\":\"snapkv\""));
    the_map_fits_the_text(answer, document);
    kept_answer_free(answer);

    /* A watcher that returns false ends the answer. */
    heard = (Heard){.most_pieces = 1};
    answer = kept_ask(model, document, &question, &error);
    CHECK(answer != NULL && heard.pieces == 1);
    CHECK(strstr(kept_answer_json(answer), "\"finish\":\"stopped\""));
    kept_model_close(model);
    kept_document_free(document);
    CHECK(strcmp(kept_answer_text(answer), heard.text) == 0);
    kept_answer_free(answer);

    /* A document from memory, with an earlier turn. */
    const char *fact = "The gate code of Edgar Tollen is 8154.";
    document = kept_document_of("fact.txt", (const uint8_t *)fact, strlen(fact), &error);
    CHECK(document != NULL);
    model = kept_model_open(arguments[1], NULL);
    KeptTurn turn = {"Is there a code?", "Yes."};
    question = (KeptQuestion){.question = arguments[3], .turns = &turn, .turn_count = 1};
    answer = kept_ask(model, document, &question, &error);
    CHECK(answer != NULL && strstr(kept_answer_text(answer), "8154"));
    kept_answer_free(answer);
    kept_document_free(document);
    kept_model_close(model);
    CHECK(strcmp(kept_version(), "0") > 0);
    puts("all checks passed");
    return 0;
}
