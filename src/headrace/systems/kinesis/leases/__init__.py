"""Leases: the rows in DynamoDB by which the Kinesis Client Library (KCL) and its tools see who reads which shard.

Commits are what counts; the rows follow them. So a KCL application can go on where a Headrace app has stopped, and the
other way round, and the table shows the app's progress.
"""
