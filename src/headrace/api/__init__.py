"""The API for declaring apps, and the frozen specs that it produces. Nothing in this package runs an app."""
