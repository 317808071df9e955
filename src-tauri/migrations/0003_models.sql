-- How the model's context is stretched: 'yarn:4', or NULL as its file says.
ALTER TABLE model ADD COLUMN stretch TEXT;

-- Whether the model was let think before this answer.
ALTER TABLE turn ADD COLUMN thinking INTEGER NOT NULL DEFAULT 0;

-- Per layer of the model how many of the last tokens it holds whatever the method, or null: JSON; empty where every layer was cut.
ALTER TABLE turn ADD COLUMN windows TEXT NOT NULL DEFAULT '[]';
