"""The TensorFlow backend: one core for a TF1 graph, eager TF2 and traced TF2."""
