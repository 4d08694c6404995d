"""What people look at and type: commands, the live page, and the diagnosis of what holds an app up."""
