-- The last conversation as it was: what survives a restart.

-- One JSON value per name: 'settings', 'draft', 'last_document', 'last_turn'.
CREATE TABLE setting (
    name  TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT;

-- Model files that were chosen and could be opened.
CREATE TABLE model (
    id    TEXT PRIMARY KEY,
    label TEXT NOT NULL,
    path  TEXT NOT NULL
) STRICT;

-- The document with its text: the file itself is not needed again.
CREATE TABLE document (
    id     INTEGER PRIMARY KEY,
    info   TEXT NOT NULL,    -- JSON, as the worker gave it
    sample INTEGER NOT NULL,
    text   BLOB NOT NULL     -- UTF-8, deflated
) STRICT;

CREATE TABLE turn (
    id       INTEGER PRIMARY KEY,
    document INTEGER NOT NULL REFERENCES document (id) ON DELETE CASCADE,
    question TEXT NOT NULL,
    answer   TEXT NOT NULL,
    state    TEXT NOT NULL,
    error    TEXT,
    method   TEXT NOT NULL,
    budget   TEXT,
    model    TEXT NOT NULL,
    sources  TEXT NOT NULL,  -- JSON
    facts    TEXT            -- JSON
) STRICT;

CREATE INDEX turn_of_document ON turn (document);

CREATE TABLE map (
    turn  INTEGER PRIMARY KEY REFERENCES turn (id) ON DELETE CASCADE,
    bytes BLOB NOT NULL      -- deflated
) STRICT;
