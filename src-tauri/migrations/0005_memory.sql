-- What everything was allowed to take in memory for this question, as it was typed: '6 GiB', or NULL where nothing was limited.
ALTER TABLE turn ADD COLUMN memory TEXT;
