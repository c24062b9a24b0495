"""Speed of sealing and checking releases, beside copies of the same bytes."""
