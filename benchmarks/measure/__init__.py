"""What `speed.py` measures, one room per kind of figure. `child` keeps each in a process of its own."""
