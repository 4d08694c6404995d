"""How the driver and its containers talk: who runs which task, with which generation, and how it is going.

``messages`` is what is said, ``ledger`` the driver's pure state, ``server`` and ``client`` the two ends of the
wire, ``address`` the file by which commands find a running app. Nothing here knows Spark.
"""
