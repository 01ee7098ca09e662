"""The directory of one live model: what it is made of, its versions, its challengers, and which model answers."""
