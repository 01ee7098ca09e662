"""Challengers at work: their learners, how they compare with the store's own model, and their promotion."""
