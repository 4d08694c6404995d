"""Window operators, and the aggregates they compute."""
