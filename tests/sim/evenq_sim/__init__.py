"""The cluster of the simulation: the real programs and members in one virtual world, faults by seed, checkers behind."""
