"""Nets: embeddings and backbones by name and their fast forms."""
