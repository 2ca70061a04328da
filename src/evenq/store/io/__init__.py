"""Disk access: the modules of the store that open files, reserve descriptors, and run blocking calls on threads."""
