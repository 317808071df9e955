-- With secure-delete, SQLite's FTS5 (3.51 to 3.54 at least) damages its index when a row is replaced in one transaction
-- and deleted later. Without it, words of removed rows stay in the index until it is optimised, which the program does.
INSERT INTO search (search, rank) VALUES ('secure-delete', 0);
INSERT INTO search (search) VALUES ('rebuild');
