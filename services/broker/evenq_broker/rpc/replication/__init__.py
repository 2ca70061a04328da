"""What the brokers of one group ask each other."""
