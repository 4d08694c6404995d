"""One task hosted: the protocol's instructions performed, and everything that one attempt makes."""
