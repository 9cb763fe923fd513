"""Recordings written out in other formats."""
