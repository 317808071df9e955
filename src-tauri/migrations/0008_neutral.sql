-- What the method keeps of the document whatever is asked, like the map: deflated; NULL if it was not computed.
ALTER TABLE map ADD COLUMN neutral BLOB;
