-- The instructions that the model got with this question; '' where it got none.
ALTER TABLE turn ADD COLUMN instructions TEXT NOT NULL DEFAULT '';
