-- The comparison of a document, and what its runs keep.

CREATE TABLE comparison (
    document INTEGER PRIMARY KEY REFERENCES document (id) ON DELETE CASCADE,
    body     TEXT NOT NULL    -- JSON
) STRICT;

CREATE TABLE compared_map (
    document INTEGER NOT NULL REFERENCES comparison (document) ON DELETE CASCADE,
    run      INTEGER NOT NULL,  -- -1: the ends of the cells
    bytes    BLOB NOT NULL,     -- deflated
    PRIMARY KEY (document, run)
) STRICT;
