"""Disk access: the only modules of the store that open files, descriptors that are shared and bounded, and the
threads that wait for the disk.
"""
