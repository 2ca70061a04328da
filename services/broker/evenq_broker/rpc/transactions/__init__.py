"""EndTransaction, and checks relayed to producers at other brokers."""
