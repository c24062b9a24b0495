"""Measurements with commands of their own; none of them is a test."""
