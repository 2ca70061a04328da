"""Time, chance, tasks and the network seam: what the loops stand on. Standard library only.

Everything that could make two runs differ comes in from here as an argument, so that a simulation can own it.
"""
