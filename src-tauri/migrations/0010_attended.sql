-- What each token of the answer attended to (JSON, deflated); NULL for answers of earlier versions.
ALTER TABLE map ADD COLUMN attended BLOB;
