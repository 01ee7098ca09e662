"""What was known when: the reveals of a click, and where they come from."""
