"""Values as bytes and rows as tables: schemas, types, Arrow bodies, the hash of keys."""
