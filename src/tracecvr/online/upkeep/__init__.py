"""What an operator does with a store: look at its status, check it, replay its log."""
