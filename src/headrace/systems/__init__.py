"""Systems: where streams live. ``base`` holds the contracts."""
