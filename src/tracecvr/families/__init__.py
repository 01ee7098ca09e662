"""What methods share: the base classes of methods and plugins, and the families that methods belong to."""
