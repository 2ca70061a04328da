"""The commit log: records in segment files, the append path and its writer thread, retention, and the consume queues
that hold the place of each message.
"""
