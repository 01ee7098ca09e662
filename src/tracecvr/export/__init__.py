"""Models for other systems (an extra): a directory that scores clicks without this package.

docs/export.md says which files there are. What is written was checked against torch first; it is written whole or not at
all.
"""
