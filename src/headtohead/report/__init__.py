"""What people see: tables in the terminal, charts, and a page. Reads run folders; needs no torch."""
