"""Questions of operators: groups, messages, traces."""
