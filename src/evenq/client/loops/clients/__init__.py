"""Parts of every client: the loop of the sync face, threads for user functions, reports of failures, connections."""
