-- How kept rows were to be stored for this question: 'q8_0', or NULL where that was left to the engine.
ALTER TABLE turn ADD COLUMN cache TEXT;
