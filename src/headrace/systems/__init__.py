"""Systems: where streams live. ``base`` holds the contracts; the log, memory and files are the heart's own."""
