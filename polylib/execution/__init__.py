"""How training batches are gathered and used."""
