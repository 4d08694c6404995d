"""Queries of a running app's tables from other processes.

``catalogue`` lists the tables, ``answering`` answers in a container, ``routing`` decides which tasks to ask,
``finding`` finds the app, and ``reader`` sends the queries. Their messages are in
``coordination.query_messages``. Nothing here depends on Spark.
"""
