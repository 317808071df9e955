-- Another attempt at a question: the id of its first version, or NULL.
ALTER TABLE turn ADD COLUMN version_of INTEGER;

UPDATE turn SET version_of = first FROM (
    SELECT id AS version, min(id) OVER (PARTITION BY conversation, question) AS first FROM turn
) WHERE id = version AND first <> id;
