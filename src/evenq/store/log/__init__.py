"""The commit log: records in segment files, what is appended and by which thread it is written, what the log keeps
for how long, and the consume queues that name the place of each message.
"""
