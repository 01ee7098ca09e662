"""Additions that work with any method."""
