"""Framework-neutral descriptions: networks, action distributions."""
