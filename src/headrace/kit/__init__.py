"""The test kit: the harness of ``app.test()``, and checks of contracts for systems, targets and stores."""
