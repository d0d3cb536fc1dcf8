"""Pictures, pages and terminal output for designed queries and keys. Imports no torch."""
