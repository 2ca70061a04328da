"""Parts that every client uses: the sync face's loop, threads for the user's functions, problems that are logged
once, a connection that is kept open.
"""
