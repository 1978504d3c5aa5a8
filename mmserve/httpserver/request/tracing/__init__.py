"""Traces of requests: a record for each that has ended, in the log or as spans of OpenTelemetry."""
