"""From a declared app to what will run: partition counts, stages, tasks; and how a plan is shown. Pure."""
