"""`evenq top`: rates, lag and members of topics, groups and brokers, live."""
