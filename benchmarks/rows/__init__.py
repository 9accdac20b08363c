"""The rows of the table, and polylib's side of each."""
