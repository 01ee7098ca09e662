"""What every room uses: errors, options, safe files, seeds, metrics, progress, and the registry of components."""
