"""The only training loop, and what it needs: optimisers, averaged weights, caches and checkpoints."""
