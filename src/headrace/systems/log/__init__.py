"""The embedded log system."""
