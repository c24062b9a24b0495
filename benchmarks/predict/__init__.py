"""Sets the predictor against published measurements."""
