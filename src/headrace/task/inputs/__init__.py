"""The inputs of tasks: consumers, the choice of the next envelope, and the judging and decoding of frames."""
