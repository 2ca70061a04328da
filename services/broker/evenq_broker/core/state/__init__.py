"""What everything else stands on: names, records, handles, encoded parts of messages."""
