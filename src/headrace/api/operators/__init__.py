"""The operators of a graph: one frozen spec each, with everything that the planner needs to know of it."""
