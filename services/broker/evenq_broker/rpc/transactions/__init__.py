"""EndTransaction, and checks of producers elsewhere."""
