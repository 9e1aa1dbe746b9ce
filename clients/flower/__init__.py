"""Flower."""
