"""Leakage."""
