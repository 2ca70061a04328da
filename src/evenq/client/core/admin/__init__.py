"""Results of the admin calls, as plain values."""
