-- Conversations: the questions about one document. A document may have several.
CREATE TABLE conversation (
    id       INTEGER PRIMARY KEY,
    document INTEGER NOT NULL REFERENCES document (id) ON DELETE CASCADE,
    title    TEXT,               -- the user's, or NULL
    pinned   INTEGER NOT NULL,
    updated  INTEGER NOT NULL,   -- seconds since 1970
    deleted  INTEGER NOT NULL    -- 1 until it is restored, or removed at the next start
) STRICT;

CREATE INDEX conversation_of_document ON conversation (document);

ALTER TABLE turn ADD COLUMN conversation INTEGER REFERENCES conversation (id) ON DELETE CASCADE;

INSERT INTO conversation (id, document, pinned, updated, deleted)
    SELECT DISTINCT document, document, 0, unixepoch(), 0 FROM turn;
UPDATE turn SET conversation = document;

CREATE INDEX turn_of_conversation ON turn (conversation);

-- What is open: JSON, the ids of document and conversation or null.
INSERT INTO setting (name, value)
    SELECT 'open', json_object('document', id, 'conversation', (SELECT id FROM conversation WHERE document = document.id))
    FROM document ORDER BY id DESC LIMIT 1;

-- Full-text search. The row is 4 * turn + 1 for a question, 4 * turn + 2 for its answer, 4 * document + 3 for a text,
-- which the program adds, because texts are deflated.
CREATE VIRTUAL TABLE search USING fts5 (body, tokenize = 'unicode61 remove_diacritics 2');
INSERT INTO search (search, rank) VALUES ('secure-delete', 1);
INSERT INTO search (rowid, body) SELECT 4 * id + 1, question FROM turn;
INSERT INTO search (rowid, body) SELECT 4 * id + 2, answer FROM turn;

CREATE TRIGGER turn_added AFTER INSERT ON turn BEGIN
    INSERT INTO search (rowid, body) VALUES (4 * new.id + 1, new.question), (4 * new.id + 2, new.answer);
END;

CREATE TRIGGER turn_changed AFTER UPDATE OF answer ON turn BEGIN
    UPDATE search SET body = new.answer WHERE rowid = 4 * new.id + 2;
END;

CREATE TRIGGER turn_removed AFTER DELETE ON turn BEGIN
    DELETE FROM search WHERE rowid IN (4 * old.id + 1, 4 * old.id + 2);
END;

CREATE TRIGGER document_removed AFTER DELETE ON document BEGIN
    DELETE FROM search WHERE rowid = 4 * old.id + 3;
END;
