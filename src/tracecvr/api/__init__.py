"""The public face: what `import tracecvr` gives, and what the commands call."""
