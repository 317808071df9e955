-- What was forgotten during the answer (EvictionLog::to_bytes, deflated); NULL if nothing was, and for answers of earlier
-- versions.
ALTER TABLE map ADD COLUMN evictions BLOB;
