"""Take savepoints of running apps, restore and read them, and write them from rows."""
