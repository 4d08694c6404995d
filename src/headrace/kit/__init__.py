"""The test kit: the harness of ``app.test()``, checks of contracts for systems, targets and stores, and doubles."""
