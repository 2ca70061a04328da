"""Time, randomness, tasks and the network interface. Standard library only.

Every source of differences between two runs is an argument from here, so that a simulation can control it.
"""
