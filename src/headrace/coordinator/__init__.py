"""The communication of the driver with its containers: assignments of tasks, their generations and their status.

``messages`` defines the messages, ``ledger`` is the driver's pure state, ``server`` and ``client`` are the two ends of
the connection, and through ``address`` commands find a running app. Nothing here depends on Spark.
"""
