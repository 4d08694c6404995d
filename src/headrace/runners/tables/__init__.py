"""Tables of a running app, asked about from outside.

``catalogue`` says what there is, ``answering`` answers in a container, ``routing`` decides which tasks to ask,
``finding`` finds the app, and ``reader`` asks. What goes over the wire is in ``coordination.query_messages``. Nothing
here knows Spark.
"""
