"""The command line: `polylib train ...` and what it is made of."""
