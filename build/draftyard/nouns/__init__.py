"""Frozen values that travel from the recipe to the report."""
