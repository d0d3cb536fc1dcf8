"""Pictures, pages and terminal output of designed queries and keys. Imports no torch."""
