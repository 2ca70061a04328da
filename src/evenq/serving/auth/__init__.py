"""Access control: users, their secrets and grants, the guard of every call, names and namespaces in requests."""
