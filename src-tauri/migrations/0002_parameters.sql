-- What was set of the method's parameters for this question: JSON, name to value.
ALTER TABLE turn ADD COLUMN parameters TEXT NOT NULL DEFAULT '{}';
