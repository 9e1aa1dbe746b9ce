"""Composition: simulate, attack, bench, report, the command line."""
