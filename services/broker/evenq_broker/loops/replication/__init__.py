"""How a broker is one copy of its group: its log, its links to the others, the group record, and what drives them."""
