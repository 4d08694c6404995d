"""The exactly-once protocol (SEP-10): pure state machines and durable records. Start with ``protocol``."""
