-- The earlier turns that the model saw for an answer (JSON, deflated), and their map like the document's; NULL without any.
ALTER TABLE map ADD COLUMN earlier BLOB;
ALTER TABLE map ADD COLUMN earlier_map BLOB;
