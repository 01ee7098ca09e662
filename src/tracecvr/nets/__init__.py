"""Nets: embeddings and backbones by name, their fast forms, and batches that several workers compute together."""
