"""A server as a process: settings, logs, signals, the page with metrics and probes, open files."""
