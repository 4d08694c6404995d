"""For tests, of users and of ours: the app harness, conformance checks, the simulator, chaos."""
