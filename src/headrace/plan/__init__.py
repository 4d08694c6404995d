"""Plan a declared app: partition counts, stages and tasks; and show the plan. Pure."""
