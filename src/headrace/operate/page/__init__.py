"""The live page of a running app: its contents, the transmission of changes, and the requests that it answers."""
