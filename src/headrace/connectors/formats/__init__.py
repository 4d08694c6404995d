"""Record formats that need more than a word: Avro, JSON Schema, Protobuf, Debezium, and schema registries."""
