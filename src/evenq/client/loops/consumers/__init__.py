"""The engines of the push, pull and simple consumer, which both faces drive."""
