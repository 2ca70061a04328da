"""Between the cluster's words and their messages; the only stubs in the loops."""
