"""The live page of a running app: what it shows, how changes of that are sent, and the requests it answers."""
