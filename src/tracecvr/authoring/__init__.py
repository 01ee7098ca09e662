"""What the author of a method or plugin writes: the base classes, and what losses are made of."""
