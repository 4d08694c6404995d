"""The communication of the driver with its containers: assignments of tasks, their generations and their status."""
