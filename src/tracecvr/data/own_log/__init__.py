"""A log of your own: what its schema says, how it is read, and what is done about its defects."""
