"""The pair that is compared with: what one writes first with transformers. The server runs these files."""
