"""How fast the reference engine decodes, beside transformers on the same machine in the same run."""
