"""A part of every kind, from outside of fedcel."""
