"""Exactly-once (SEP-10) as pure state machines and durable records. Begin with ``protocol``."""
