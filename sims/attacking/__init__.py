"""Attacking."""
