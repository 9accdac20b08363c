"""Networks on plain NumPy: the oracle's forward pass, in float32 or float64."""
