"""Host one task: perform the protocol's instructions, and build the parts of each attempt."""
