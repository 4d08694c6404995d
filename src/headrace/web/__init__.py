"""Pages: each is one HTML text made from data that the command line prints as well."""
