"""What several methods share: the families that they belong to."""
