"""Rows that wait: kept, decided, published."""
