"""What a dead letter tells of its original; retries that wait."""
