-- What each KV head attended to during the answer (JSON, deflated); NULL for answers of earlier versions.
ALTER TABLE map ADD COLUMN by_head BLOB;
