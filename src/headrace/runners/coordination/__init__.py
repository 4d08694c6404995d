"""How the driver and its containers communicate: which container runs which task, as which generation, and how it does.

``messages`` defines the messages, ``ledger`` is the driver's pure state, ``server`` and ``client`` are the two ends of
the connection, and ``address`` is the file by which commands find a running app. Nothing here depends on Spark.
"""
