"""Dead letters with their origins, and retries that wait."""
